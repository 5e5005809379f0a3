"""
What a model server would refuse is refused when it is sent, or made to fit: no turn fails for it later.
"""

import json
from typing import Any

import pytest

from agent_harness.testing.strict import Dialect
from tests.cases.rig import DIALECTS, calling, chat_stream, responses_stream
from tests.support import Talk, user

both = pytest.mark.parametrize("dialect", DIALECTS)
ANSWER = {"text": "done"}
TOO_LONG = (
    [{"type": "input_text", "text": "x" * 10_485_761}],
    [{"type": "input_text", "text": "x" * 8_000_000}, {"type": "input_text", "text": "y" * 3_000_000}],
    [{"type": "input_file", "file_url": "https://x/" + "z" * 10_485_761}],
)

REFUSING = {"refuse_nul": True}
PARTS = [
    {"type": "input_text", "text": "t\0"},
    {"type": "input_image", "image_url": "data:image/png;base64,iVBOR\0", "detail": "low\0"},
    {"type": "input_image", "file_id": "file\0"},
    {"type": "input_file", "file_data": "data:text/plain;base64,aGk=\0", "filename": "n\0"},
    {"type": "input_file", "file_url": "https://x/\0", "filename": "n\0"},
]
TOOL = {
    "type": "function",
    "name": "look",
    "description": "d\0",
    "parameters": {"type": "object", "properties": {"a\0": {"enum": ["b\0"]}}, "required": ["a\0"]},
}
AGENT = {
    "model": "mock\0",
    "instructions": "i\0",
    "tools": [TOOL],
    "reasoning": {"effort": "low\0"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"title\0": "t\0"}}},
}


def tools(prefix: str, count: int) -> list[dict[str, Any]]:
    return [{"type": "function", "name": f"{prefix}_{number}"} for number in range(count)]


@both
async def test_patch_that_would_give_a_running_or_waiting_turn_too_many_tools_is_refused_and_both_turns_end(
    play: Any, dialect: Dialect
) -> None:
    """
    STRICT's bound of 128 holds for the sum, whenever a part of it changes.
    """
    agent = {"tools": tools("old", 10)}
    case = await play(dialect, calling("c1"), ANSWER, ANSWER, agent=agent)
    look = {"type": "function", "name": "look"}
    running = await case.send(tools=[*tools("run", 100), look])
    await case.waiting()
    queued = await case.send(tools=tools("wait", 100))

    error = await case.api.refused(
        "PATCH",
        case.path,
        json={"agent": {"tools": tools("new", 100), "instructions": "changed"}},
        status=400,
        code="invalid_tool",
        param="agent.tools",
    )

    assert f"{running['response_id']} brings 101, which makes 201" in error["message"]
    assert f"{queued['item_id']} brings 100, which makes 200" in error["message"]
    assert (await case.snapshot())["agent"]["instructions"] is None
    await case.result("c1")
    assert await case.rests() == "idle"
    requests = await case.requests()
    assert [request.status for request in requests] == [200] * 3
    assert [len(request.body["tools"]) for request in requests] == [111, 111, 110]
    assert (await case.api.ask("PATCH", case.path, json={"agent": {"tools": tools("new", 100)}})).status == 200


@both
@pytest.mark.parametrize("output", TOO_LONG, ids=["one", "two", "url"])
async def test_list_over_the_limit_of_an_output_is_refused_and_its_call_can_still_be_answered(
    play: Any, dialect: Dialect, output: Any
) -> None:
    """
    B066, of lists: STRICT 7 bounds the sum of their texts, and the one string that Chat Completions makes of them.
    """
    case = await play(dialect, calling("c1"), ANSWER, ANSWER)
    await case.send()
    await case.waiting()
    body = {"type": "function_call_output", "data": {"call_id": "c1", "output": output}}

    error = await case.refused(body, status=413, code="request_too_large", param="data.output")

    assert "10,000,000" in error["message"]
    await case.result("c1", [{"type": "input_text", "text": "x" * 10_000_000}], is_error=True)
    assert await case.rests() == "idle"
    assert [request.status for request in await case.requests()] == [200, 200]


@both
async def test_past_with_a_list_over_the_limit_of_an_output_begins_no_session(play: Any, dialect: Dialect) -> None:
    """
    B066, in ``items``.
    """
    case = await play(dialect)
    items = [
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": TOO_LONG[1]},
    ]
    await case.api.refused(
        "POST",
        "/v1/sessions",
        json={"items": items},
        status=413,
        code="request_too_large",
        param="items[1].output",
    )


