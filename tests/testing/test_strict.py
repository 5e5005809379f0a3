"""
STRICT as a pure check: what a request may hold in itself, each rule with one that passes and one that is refused.
"""

from __future__ import annotations

import pytest

from agent_harness.testing.strict import (
    Dialect,
    SessionMemory,
    StrictError,
    StrictOptions,
    check_request,
    parse_body,
)
from tests.testing.strict_requests import (
    ASSISTANT,
    CALL,
    CHAT_CALL,
    CHAT_CALLS,
    CHAT_OUTPUT,
    FLAT_TOOL,
    NESTED_TOOL,
    OUTPUT,
    Change,
    add,
    check,
    drop,
    make_request,
    refuse,
    set_at,
)


@pytest.mark.parametrize("dialect", ["responses", "chat"])
def test_a_conversation_with_a_call_and_its_output_passes(dialect: Dialect) -> None:
    check(dialect, make_request(dialect))


LONG = "x" * 65
REFUSED: list[tuple[Dialect, Change, int | None, str | None]] = [
    ("responses", drop("input", 2), 1, "input[1]"),
    ("responses", drop("input", 1), 1, "input[1]"),
    ("responses", add("input", 3, OUTPUT), 1, "input[3]"),
    ("responses", lambda body: body["input"].insert(0, body["input"].pop(2)), 1, "input[0]"),
    ("chat", drop("messages", 3), 1, "messages[2].tool_calls[0]"),
    ("chat", drop("messages", 2), 1, "messages[2]"),
    ("chat", add("messages", 4, CHAT_OUTPUT), 1, "messages[4]"),
    ("responses", add("input", 3, CALL, OUTPUT), 2, "input[3].call_id"),
    ("responses", set_at("input", 1, "call_id", ""), 2, "input[1].call_id"),
    ("responses", set_at("input", 1, "call_id", LONG), 2, "input[1].call_id"),
    ("responses", set_at("input", 2, "call_id", None), 2, "input[2].call_id"),
    ("chat", add("messages", 4, CHAT_CALLS, CHAT_OUTPUT), 2, "messages[4].tool_calls[0].id"),
    ("chat", set_at("messages", 2, "tool_calls", 0, "id", LONG), 2, "messages[2].tool_calls[0].id"),
    ("responses", set_at("input", 1, "name", "look up"), 3, "input[1].name"),
    ("responses", set_at("input", 1, "name", LONG), 3, "input[1].name"),
    ("responses", set_at("tools", 0, "name", "look.up"), 3, "tools[0].name"),
    (
        "chat",
        set_at("messages", 2, "tool_calls", 0, "function", "name", ""),
        3,
        "messages[2].tool_calls[0].function.name",
    ),
    ("chat", set_at("tools", 0, "function", "name", "look\n"), 3, "tools[0].function.name"),
    ("responses", set_at("input", 1, "arguments", "[1]"), 4, "input[1].arguments"),
    ("responses", set_at("input", 1, "arguments", '{"a": '), 4, "input[1].arguments"),
    ("responses", set_at("input", 1, "arguments", '{"a": NaN}'), 4, "input[1].arguments"),
    ("responses", set_at("input", 1, "arguments", {"a": 1}), 4, "input[1].arguments"),
    (
        "chat",
        set_at("messages", 2, "tool_calls", 0, "function", "arguments", ""),
        4,
        "messages[2].tool_calls[0].function.arguments",
    ),
    ("chat", add("messages", 3, {"role": "user", "content": "wait"}), 5, "messages[2].tool_calls"),
    ("responses", set_at("input", 2, "output", None), 7, "input[2].output"),
    ("responses", set_at("input", 2, "output", {"color": "red"}), 7, "input[2].output"),
    ("responses", set_at("input", 2, "output", [{"type": "text", "text": "red"}]), 7, "input[2].output[0].type"),
    ("responses", set_at("input", 2, "output", "x" * 10_485_761), 7, "input[2].output"),
    ("chat", set_at("messages", 3, "content", None), 7, "messages[3].content"),
    ("chat", set_at("messages", 3, "content", [{"type": "image_url", "image_url": {}}]), 7, "messages[3].content[0]"),
    ("responses", add("input", 0, {**ASSISTANT, "id": "msg_1"}, {**ASSISTANT, "id": "msg_1"}), 9, "input[1].id"),
    # What the API refuses besides the nine rules.
    ("responses", set_at("model", ""), None, "model"),
    ("responses", set_at("input", 0, "role", "tool"), None, "input[0].role"),
    ("chat", set_at("messages", 1, "role", "human"), None, "messages[1].role"),
    ("responses", set_at("input", 0, "type", "note"), None, "input[0].type"),
    ("responses", set_at("input", 0, "origin", "client"), None, "input[0].origin"),
    ("responses", set_at("input", 1, "status", "action_required"), None, "input[1].status"),
    ("responses", set_at("input", 1, "id", None), None, "input[1].id"),
    ("chat", set_at("messages", 1, "response_id", "r"), None, "messages[1].response_id"),
    ("responses", set_at("input", 3, "content", 0, "type", "input_text"), None, "input[3].content[0].type"),
    ("responses", set_at("input", 0, "content", 0, "type", "output_text"), None, "input[0].content[0].type"),
    ("chat", set_at("messages", 1, "content", None), None, "messages[1].content"),
    ("chat", set_at("messages", 4, "tool_calls", []), None, "messages[4].tool_calls"),
    ("chat", set_at("messages", 4, "content", None), None, "messages[4].content"),
    ("responses", set_at("tools", 0, NESTED_TOOL), None, "tools[0].name"),
    ("chat", set_at("tools", 0, FLAT_TOOL), None, "tools[0].function"),
    ("responses", lambda body: body["tools"][0].pop("name"), None, "tools[0].name"),
    ("chat", lambda body: body["tools"][0]["function"].pop("name"), None, "tools[0].function.name"),
    ("responses", set_at("tools", [FLAT_TOOL, FLAT_TOOL]), None, "tools[1]"),
    ("chat", set_at("tools", [NESTED_TOOL, NESTED_TOOL]), None, "tools[1]"),
    ("responses", set_at("tools", 0, "timeout_s", 5), None, "tools[0].timeout_s"),
    ("responses", set_at("tools", 0, "strict", True), None, "tools[0].parameters"),
    ("chat", set_at("tools", []), None, "tools"),
    ("responses", set_at("tool_choice", {"type": "function", "name": "other"}), None, "tool_choice"),
    ("chat", set_at("tool_choice", {"type": "function", "function": {"name": "other"}}), None, "tool_choice"),
    ("chat", set_at("tool_choice", {"type": "function", "name": "look"}), None, "tool_choice.function"),
    ("responses", lambda body: body.update(tools=[], tool_choice="required"), None, "tool_choice"),
    ("chat", lambda body: body.update(tools=None, tool_choice="auto"), None, "tool_choice"),
    ("chat", lambda body: body.update(tools=None, parallel_tool_calls=True), None, "parallel_tool_calls"),
    ("chat", set_at("stream_options", {"include_usage": True}), None, "stream_options"),
    ("responses", lambda body: body.update(input=[], instructions=None), None, "input"),
    ("responses", set_at("input", 5), None, "input"),
    ("chat", set_at("messages", []), None, "messages"),
    ("responses", set_at("previous_response_id", "resp_1"), None, "previous_response_id"),
]


