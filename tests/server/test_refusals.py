"""
Bodies and query parameters that are refused: exact code, status and path, and nothing changed.
"""

import io
from typing import Any

import pytest

from agent_harness.llm.scripted import call, say
from tests.support import TOOL, Talk, user

JSON = {"Content-Type": "application/json"}


def nested(depth: int) -> bytes:
    return b'{"type":"message","data":{"content":' + b"[" * depth + b"]" * depth + b"}}"


BROKEN = [
    b"",
    b"{",
    b"{]",
    b"nul",
    b"{'a': 1}",
    b'{"a": 1,}',
    b"\xff\xfe{}",
    b'{"type": "mess\xe9"}',
    b'{"type": "message"} x',
    b'{"type":"message","data":{"content":"a\nb"}}',
    b'{"type":"message","data":{"content":NaN}}',
    b'{"type":"message","data":{"content":"x"},"n":Infinity}',
    b'{"type":"message","data":{"content":-Infinity}}',
    b'{"type":"message","data":{"content":"\\ud800"}}',
    b'{"type":"message","data":{"content":"\\udc00x"}}',
    b'{"type":"message","data":{"content":"\xed\xa0\x80"}}',
    b'{"type":"message","data":{"content":"\\u12"}}',
    b"\xef\xbb\xbf{",
    nested(100_000),
    b'{"n": 01}',
    b"// {}",
]


def post(talk: Talk, **options):
    return talk.api.refused("POST", f"{talk.path}/events", **options)


async def parked(serve, **limits) -> Talk:
    api = await serve(call("look_up", '{"widget_id": 1}', "c1"), say("done"), **limits)
    talk = await api.open()
    await talk.park()
    return talk


async def finish(talk: Talk) -> None:
    """After refusals the turn goes on as if they had not been."""
    await talk.result("c1", "blue")
    await talk.stream.until_status("idle")
    assert len(talk.api.model.requests) == 2


async def test_a_body_that_is_no_strict_json_is_refused(serve):
    """B069: NaN; lone surrogates, bad UTF-8 and deep nesting too."""
    talk = await parked(serve)
    before = await talk.raw()
    for body in BROKEN:
        await post(talk, data=io.BytesIO(body), headers=JSON, status=400, code="invalid_json")
        answer = await talk.api.ask("POST", "/v1/sessions", data=io.BytesIO(body), headers=JSON)
        assert answer.status == (400 if body else 201), body
        await talk.api.refused("PATCH", talk.path, data=io.BytesIO(body), headers=JSON, status=400, code="invalid_json")
    nan = b'{"type":"function_call_output","data":{"call_id":"c1","output":{"x":NaN}}}'
    await post(talk, data=nan, headers=JSON, status=400, code="invalid_json")
    assert await talk.raw() == before
    await finish(talk)


def message(data: Any) -> dict[str, Any]:
    return {"type": "message", "data": data}


def result(data: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "data": data}