def check_clean(value: Any) -> None:
    """
    Fail if a string in *value* holds a NUL, or none tells of one that was replaced.
    """
    text = json.dumps(value)
    assert r"\u0000" not in text
    assert r"\ufffd" in text


@both
async def test_nul_in_any_part_tool_or_setting_reaches_no_model_and_no_snapshot(play: Any, dialect: Dialect) -> None:
    """
    B068, outside texts: each of these strings made its turn fail, or every later one too.
    """
    case = await play(dialect, calling("c1"), ANSWER, ANSWER, agent=AGENT, strict=REFUSING)
    await case.post({**user("hi"), "data": {"content": PARTS}, "tools": [{**TOOL, "name": "look"}]})
    await case.waiting()
    await case.result("c1", PARTS)
    assert (await case.result("c1", PARTS))["duplicate"]
    assert await case.rests() == "idle"
    assert (await case.says())["status"] == "completed"
    check_clean(await case.snapshot())
    requests = await case.requests()
    assert [request.status for request in requests] == [200] * 3
    for request in requests:
        check_clean(request.body)


@both
async def test_past_with_nul_in_it_is_cleaned_and_its_turns_end(play: Any, dialect: Dialect) -> None:
    """
    B068, in ``items``: texts, parts and notes on them.
    """
    case = await play(dialect, ANSWER, strict=REFUSING)
    written = {"type": "output_text", "text": "t\0", "annotations": [{"type": "url_citation", "url\0": "u\0"}]}
    items = [
        {"type": "message", "role": "user", "content": PARTS},
        {"type": "reasoning", "summary": [{"text": "s\0"}]},
        {"type": "message", "role": "assistant", "content": [written, {"type": "refusal", "refusal": "r\0"}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": PARTS},
    ]
    talk = Talk(case.api, (await case.api.create(items=items))["id"])
    talk.stream = await talk.follow(after=0)
    await talk.send()
    await talk.stream.until("response.completed")
    check_clean(await talk.snapshot())
    check_clean(await talk.request_body())


@both
async def test_call_id_with_nul_in_a_past_is_refused(play: Any, dialect: Dialect) -> None:
    """
    B068: an id with another character in its place would not be the client's any more.
    """
    case = await play(dialect)
    items = [{"type": "function_call", "call_id": "c\0", "name": "look", "arguments": "{}"}]
    refusal = {"status": 400, "code": "invalid_value", "param": "items[0].call_id"}
    await case.api.refused("POST", "/v1/sessions", json={"items": items}, **refusal)


@both
async def test_nul_in_what_a_model_server_gives_of_its_own_is_not_sent_back(play: Any, dialect: Dialect) -> None:
    """
    B068's twin: ids, names and reasoning.
    """
    call = {"name": "lo\0ok", "arguments": "{}"}
    reasoning = {"type": "reasoning", "id": "rs_\0", "summary": [], "encrypted_content": "E\0"}
    raw = {
        "chat": chat_stream(
            {"reasoning_content": "r\0"},
            {"content": "t\0"},
            {"tool_calls": [{"index": 0, "id": "c\0", "function": call}]},
        ),
        "responses": responses_stream(reasoning, {"type": "function_call", "id": "fc_\0", "call_id": "c\0", **call}),
    }
    case = await play(dialect, {"raw": raw[dialect]}, ANSWER, ANSWER, strict=REFUSING)
    await case.send()
    assert await case.rests() == "idle"
    assert (await case.says())["status"] == "completed"
    requests = await case.requests()
    assert [request.status for request in requests] == [200] * 3
    assert r"\u0000" not in json.dumps([await case.snapshot(), [request.body for request in requests]])


@both
async def test_strict_tool_without_parameters_is_sent_in_the_form_that_strict_wants(
    play: Any, dialect: Dialect
) -> None:
    """
    wire.md: no ``parameters`` = no arguments, with ``strict`` too.
    """
    case = await play(dialect, ANSWER, agent={"tools": [{"type": "function", "name": "look", "strict": True}]})
    assert (await case.says())["status"] == "completed"
    (tool,) = (await case.requests())[0].body["tools"]
    sent = tool["function"] if dialect == "chat" else tool
    closed = {"type": "object", "properties": {}, "additionalProperties": False, "required": []}
    assert (sent["strict"], sent["parameters"]) == (True, closed)