@pytest.mark.parametrize("dialect,change,rule,path", REFUSED)
def test_a_request_that_breaks_a_rule_is_refused_with_its_number_and_path(
    dialect: Dialect, change: Change, rule: int | None, path: str
) -> None:
    body = make_request(dialect)
    change(body)
    error = refuse(dialect, body)
    assert (error.rule, error.param) == (rule, path)
    assert f"STRICT rule {rule}: {path}" in str(error) if rule else f"STRICT: {path}" in str(error)
    told = error.to_body()["error"]
    assert (told["message"], told["type"], told["param"]) == (str(error), "invalid_request_error", path)


CHAT_TWO = {"role": "assistant", "content": "both", "tool_calls": [{**CHAT_CALL, "id": "a"}, {**CHAT_CALL, "id": "b"}]}
CHAT_TWO_OUTPUTS = ({**CHAT_OUTPUT, "tool_call_id": "b"}, {**CHAT_OUTPUT, "tool_call_id": "a"})
LONGEST = ({**CALL, "call_id": "x" * 64}, {**OUTPUT, "call_id": "x" * 64, "output": "x" * 10_485_760})
ACCEPTED: list[tuple[Dialect, Change]] = [
    ("responses", set_at("input", "hi")),
    ("responses", lambda body: body.update(input=[], tools=[])),
    ("responses", add("input", 4, *LONGEST)),
    ("responses", set_at("input", 2, "output", [{"type": "input_text", "text": "red"}, {"type": "input_image"}])),
    ("responses", add("input", 2, {**CALL, "call_id": "c2"}, {**OUTPUT, "call_id": "c2"})),
    ("responses", set_at("tools", [FLAT_TOOL, {"type": "web_search"}])),
    ("responses", set_at("tool_choice", {"type": "function", "name": "look"})),
    ("responses", set_at("input", 3, {"role": "assistant", "content": "It is red."})),
    ("chat", add("messages", 6, CHAT_TWO, *CHAT_TWO_OUTPUTS)),
    ("chat", set_at("messages", 3, "content", [{"type": "text", "text": "red"}])),
    ("chat", set_at("messages", 2, "reasoning_content", "hm")),
    ("chat", lambda body: body.update(stream=True, stream_options={"include_usage": True})),
    ("chat", set_at("tool_choice", {"type": "function", "function": {"name": "look"}})),
]


