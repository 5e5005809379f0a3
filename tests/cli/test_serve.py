"""
What ``serve`` is told about its process: the loop it runs on, and its name among several.
"""

import asyncio
import importlib.util
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent_harness.llm.scripted import ScriptedModel
from tests.processes import ROOT, Program, run, start
from tests.support import DONE, WAIT_S, Api, types

with_uvloop = pytest.mark.skipif(importlib.util.find_spec("uvloop") is None, reason="uvloop is not installed")


@asynccontextmanager
async def talking(program: Program) -> AsyncIterator[Api]:
    async with aiohttp.ClientSession(program.url, timeout=aiohttp.ClientTimeout(total=WAIT_S)) as client:
        api: Any = client
        yield Api(api, ScriptedModel())


def loads_uvloop(program: Program) -> bool:
    """
    Whether the process has uvloop's code in its memory.
    """
    return "uvloop/loop." in Path(f"/proc/{program.process.pid}/maps").read_text()


@with_uvloop
async def test_with_uvloop_a_tool_turn_runs_on_it_and_a_signal_ends_the_server_well() -> None:
    async with start("serve", "--demo", "--uvloop", "--port", "0") as program:
        async with talking(program) as api:
            talk = await api.open()
            await talk.park()
            [call] = (await talk.snapshot())["required_actions"]
            await talk.result(call["call_id"], "teal")
            await talk.stream.until_status("idle")
            answer = (await talk.items())[-1]["content"][0]["text"]
            loaded = sys.platform != "linux" or loads_uvloop(program)
            program.process.send_signal(signal.SIGTERM)
            assert types(await talk.stream.rest()) == [DONE]
        ended = await program.end()

    assert program.line.endswith(" with the demo model (uvloop)\n") and loaded
    assert answer == "look_up returned teal"
    assert ended == (0, "", "")


@with_uvloop
async def test_uvloop_serves_without_the_demo_model_too() -> None:
    async with start("serve", "--uvloop", "--port", "0", OPENAI_API_KEY="sk-test") as program:
        assert re.fullmatch(r"agent-harness listens on http://127\.0\.0\.1:\d+ \(uvloop\)\n", program.line)
        assert await program.end(signal.SIGINT) == (0, "", "")


@pytest.fixture
def without_uvloop(tmp_path: Path) -> dict[str, str]:
    """
    The environment of a process in which uvloop is not installed.
    """
    (tmp_path / "uvloop.py").write_text("raise ImportError('not installed')\n")
    return {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}


async def test_uvloop_that_is_not_installed_is_told_in_one_line_and_ends_with_2(without_uvloop: dict[str, str]) -> None:
    code, output, errors = await run("serve", "--demo", "--uvloop", "--port", "0", **without_uvloop)

    assert (code, output) == (2, "")
    assert errors.startswith("agent-harness: --uvloop needs uvloop: pip install 'agent-harness[fast]'")
    assert errors.count("\n") == 1


async def test_uvloop_is_not_used_unless_it_is_asked_for(without_uvloop: dict[str, str]) -> None:
    async with (
        start("serve", "--demo", "--port", "0", **without_uvloop) as without,
        start("serve", "--demo", "--port", "0") as plain,
    ):
        loaded = sys.platform == "linux" and loads_uvloop(plain)
        ended = await asyncio.gather(*(program.end(signal.SIGTERM) for program in (without, plain)))

    assert not loaded and "uvloop" not in without.line + plain.line
    assert ended == [(0, "", "")] * 2


@pytest.mark.parametrize("named", [True, False], ids=["named", "not named"])
async def test_the_nodes_name_stands_in_the_ids_of_its_sessions_and_their_forks(named: bool) -> None:
    async with start("serve", "--demo", "--port", "0", *(("--node", "eu-1") if named else ())) as program:
        async with talking(program) as api:
            talk = await api.open()
            talk.stream.close()
            fork = await api.ask("POST", f"{talk.path}/fork", json={})
        await program.end(signal.SIGTERM)

    pattern = r"sess_eu-1_[0-9a-f]{24}" if named else r"sess_[0-9a-f]{24}"
    assert re.fullmatch(pattern, talk.id) and re.fullmatch(pattern, fork.body["id"]) and talk.id != fork.body["id"]


async def test_a_name_that_no_node_can_have_ends_with_2_and_one_line() -> None:
    code, output, errors = await run("serve", "--demo", "--port", "0", "--node", "a_b")

    assert (code, output) == (2, "")
    assert errors.startswith("agent-harness: The node is called 'a_b'") and errors.count("\n") == 1
