"""
``sessions``, as a process against a real server.
"""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent_harness.llm.scripted import call, say
from tests.cli.programs import Served, run_cli, serve_script
from tests.support import TOOL, user

LONG = "\n".join(f"line {number}" for number in range(1, 31))


@pytest.fixture
def served() -> Iterator[Served]:
    with serve_script(call("look_up", '{"widget_id": 7}', "call_1"), say("It is \x1b[31mteal\x1b[0m.")) as server:
        yield server


async def ask(url: str, body: Any = None) -> Any:
    async with (
        aiohttp.ClientSession() as client,
        client.request("GET" if body is None else "POST", url, json=body) as r,
    ):
        assert r.status < 300, await r.text()
        return await r.json()


async def play(url: str) -> str:
    """
    A session with a finished turn that had one call; its id.
    """
    session = await ask(f"{url}/v1/sessions", {"agent": {"name": "widget\x1b]0;x\x07", "model": "small"}})
    path = f"{url}/v1/sessions/{session['id']}"
    async with aiohttp.ClientSession() as client:
        async with client.post(f"{path}/events?stream=true", json=user("What color?", tools=[TOOL])) as stream:
            while b'"waiting"' not in await stream.content.readline():
                pass
            output = {"type": "function_call_output", "data": {"call_id": "call_1", "output": LONG}}
            await ask(f"{path}/events", output)
            await stream.read()
    return str(session["id"])


async def test_list_shows_a_row_for_each_session_newest_first(served: Served) -> None:
    first, second = await play(served.url), (await ask(f"{served.url}/v1/sessions", {}))["id"]
    ran = await run_cli("sessions", "list", "--url", served.url)

    assert (ran.code, ran.errors) == (0, "")
    head, *rows = ran.output.splitlines()
    assert head.split() == ["ID", "STATUS", "UPDATED", "MODEL", "AGENT"]
    assert [row.split()[0] for row in rows] == [second, first]
    assert rows[1].split()[-2:] == ["small", "widget␛]0;x␇"]
    assert "\x1b" not in ran.output


async def test_list_as_json_is_one_array_and_can_be_limited(served: Served) -> None:
    await ask(f"{served.url}/v1/sessions", {})
    newest = (await ask(f"{served.url}/v1/sessions", {}))["id"]
    ran = await run_cli("sessions", "list", "--limit", "1", "--json", AGENT_HARNESS_URL=served.url)

    assert ran.code == 0
    assert [session["id"] for session in json.loads(ran.output)] == [newest]


async def test_list_of_nothing_is_a_head_alone(served: Served) -> None:
    ran = await run_cli("sessions", "list", "--url", served.url)

    assert (ran.code, ran.output.split()) == (0, ["ID", "STATUS", "UPDATED", "MODEL", "AGENT"])


async def test_show_tells_the_transcript_in_words_and_nothing_a_terminal_obeys(served: Served) -> None:
    session = await play(served.url)
    ran = await run_cli("sessions", "show", session, "--url", served.url)

    assert (ran.code, ran.errors) == (0, "")
    for text in ("user:\nWhat color?\n", "→ look_up(widget_id=7)  [completed]\n", "  line 12\n  [18 more lines]\n"):
        assert text in ran.output, ran.output
    assert ran.output.endswith("assistant:\nIt is ␛[31mteal␛[0m.\n")
    full = await run_cli("sessions", "show", session, "--full", "--url", served.url)
    assert "  line 30\n" in full.output and "more lines" not in full.output


async def test_show_as_json_is_the_session_as_the_server_tells_it(served: Served) -> None:
    session = await play(served.url)
    ran = await run_cli("sessions", "show", session, "--json", "--url", served.url)

    assert json.loads(ran.output) == await ask(f"{served.url}/v1/sessions/{session}")


