"""
STRICT as a pure check: requests judged by what was asked and answered before them (rules 6 and 9).
"""

from __future__ import annotations

import copy
import json
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
from tests.testing.strict_requests import (
    CALL,
    OUTPUT,
    USER,
    Body,
    check,
    make_request,
    refuse,
)

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
