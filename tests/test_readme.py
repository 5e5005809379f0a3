"""
What the README shows can be typed as it stands.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_harness.config import Settings
from agent_harness.protocol.sse import FrameReader
from tests.processes import COMMANDS, ROOT, environment, start

README = (ROOT / "README.md").read_text()
WALK = re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
ADDRESS = "127.0.0.1:8787"
MARK = "== next block =="
WALK_S = 10.0
"""Longest time for the whole walk, of which two seconds are a `curl -m 2`."""


async def walk(address: str, folder: Path) -> list[str]:
    """
    Run the walk-through's blocks in order, in one shell in *folder*, against the server at *address*; what each
    printed.
    """
    script = f"\necho; echo '{MARK}'\n".join(WALK).replace(ADDRESS, address)
    # `python3` of the walk-through is the one that runs this.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    shell = await asyncio.create_subprocess_exec(
        "bash", "-e", "-u", "-o", "pipefail", "-c", script,
        cwd=folder, env=environment(PATH=path), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(WALK_S):
            output, errors = await shell.communicate()
    finally:
        if shell.returncode is None:
            shell.kill()
            await shell.communicate()
    assert (shell.returncode, errors.decode()) == (0, ""), output.decode()
    return output.decode().split(f"\n{MARK}\n")


def read_events(text: str) -> list[dict[str, Any]]:
    frames = FrameReader().feed(text.encode())
    return [json.loads(frame.data) for frame in frames if frame.data != b"[DONE]"]


def said(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_the_walk_through_shows_the_call_the_result_the_recalled_value_and_the_end(tmp_path: Path) -> None:
    async with start("serve", "--demo", "--port", "0") as program:
        printed = await walk(program.url.removeprefix("http://"), tmp_path)
        assert await program.end(signal.SIGTERM) == (0, "", "")

    created, sent, parked, open_calls, accepted, first, second, end = printed
    session = json.loads(created)
    assert json.loads(sent)["queued"] is False

    announced = [
        event["item"]
        for event in read_events(parked)
        if event["type"] == "response.output_item.done" and event["item"]["status"] == "action_required"
    ]
    assert [(call["name"], call["arguments"]) for call in announced] == [("lookup_widget", '{"widget_id":42}')]
    assert read_events(parked)[-1]["status"] == "waiting"
    snapshot = json.loads(open_calls)
    assert snapshot["id"] == session["id"] and "items" not in snapshot
    assert [action["call_id"] for action in snapshot["required_actions"]] == [announced[0]["call_id"]]

    assert json.loads(accepted)["call_id"] == announced[0]["call_id"]
    outputs = [
        event["item"]
        for event in read_events(first)
        if event["type"] == "response.output_item.done" and event["item"]["type"] == "function_call_output"
    ]
    assert [output["output"] for output in outputs] == ['{"color": "teal"}']
    assert "teal" in said(read_events(first))

    turns = {event["response"]["id"] for event in read_events(second) if "response" in event}
    assert len(turns) == 1 and turns != {json.loads(sent)["response_id"]}
    assert "teal" in said(read_events(second))
    assert second.endswith("data: [DONE]\n\n")

    request, deleted = (json.loads(line) for line in end.split("\n") if line)
    assert {"type": "function_call_output", "call_id": announced[0]["call_id"], "output": '{"color": "teal"}'} in (
        request["input"]
    )
    assert request["tools"] == []
    assert deleted == {"id": session["id"], "object": "session.deleted", "deleted": True}


def test_the_walk_through_is_written_for_the_address_the_server_listens_on_by_itself() -> None:
    settings = Settings()

    assert f"{settings.host}:{settings.port}" == ADDRESS
    assert set(re.findall(r"http://([^/\s\"]+)", "".join(WALK))) == {ADDRESS}


def test_every_command_shown_is_a_script_or_the_installed_command_with_what_it_takes() -> None:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    lines = [line for language, block in fences if not language for line in block.splitlines()]
    shown = [line.split() for line in lines if not line.startswith("export ")]
    shown += [words.split() for words in re.findall(r"`(agent-harness [^`]+)`", README)]

    assert ["scripts/demo"] in shown and ["scripts/test"] in shown
    for program, *arguments in shown:
        if program != "agent-harness":
            assert os.access(ROOT / program, os.X_OK), program
            arguments.insert(0, Path(program).name)
        text = " ".join(arguments)
        if text not in ("--help", "test"):
            [name] = [name for name in COMMANDS if f"{text} ".startswith(f"{name} ")]
            COMMANDS[name].make_context(name, text.removeprefix(name).split())