@pytest.mark.parametrize("dialect,change", ACCEPTED)
def test_what_the_api_takes_passes(dialect: Dialect, change: Change) -> None:
    body = make_request(dialect)
    change(body)
    check(dialect, body)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model": "m", "input": NaN}',
        b'{"model": "m", "input": Infinity}',
        b'{"model": "m", "input": "\\ud83d"}',
        b'{"model": "m", "input": "\xff"}',
        b'{"model": "m", "input": "hi"',
        b'\xef\xbb\xbf{"model": "m", "input": "hi"}',
        b"[]",
        b"",
    ],
)
def test_a_body_that_is_not_a_strict_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(StrictError) as caught:
        parse_body(raw)
    assert caught.value.rule == 8


def test_a_body_nested_too_deep_to_read_is_refused() -> None:
    raw = b'{"model": "m", "input": "hi", "metadata": ' + b"[" * 1000 + b"]" * 1000 + b"}"
    with pytest.raises(StrictError, match="rule 8"):
        check_request("responses", parse_body(raw), raw, StrictOptions(), SessionMemory())


@pytest.mark.parametrize("dialect", ["responses", "chat"])
def test_nul_is_refused_only_where_the_server_is_set_to_refuse_it(dialect: Dialect) -> None:
    body = make_request(dialect)
    if dialect == "responses":
        body["input"][2]["output"] = "a\0b"
    else:
        body["messages"][3]["content"] = "a\0b"
    check(dialect, body)
    assert refuse(dialect, body, options=StrictOptions(refuse_nul=True)).rule == 8


def test_null_content_and_lists_of_parts_are_refused_only_where_the_server_is_set_to_refuse_them() -> None:
    body = make_request("chat")
    error = refuse("chat", body, options=StrictOptions(refuse_null_content=True))
    assert (error.rule, error.param) == (8, "messages[2].content")
    body["messages"][2]["content"] = ""
    body["messages"][3]["content"] = [{"type": "text", "text": "red"}]
    check("chat", body, options=StrictOptions(refuse_null_content=True))
    assert refuse("chat", body, options=StrictOptions(refuse_output_parts=True)).param == "messages[3].content"


def test_nothing_is_refused_when_strict_is_off() -> None:
    check("responses", {"input": [OUTPUT]}, options=StrictOptions(enabled=False))