async def test_export_is_the_items_one_a_line_as_the_server_tells_them(served: Served, tmp_path: Path) -> None:
    session = await play(served.url)
    printed = await run_cli("sessions", "export", session, "--url", served.url)
    written = await run_cli("sessions", "export", session, "--url", served.url, "--output", "out.jsonl", cwd=tmp_path)

    items = (await ask(f"{served.url}/v1/sessions/{session}/items"))["data"]
    assert [json.loads(line) for line in printed.output.splitlines()] == items
    assert "\x1b" not in printed.output
    assert (written.code, written.output, written.errors) == (0, "", "")
    assert (tmp_path / "out.jsonl").read_text() == printed.output
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


async def test_what_was_exported_can_begin_a_session(served: Served) -> None:
    session = await play(served.url)
    ran = await run_cli("sessions", "export", session, "--url", served.url)
    given = ("id", "status", "response_id", "created_at")
    items = [{k: v for k, v in json.loads(line).items() if k not in given} for line in ran.output.splitlines()]

    again = await ask(f"{served.url}/v1/sessions", {"items": items})
    assert [item["type"] for item in again["items"]] == ["message", "function_call", "function_call_output", "message"]


async def test_export_replaces_a_file_keeps_its_mode_and_writes_through_a_link(served: Served, tmp_path: Path) -> None:
    session = await play(served.url)
    (tmp_path / "old").write_text("old")
    (tmp_path / "old").chmod(0o600)
    (tmp_path / "link").symlink_to("old")
    ran = await run_cli("sessions", "export", session, "--url", served.url, "--output", str(tmp_path / "link"))

    assert ran.code == 0 and (tmp_path / "link").is_symlink()
    assert (tmp_path / "old").read_text().count("\n") == 4
    assert stat.S_IMODE((tmp_path / "old").stat().st_mode) == 0o600


async def test_export_that_fails_leaves_the_file_as_it_was(served: Served, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    unknown = await run_cli("sessions", "export", "sess_no", "--url", served.url, "--output", "old", cwd=tmp_path)
    nowhere = await run_cli(
        "sessions", "export", await play(served.url), "--url", served.url, "--output", "no/file", cwd=tmp_path
    )

    assert (unknown.code, unknown.output) == (1, "")
    assert unknown.errors == "agent-harness: There is no session sess_no; it may have been deleted.\n"
    assert (nowhere.code, nowhere.errors) == (
        1,
        "agent-harness: no/file cannot be written: No such file or directory.\n",
    )
    assert os.listdir(tmp_path) == ["old"] and (tmp_path / "old").read_text() == "old"


@pytest.mark.parametrize("arguments", [("list",), ("show", "sess_1"), ("export", "sess_1")], ids=" ".join)
async def test_a_server_that_is_not_there_is_one_line_and_code_1(arguments: tuple[str, ...]) -> None:
    ran = await run_cli("sessions", *arguments, "--url", "http://127.0.0.1:1")

    assert (ran.code, ran.output) == (1, "")
    assert ran.errors.startswith("agent-harness: http://127.0.0.1:1 cannot be reached (")
    assert ran.errors.endswith("`agent-harness serve`, or name another with --url.\n") and ran.errors.count("\n") == 1


@pytest.mark.parametrize("url", ["127.0.0.1:8787", "ftp://x", "http://", ""])
async def test_an_address_that_is_none_is_code_2(url: str) -> None:
    ran = await run_cli("sessions", "list", "--url", url)

    assert (ran.code, ran.output) == (2, "")
    assert "is no address" in ran.errors and "Traceback" not in ran.errors


async def test_what_is_no_server_of_ours_is_one_line_and_code_1() -> None:
    from aiohttp import web

    from agent_harness.testing.threads import ThreadServer

    async def build() -> web.Application:
        app = web.Application()

        async def answer(request: web.Request) -> web.Response:
            return web.Response(text="<html>\n\x1b[2J welcome", content_type="text/html")

        app.router.add_get("/{path:.*}", answer)
        return app

    with ThreadServer(build) as server:
        ran = await run_cli("sessions", "list", "--url", server.url)

    assert (ran.code, ran.output, ran.errors.count("\n")) == (1, "", 1)
    assert "no agent-harness server" in ran.errors and "\x1b" not in ran.errors
