"""
STRICT as a pure check: each rule with a request that passes and one that is refused, in each dialect it holds for.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_harness.testing.strict import (
    Dialect,
    SessionMemory,
    StrictError,
    StrictOptions,
    check_request,
    parse_body,
)
from agent_harness.testing.strict_prefix import slice_items

Body = dict[str, Any]
Change = Callable[[Body], object]

USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "red"}
ASSISTANT = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is red."}]}
FLAT_TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}

CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
CHAT_CALLS = {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}
CHAT_OUTPUT = {"role": "tool", "tool_call_id": "c1", "content": "red"}
NESTED_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def make_request(dialect: Dialect) -> Body:
    if dialect == "responses":
        items = [USER, CALL, OUTPUT, ASSISTANT, USER]
        return copy.deepcopy({"model": "m", "store": False, "instructions": "be", "input": items, "tools": [FLAT_TOOL]})
    messages = [
        {"role": "system", "content": "be"},
        {"role": "user", "content": "hi"},
        CHAT_CALLS,
        CHAT_OUTPUT,
        {"role": "assistant", "content": "It is red."},
        {"role": "user", "content": [{"type": "text", "text": "and?"}]},
    ]
    return copy.deepcopy({"model": "m", "messages": messages, "tools": [NESTED_TOOL]})


def check(
    dialect: Dialect, body: Body, memory: SessionMemory | None = None, options: StrictOptions | None = None
) -> None:
    raw = json.dumps(body).encode()
    memory = memory or SessionMemory()
    memory.last = check_request(dialect, parse_body(raw), raw, options or StrictOptions(), memory) or memory.last


def refuse(
    dialect: Dialect, body: Body, memory: SessionMemory | None = None, options: StrictOptions | None = None
) -> StrictError:
    with pytest.raises(StrictError) as caught:
        check(dialect, body, memory, options)
    return caught.value


def set_at(*path: Any) -> Change:
    *way, last, value = path

    def change(body: Body) -> None:
        held: Any = body
        for key in way:
            held = held[key]
        held[last] = value

    return change


def drop(key: str, index: int) -> Change:
    return lambda body: body[key].pop(index)


def add(key: str, index: int, *items: Any) -> Change:
    def change(body: Body) -> None:
        body[key][index:index] = copy.deepcopy(list(items))

    return change


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


RS_A = {"type": "reasoning", "id": "rs_A", "summary": [], "encrypted_content": "A"}
RS_B = {"type": "reasoning", "id": "rs_B", "summary": [], "encrypted_content": "B"}
FC_A = {"type": "function_call", "id": "fc_A", "call_id": "a", "name": "look", "arguments": "{}"}
FC_B = {"type": "function_call", "id": "fc_B", "call_id": "b", "name": "look", "arguments": "{}"}
MSG_B = {"type": "message", "id": "msg_B", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]}
OUT_A = {"type": "function_call_output", "call_id": "a", "output": ""}
OUT_B = {"type": "function_call_output", "call_id": "b", "output": ""}


def without_id(item: Body) -> Body:
    return {key: value for key, value in item.items() if key != "id"}


def make_reasoned(*items: Body, store: bool = False) -> Body:
    return copy.deepcopy({"model": "m", "store": store, "input": [USER, *items]})


def remember(*items: Body) -> SessionMemory:
    memory = SessionMemory()
    memory.answers.remember(items)
    return memory


def test_reasoning_followed_by_what_it_led_to_passes() -> None:
    both = (RS_A, FC_A, RS_B, FC_B)
    check("responses", make_reasoned(*both, OUT_A, OUT_B), remember(*both))
    check("responses", make_reasoned(RS_A, without_id(FC_A), OUT_A), remember(RS_A, FC_A))
    check("responses", make_reasoned(RS_B, without_id(MSG_B), USER), remember(RS_B, MSG_B))
    check("responses", make_reasoned(without_id(FC_A), OUT_A), remember(RS_A, FC_A))
    check("responses", make_reasoned(FC_A, OUT_A), remember(FC_A))


def test_reasoning_that_the_server_never_gave_is_held_to_being_followed_by_a_model_item() -> None:
    check("responses", make_reasoned(RS_A, FC_A, OUT_A))
    assert refuse("responses", make_reasoned(RS_A, USER)).rule == 6


@pytest.mark.parametrize(
    "items,path",
    [
        ((RS_A,), "input[1]"),
        ((RS_A, USER), "input[1]"),
        ((RS_A, CALL, OUTPUT), "input[1]"),
        ((RS_A, without_id(MSG_B)), "input[1]"),
        ((RS_A, RS_B, FC_A, FC_B, OUT_A, OUT_B), "input[2]"),
        ((FC_A, OUT_A), "input[1]"),
        ((FC_A, RS_A, without_id(FC_B), OUT_A, OUT_B), "input[1]"),
        ((without_id(RS_A) | {"id": "rs_A", "encrypted_content": None}, FC_A, OUT_A), "input[1]"),
        (({"type": "item_reference", "id": "fc_A"},), "input[1]"),
        (({"id": "fc_A"},), "input[1]"),
    ],
)
def test_reasoning_torn_from_its_answer_and_bare_references_are_refused(items: tuple[Body, ...], path: str) -> None:
    error = refuse("responses", make_reasoned(*items), remember(RS_A, FC_A, RS_B, FC_B))
    assert (error.rule, error.param) == (6, path)


def test_a_text_sent_with_its_id_needs_the_reasoning_before_it() -> None:
    error = refuse("responses", make_reasoned(MSG_B), remember(RS_B, MSG_B))
    assert "Item 'msg_B' of type 'message' was provided without its required 'reasoning' item: 'rs_B'." in str(error)


def test_a_reference_to_a_stored_item_passes_only_when_the_server_gave_it() -> None:
    reference = {"type": "item_reference", "id": "msg_B"}
    check("responses", make_reasoned(reference, store=True), remember(MSG_B))
    assert refuse("responses", make_reasoned(reference, store=True), remember(FC_A)).rule == 6


@pytest.mark.parametrize("dialect", ["responses", "chat"])
def test_a_request_that_begins_with_the_bytes_of_the_last_passes(dialect: Dialect) -> None:
    memory, body = SessionMemory(), make_request(dialect)
    check(dialect, body, memory)
    body["input" if dialect == "responses" else "messages"].append({"role": "user", "content": "more"})
    check(dialect, body, memory)
    body["messages" if dialect == "chat" else "instructions"] = (
        [{"role": "system", "content": "other"}, *body["messages"][1:]] if dialect == "chat" else "other"
    )
    check(dialect, body, memory)


@pytest.mark.parametrize("dialect", ["responses", "chat"])
def test_a_request_that_rewrites_or_shortens_its_past_is_refused(dialect: Dialect) -> None:
    key = "input" if dialect == "responses" else "messages"
    memory, body = SessionMemory(), make_request(dialect)
    check(dialect, body, memory)
    shorter = {**body, key: body[key][:-1]}
    error = refuse(dialect, shorter, memory)
    assert (error.rule, error.param) == (9, f"{key}[{len(body[key]) - 1}]")
    raw = json.dumps(body).replace('"It is red."', '"It\\u0020is red."').encode()
    with pytest.raises(StrictError, match="rule 9") as caught:
        check_request(dialect, parse_body(raw), raw, StrictOptions(), memory)
    assert caught.value.param == f"{key}[{3 if dialect == 'responses' else 4}]"
    check(dialect, shorter, memory, StrictOptions(prefix=False))


@pytest.mark.parametrize("dialect", ["responses", "chat"])
def test_the_first_request_after_a_change_of_model_may_begin_anew(dialect: Dialect) -> None:
    key = "input" if dialect == "responses" else "messages"
    memory, body = SessionMemory(), make_request(dialect)
    check(dialect, body, memory)
    other = {**body, "model": "n", key: body[key][-1:]}
    check(dialect, other, memory)
    assert refuse(dialect, {**other, key: [{"role": "user", "content": "x"}]}, memory).rule == 9


def test_dropped_reasoning_is_no_change_where_the_provider_is_set_to_drop_it() -> None:
    memory = remember(RS_A, FC_A)
    check("responses", make_reasoned(RS_A, FC_A, OUT_A), memory)
    dropped = make_reasoned(without_id(FC_A), OUT_A, USER)
    assert refuse("responses", dropped, memory).rule == 9
    check("responses", dropped, memory, StrictOptions(drop_reasoning=True))
    changed = make_reasoned({**without_id(FC_A), "arguments": '{"x":1}'}, OUT_A, USER)
    assert refuse("responses", changed, memory, StrictOptions(drop_reasoning=True)).rule == 9

    memory, body = SessionMemory(), make_request("chat")
    body["messages"][2]["reasoning_content"] = "hm"
    check("chat", body, memory)
    del body["messages"][2]["reasoning_content"]
    assert refuse("chat", body, memory).rule == 9
    check("chat", body, memory, StrictOptions(drop_reasoning=True))


def test_a_merged_last_user_message_is_no_change_where_the_provider_is_set_to_merge() -> None:
    memory, body, options = SessionMemory(), make_request("chat"), StrictOptions(merge_user_messages=True)
    check("chat", body, memory)
    body["messages"][-1] = {"role": "user", "content": "and?\n\nagain"}
    assert refuse("chat", body, memory).rule == 9
    first = copy.deepcopy(body)
    first["messages"][1]["content"] = "changed"
    assert refuse("chat", first, memory, options).param == "messages[1]"
    check("chat", body, memory, options)


def test_a_refused_request_changes_nothing_that_is_remembered() -> None:
    memory, body = SessionMemory(), make_request("responses")
    check("responses", body, memory)
    past = memory.last
    refuse("responses", {**body, "input": [*body["input"], CALL]}, memory)
    assert memory.last is past


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab"\\{[', max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(items=st.lists(JSON_VALUES), before=JSON_VALUES, after=JSON_VALUES, indent=st.sampled_from([None, 1, 4]))
def test_an_array_is_cut_into_the_very_texts_of_its_items(
    items: list[Any], before: Any, after: Any, indent: int | None
) -> None:
    raw = json.dumps({"a": before, "input": items, "z": after}, indent=indent, ensure_ascii=False).encode()
    slices = slice_items(raw, "input")
    assert [json.loads(text) for text in slices] == items
    place = 0
    for text in slices:
        place = raw.decode().index(text, place) + len(text)


def test_the_last_of_two_equal_keys_counts_and_what_is_no_array_has_no_items() -> None:
    assert slice_items(b' { "input" : [ 1 , {"a":2} ] , "input":[ "x" ]} ', "input") == ('"x"',)
    assert slice_items(b'{"input":[1],"input":"x"}', "input") == ()
    assert slice_items(b"{}", "input") == ()
    assert slice_items(b'{"input":[]}', "input") == ()