MESSAGES = [
    ([], "invalid_value", None),
    ("x", "invalid_value", None),
    (None, "invalid_value", None),
    (1, "invalid_value", None),
    ({}, "missing_field", "type"),
    ({"data": {"content": "x"}}, "missing_field", "type"),
    ({"type": "massage", "data": {}}, "unknown_event_type", "type"),
    ({"type": "Message", "data": {"content": "x"}}, "unknown_event_type", "type"),
    ({"type": "", "data": {"content": "x"}}, "unknown_event_type", "type"),
    ({"type": 1}, "invalid_value", "type"),
    ({"type": ["message"]}, "invalid_value", "type"),
    ({"type": {}}, "invalid_value", "type"),
    ({"type": "message"}, "missing_field", "data"),
    (message("x"), "invalid_value", "data"),
    (message([]), "invalid_value", "data"),
    (message({}), "missing_field", "data.content"),
    (message({"content": None}), "invalid_value", "data.content"),
    (message({"content": 1}), "invalid_value", "data.content"),
    (message({"content": True}), "invalid_value", "data.content"),
    (message({"content": {}}), "invalid_value", "data.content"),
    (message({"content": "x", "role": "assistant"}), "invalid_value", "data.role"),
    (message({"content": "x", "role": 1}), "invalid_value", "data.role"),
    (message({"content": "x", "id": "msg_1"}), "unknown_field", "data.id"),
    (message({"content": ["x"]}), "invalid_value", "data.content[0]"),
    (message({"content": [{}]}), "missing_field", "data.content[0].type"),
    (message({"content": [{"type": "text", "text": "x"}]}), "invalid_value", "data.content[0].type"),
    (message({"content": [{"type": ["input_text"]}]}), "invalid_value", "data.content[0].type"),
    (message({"content": [{"type": "output_text", "text": "x"}]}), "invalid_value", "data.content[0].type"),
    (message({"content": [{"type": "refusal", "refusal": "x"}]}), "invalid_value", "data.content[0].type"),
    (message({"content": [{"type": "input_text"}]}), "missing_field", "data.content[0].text"),
    (message({"content": [{"type": "input_text", "text": 1}]}), "invalid_value", "data.content[0].text"),
    (message({"content": [{"type": "input_text", "text": "x", "a": 1}]}), "unknown_field", "data.content[0].a"),
    (message({"content": [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": 1}]}),
     "invalid_value", "data.content[1].image_url"),
    (user("x", delivery="now"), "invalid_value", "delivery"),
    (user("x", delivery=1), "invalid_value", "delivery"),
    (user("x", response_id="resp_1"), "unknown_field", "response_id"),
    (user("x", tools="x"), "invalid_tool", "tools"),
    (user("x", tools=[TOOL, TOOL]), "invalid_tool", "tools[1].name"),
    (user("x", tool_choice="sometimes"), "invalid_value", "tool_choice"),
    (result({"output": "x"}), "missing_field", "data.call_id"),
    (result({"call_id": "c1"}), "missing_field", "data.output"),
    (result({"call_id": 1, "output": "x"}), "invalid_value", "data.call_id"),
    (result({"call_id": None, "output": "x"}), "invalid_value", "data.call_id"),
    (result({"call_id": "c1", "output": 1}), "invalid_value", "data.output"),
    (result({"call_id": "c1", "output": True}), "invalid_value", "data.output"),
    (result({"call_id": "c1", "output": {"a": 1}}), "invalid_value", "data.output"),
    (result({"call_id": "c1", "output": ["x"]}), "invalid_value", "data.output[0]"),
    (result({"call_id": "c1", "output": [{"type": "output_text", "text": "x"}]}),
     "invalid_value", "data.output[0].type"),
    (result({"call_id": "c1", "output": "x", "is_error": "no"}), "invalid_value", "data.is_error"),
    (result({"call_id": "c1", "output": "x", "is_error": 0}), "invalid_value", "data.is_error"),
    (result({"call_id": "c1", "output": "x", "name": "f"}), "unknown_field", "data.name"),
    (result({"call_id": "c1", "output": "x"}) | {"tools": []}, "unknown_field", "tools"),
    ({"type": "interrupt", "data": {"clear_queue": 1}}, "invalid_value", "data.clear_queue"),
    ({"type": "interrupt", "data": {"clear_queue": "true"}}, "invalid_value", "data.clear_queue"),
    ({"type": "interrupt", "data": {"response_id": 1}}, "invalid_value", "data.response_id"),
    ({"type": "interrupt", "data": {"reason": "x"}}, "unknown_field", "data.reason"),
    ({"type": "interrupt", "data": []}, "invalid_value", "data"),
    ({"type": "interrupt", "delivery": "queue"}, "unknown_field", "delivery"),
]  # fmt: skip


async def test_every_bad_event_is_refused_with_code_and_path_and_changes_nothing(serve):
    talk = await parked(serve)
    for body, code, param in MESSAGES:
        await talk.refused(body, status=400, code=code, param=param)
    await finish(talk)


async def test_null_for_an_optional_key_of_an_event_means_absent(serve):
    talk = await parked(serve)
    body = {"type": "function_call_output", "data": {"call_id": "c1", "output": "blue", "is_error": None}}
    await talk.post(body)
    await talk.stream.until_status("idle")
    talk.api.model.steps.append(say("more"))
    await talk.post(user("x", tools=None, tool_choice=None, delivery=None))
    await talk.stream.until_status("idle")
    for data in (None, {}, {"response_id": None, "clear_queue": None}):
        assert (await talk.post({"type": "interrupt", "data": data}))["interrupted"] is False


AGENTS = [
    ("name", 1),
    ("model", 1),
    ("model", True),
    ("provider", []),
    ("instructions", {}),
    ("tool_choice", 1),
    ("parallel_tool_calls", 1),
    ("parallel_tool_calls", "true"),
    ("temperature", "0"),
    ("temperature", True),
    ("top_p", []),
    ("max_output_tokens", 1.0),
    ("max_output_tokens", 1.5),
    ("max_output_tokens", 0),
    ("max_output_tokens", 10**30),
    ("max_output_tokens", -(10**30)),
    ("max_output_tokens", "1"),
    ("max_output_tokens", True),
    ("reasoning", "high"),
    ("text", []),
    ("max_model_calls", 0),
    ("max_model_calls", -1),
    ("max_model_calls", 2.0),
    ("max_model_calls", "3"),
    ("tool_timeout_s", 0),
    ("tool_timeout_s", -1),
    ("tool_timeout_s", "60"),
    ("tool_timeout_s", True),
]


async def test_types_of_agent_fields_are_strict(serve):
    api = await serve()
    talk = await api.open()
    before = await talk.raw()
    for name, value in AGENTS:
        for method, path in (("POST", "/v1/sessions"), ("PATCH", talk.path)):
            body = {"agent": {name: value}}
            await api.refused(method, path, json=body, status=400, code="invalid_value", param=f"agent.{name}")
    body = {"agent": {"tools": "x"}}
    await api.refused("POST", "/v1/sessions", json=body, status=400, code="invalid_tool", param="agent.tools")
    assert await talk.raw() == before and len((await api.get("/v1/sessions"))["data"]) == 1


@pytest.mark.parametrize("literal", ["1e400", "-1e400", "1E999999", "1e-400", "1" * 5000, "0." + "1" * 5000, "-0"])
async def test_numbers_at_the_edge_never_break_the_server(serve, literal):
    api = await serve()
    for name in ("temperature", "max_output_tokens", "tool_timeout_s", "max_model_calls"):
        body = f'{{"agent": {{"{name}": {literal}}}}}'.encode()
        answer = await api.ask("POST", "/v1/sessions", data=body, headers=JSON)
        assert answer.status in (201, 400)
        if answer.status == 201:
            assert (await api.get(f"/v1/sessions/{answer.body['id']}"))["agent"][name] is not None


async def test_free_objects_nested_too_deep_to_be_written_again_are_refused(serve):
    api = await serve(say("ok"))
    talk = await api.open()
    deep: dict = {}
    for _ in range(900):
        deep = {"properties": deep}
    for depth_body in (
        user("x", tools=[{"type": "function", "name": "a", "parameters": deep}]),
        {"type": "message", "data": {"content": [{"type": "input_text", "text": deep}]}},
    ):
        answer = await api.ask("POST", f"{talk.path}/events", json=depth_body)
        assert answer.status == 400 and answer.body["error"]["type"] == "invalid_request_error"
    assert (await api.ask("POST", "/v1/sessions", json={"agent": {"reasoning": deep}})).status == 400
    assert (await talk.snapshot())["seq"] == 0
    await talk.turn()


async def test_unknown_keys_are_refused_with_their_path(serve):
    api = await serve()
    for body, param in (
        ({"agents": {}}, "agents"),
        ({"agent": {"colour": 1}}, "agent.colour"),
        ({"agent": {"tools": [TOOL | {"colour": 1}]}}, "agent.tools[0].colour"),
        ({"items": [{"type": "message", "role": "user", "content": "x", "colour": 1}]}, "items[0].colour"),
        ({"": 1}, ""),
    ):
        answer = await api.ask("POST", "/v1/sessions", json=body)
        assert answer.status == 400 and answer.body["error"]["code"] == "unknown_field"
        assert answer.body["error"]["param"] == param or param == ""


async def test_bad_flags_are_refused_and_unknown_query_parameters_ignored(serve):
    talk = await parked(serve)
    api = talk.api
    before = await talk.raw()
    for value in ("", "1", "yes", "True", "null"):
        path = f"{talk.path}?include_items={value}"
        await api.refused("GET", path, status=400, code="invalid_value", param="include_items")
        path = f"{talk.path}/events?stream={value}"
        await api.refused("POST", path, json=user("x"), status=400, code="invalid_value", param="stream")
        path = f"{talk.path}/stream?until={value}"
        await api.refused("GET", path, status=400, code="invalid_value", param="until")
    empty = result({"call_id": "c1", "output": ""})
    for body in ({"type": "interrupt"}, {"events": [empty]}, empty):
        path = f"{talk.path}/events?stream=true"
        await api.refused("POST", path, json=body, status=400, code="invalid_value", param="stream")
    assert await talk.raw() == before == (await api.ask("GET", f"{talk.path}?colour=blue&x=%00&y=%ff")).raw
    await finish(talk)


async def test_refusals_of_a_streamed_message_are_ordinary_json(serve):
    talk = await parked(serve)
    path = f"{talk.path}/events?stream=true"
    refusal = user("x", delivery="reject")
    await talk.api.refused("POST", path, json=refusal, status=409, code="turn_in_progress")
    await talk.api.refused("POST", path, json={"type": "message"}, status=400, code="missing_field", param="data")
    await finish(talk)
