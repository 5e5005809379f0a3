"""
What a client or a model writes stays what it is: it becomes no header, no frame and no line of the log.
"""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest

from agent_harness.llm.scripted import call, say
from tests.security.conftest import Serve
from tests.support import DONE, TOOL, Api, user

FORGED = "2026-11-30T13:57:02.123Z ERROR forged: line"

NASTY = [
    f"x\n{FORGED}",
    f"x\r{FORGED}",
    f"x\r\n{FORGED}",
    "x\r\nSet-Cookie: stolen=1\r\n\r\n<html>",
    f"x\u2028{FORGED}",
    f"x\u2029{FORGED}\x85{FORGED}\x0b{FORGED}\x0c{FORGED}",
    f"x\x1b[2K\x1b[1A{FORGED}",
    f'x"}}\n{{"level": "error", "message": "{FORGED}"}}',
    "x\n\nevent: session.deleted\nid: 999\ndata: {}\n\n",
    "x\ndata: [DONE]\n\n",
    "\u202egnp.exe %s %(name)s {0} \0",
]


async def write_everywhere(api: Api, text: str) -> list[tuple[str, str]]:
    """
    *text* wherever a client can put it; the headers of all answers.
    """
    headers: list[tuple[str, str]] = []

    async def ask(method: str, path: str, **options: Any) -> Any:
        answer = await api.ask(method, path, **options)
        assert answer.status < 500, answer.raw
        headers.extend(answer.headers.items())
        return answer

    quoted = "".join(f"%{byte:02x}" for byte in text.encode())
    output = {"type": "function_call_output", "data": {"call_id": text, "output": text}}
    await ask("POST", "/v1/sessions", json={"agent": {"name": text, "model": text, "provider": text}})
    await ask("POST", "/v1/sessions", json={"agent_id": text})
    await ask("POST", "/v1/sessions", json={"agent": {text: text}, text: text})
    await ask("POST", "/v1/sessions", json={"agent": {"tools": [{"type": "function", "name": text}]}})
    made = await ask("POST", "/v1/sessions", json={"metadata": {text[:64]: text}, "agent": {"instructions": text}})
    path = f"/v1/sessions/{made.body['id']}"
    await ask("POST", f"{path}/events", json=user(text, tools=[TOOL]))
    await ask("POST", f"{path}/events", json=output)
    await ask("POST", f"{path}/events", json={"type": text})
    await ask("POST", f"{path}/events", json=user("x", tool_choice={"type": "function", "name": text}))
    await ask("POST", f"{path}/events", json={"type": "interrupt", "data": {"response_id": text}})
    await ask("POST", f"{path}/fork", json={"up_to_item_id": text})
    await ask("PATCH", path, json={"metadata": {text[:64]: text}})
    for tail in (quoted, f"{made.body['id']}/{quoted}", f"{made.body['id']}/responses/{quoted}"):
        await ask("GET", f"/v1/sessions/{tail}")
    await ask("GET", f"/v1/sessions?after={quoted}&limit={quoted}&{quoted}={quoted}")
    await ask("GET", f"/{quoted}")
    await ask("GET", path)
    await ask("DELETE", path)
    return headers


@pytest.mark.parametrize("text", NASTY, ids=ascii)
async def test_nothing_a_client_writes_begins_a_line_of_the_log_or_is_quoted_in_one(
    serve: Serve, log: io.StringIO, text: str, request: pytest.FixtureRequest
) -> None:
    api = await serve(*[say(text) for _ in range(3)])
    await write_everywhere(api, text)
    # As tools that split lines see it.
    lines = log.getvalue().splitlines()

    assert len(lines) > 10
    for line in lines:
        if "json" in request.node.callspec.id.split("-")[0]:
            assert isinstance(json.loads(line), dict)
        else:
            assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING) [\w.]+: ", line), line
    assert "forged" not in log.getvalue() and "stolen" not in log.getvalue() and "\x1b" not in log.getvalue()


@pytest.mark.parametrize("text", NASTY, ids=ascii)
async def test_nothing_a_client_writes_becomes_a_header(serve: Serve, text: str) -> None:
    api = await serve(*[say(text) for _ in range(3)])
    headers = await write_everywhere(api, text)

    known = {
        "content-type",
        "content-length",
        "date",
        "server",
        "x-request-id",
        "x-should-retry",
        "allow",
        "connection",
    }
    assert {name.lower() for name, _ in headers} <= known
    assert not [value for _, value in headers if "forged" in value or "stolen" in value or not value.isprintable()]


@pytest.mark.parametrize("text", NASTY, ids=ascii)
async def test_the_call_id_name_and_text_of_a_model_stay_inside_their_frames(serve: Serve, text: str) -> None:
    """
    The reader of this test refuses every frame whose lines are not exactly the contract's.
    """
    api = await serve(
        call(text, json.dumps({"x": text}), text[:64]), call("look_up", json.dumps({"x": text}), text[:64]), say(text)
    )
    talk = await api.open()
    await talk.send(text, tools=[TOOL])
    await talk.stream.until_status("waiting")
    [action] = (await talk.snapshot())["required_actions"]
    answer = await api.ask("POST", f"{talk.path}/events", json={
        "type": "function_call_output", "data": {"call_id": action["call_id"], "output": text}})  # fmt: skip
    assert answer.status == 202 and answer.body["call_id"] == action["call_id"]
    await talk.stream.until_status("idle")
    numbers = [frame.id for frame in talk.stream.frames if frame.id is not None]

    assert numbers == list(range(1, len(numbers) + 1))
    assert not [frame for frame in talk.stream.frames if frame.data == DONE or frame.event == "session.deleted"]
    kept = text.replace("\0", "\ufffd")
    assert (await talk.items())[-1]["content"][0]["text"] == kept


@pytest.mark.parametrize(
    "given", ["a\tb", "a b", "<script>", "x" * 129, "é", "a;b", 'a"b', "../x", "%0d%0aSet-Cookie:x"]
)
async def test_a_request_id_that_is_not_plain_is_not_given_back(serve: Serve, given: str) -> None:
    api = await serve()
    answer = await api.ask("GET", "/v1/sessions/none", headers={"x-request-id": given})
    assert re.fullmatch(r"req_[0-9a-f]{24}", answer.headers["x-request-id"])
    assert answer.body["error"]["request_id"] == answer.headers["x-request-id"]
