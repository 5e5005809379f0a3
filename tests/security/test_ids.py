"""
Ids open nothing but what they name: they are no paths, cannot be guessed, and hold in their own session only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from agent_harness.llm.scripted import call, say
from agent_harness.protocol.agents import Agent
from tests.security.conftest import Serve
from tests.support import TOOL

PATHS = [
    "../../x",
    "..%2f..%2fx",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "..\\..\\x",
    ".",
    "..",
    "x\0.json",
    "x\r\nSet-Cookie: y",
    "C:\\x",
    "file:///etc/passwd",
    "~",
    "$HOME",
    "x" * 5000,
]


def files_below(folder: Path) -> set[str]:
    return {str(Path(where) / name) for where, folders, names in os.walk(folder) for name in (*folders, *names)}


@pytest.mark.parametrize("name", PATHS, ids=lambda name: ascii(name[:30]))
async def test_ids_that_are_paths_find_nothing_and_write_nothing(
    serve: Serve, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    B162, for the ids in bodies and those of turns too; the ids in paths are in tests/server/test_refusals_http.py.
    """
    folder = tmp_path / "data" / "here"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    api = await serve(say("ok"), agents={"known": Agent()})
    talk = await api.open()
    await talk.turn()
    before = await talk.raw()
    quoted = "".join(f"%{byte:02x}" for byte in name.encode())
    fork = {"up_to_item_id": name}
    output = {"type": "function_call_output", "data": {"call_id": name, "output": "x"}}
    for method, path, body, code in (
        ("POST", "/v1/sessions", {"agent_id": name}, "unknown_agent"),
        ("POST", f"{talk.path}/fork", fork, "unknown_item"),
        ("POST", f"{talk.path}/events", output, "unknown_call"),
        ("GET", f"{talk.path}/responses/{quoted}", None, "unknown_response"),
        ("GET", f"/v1/sessions/{quoted}", None, "unknown_session"),
        ("DELETE", f"/v1/sessions/{quoted}", None, "unknown_session"),
    ):
        answer = await api.ask(method, path, **({} if body is None else {"json": body}))
        assert answer.status == 404 and answer.body["error"]["code"] in (code, "unknown_path"), answer.body
        assert "Set-Cookie" not in answer.headers and "root:" not in answer.raw.decode()
    interrupted = await talk.interrupt(response_id=name)
    assert interrupted["interrupted"] is False
    assert await talk.raw() == before
    assert files_below(tmp_path) == {str(tmp_path / "data"), str(folder)}


async def test_ids_are_random_and_near_misses_find_nothing(serve: Serve) -> None:
    api = await serve()
    ids = [(await api.create())["id"] for _ in range(50)]
    assert len({name[:13] for name in ids}) == 50 and all(len(name.partition("_")[2]) == 24 for name in ids)
    name = ids[0]
    last = "0" if name[-1] != "0" else "1"
    for guess in (name[:-1] + last, name[:-1], f"{name}0", name.upper(), name.partition("_")[2], name.title(),
                  f"{name}%20", f"%20{name}", f"{name}%00", f"{name}.json", "sess_", "*", "sess_%25"):  # fmt: skip
        await api.refused("GET", f"/v1/sessions/{guess}", status=404, code="unknown_session")
        await api.refused("DELETE", f"/v1/sessions/{guess}", status=404, code="unknown_session")
    assert len((await api.get("/v1/sessions?limit=100"))["data"]) == 50


async def test_what_belongs_to_another_session_is_not_found_and_not_told_from_what_never_was(serve: Serve) -> None:
    api = await serve(call("look_up", "{}", "c1"), say("done"))
    theirs, mine = await api.open(), await api.open()
    await theirs.send(tools=[TOOL])
    await theirs.stream.until_status("waiting")
    snapshot = await theirs.snapshot()
    before = await theirs.raw()

    async def refusal(method: str, path: str, body: Any = None) -> tuple[int, str]:
        answer = await api.ask(method, path, **({} if body is None else {"json": body}))
        return answer.status, answer.body["error"]["code"]

    for call_id in ("c1", "never"):
        output = {"type": "function_call_output", "data": {"call_id": call_id, "output": "stolen"}}
        assert await refusal("POST", f"{mine.path}/events", output) == (404, "unknown_call")
        assert await refusal("POST", f"{mine.path}/events", {"events": [output]}) == (404, "unknown_call")
    for item in (snapshot["items"][0]["id"], "msg_never"):
        assert await refusal("POST", f"{mine.path}/fork", {"up_to_item_id": item}) == (404, "unknown_item")
        assert await refusal("GET", f"{mine.path}/items?after={item}") == (400, "invalid_value")
    for turn in (snapshot["response_id"], "resp_never"):
        assert await refusal("GET", f"{mine.path}/responses/{turn}") == (404, "unknown_response")
        assert (await mine.interrupt(response_id=turn))["interrupted"] is False
    assert await theirs.raw() == before
    await theirs.result("c1", "ok")
    await theirs.stream.until_status("idle")
