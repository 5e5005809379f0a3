"""
The assembler of streamed tool calls: every way in which servers are known to cut, number and name them.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_harness.llm.base import ArgumentsDelta, Delta, ItemAdded
from agent_harness.llm.calls import CallAssembler, arguments_text

Piece = dict[str, Any]
MISSING: Any = object()


@attrs.define
class Seen:
    """
    A call as a reader of the deltas knows it.
    """

    call_id: str
    name: str
    arguments: str = ""


def piece(index: Any = MISSING, id: Any = MISSING, name: Any = MISSING, args: Any = MISSING) -> Piece:
    function = {key: value for key, value in (("name", name), ("arguments", args)) if value is not MISSING}
    entry = {key: value for key, value in (("index", index), ("id", id)) if value is not MISSING}
    return {**entry, "function": function}


def run(*chunks: Any) -> tuple[list[Delta], CallAssembler]:
    """
    Feed each chunk (one piece, or a list of them) and end.
    """
    counter = iter(range(1000))
    assembler = CallAssembler(counter)
    deltas: list[Delta] = []
    for chunk in chunks:
        deltas += assembler.feed([chunk] if isinstance(chunk, dict) else chunk)
    return [*deltas, *assembler.finish()], assembler


def read(deltas: list[Delta]) -> list[Seen]:
    """
    The calls that the deltas tell of, held to the contract: added once, in order, nothing before that.
    """
    calls: list[Seen] = []
    for delta in deltas:
        if isinstance(delta, ItemAdded):
            assert delta.index == len(calls)
            assert delta.type == "function_call"
            calls.append(Seen(delta.call_id, delta.name))
        else:
            assert isinstance(delta, ArgumentsDelta)
            assert delta.delta
            calls[delta.index].arguments += delta.delta
    return calls


def calls_of(*chunks: Any) -> list[tuple[str, str, str]]:
    return [(call.call_id, call.name, call.arguments) for call in read(run(*chunks)[0])]


def test_a_call_in_the_usual_form_is_added_once_and_its_arguments_follow() -> None:
    deltas, _ = run(piece(0, "a", "f", ""), piece(0, args='{"q"'), piece(0, args=":1}"))
    assert deltas == [ItemAdded(0, "function_call", "a", "f"), ArgumentsDelta(0, '{"q"'), ArgumentsDelta(0, ":1}")]


@pytest.mark.parametrize("given_id", [MISSING, None, "", False, [], {}])
def test_a_call_without_an_id_has_an_empty_one(given_id: Any) -> None:
    """
    B035.
    """
    assert calls_of(piece(0, given_id, "f", "{}")) == [("", "f", "{}")]


@pytest.mark.parametrize("given_id", [MISSING, None, ""])
def test_a_second_call_without_an_id_is_not_given_the_first_ones(given_id: Any) -> None:
    """
    B036.
    """
    chunks = (
        piece(0, "a", "f", ""),
        piece(1, given_id, "g", ""),
        piece(0, args='{"q":'),
        piece(1, given_id, args='{"r":'),
        piece(0, args="1}"),
        piece(1, given_id, args="2}"),
    )
    assert calls_of(*chunks) == [("a", "f", '{"q":1}'), ("", "g", '{"r":2}')]


@pytest.mark.parametrize(
    "ghost",
    [{"index": 0, "id": "", "type": "function"}, {"index": 0, "id": "x", "function": None}, {}, piece(0, "", "", "")],
)
def test_a_call_without_name_and_arguments_is_ignored_and_logged(
    ghost: Piece, caplog: pytest.LogCaptureFixture
) -> None:
    """
    B037.
    """
    with caplog.at_level(logging.INFO, "agent_harness.llm.calls"):
        assert calls_of(ghost) == []
    assert "ignored a call" in caplog.text
    assert calls_of(ghost, piece(1, "b", "g", "{}")) == [("b", "g", "{}")]


@pytest.mark.parametrize("index", [MISSING, None, "", True])
def test_calls_without_an_index_are_told_apart_by_their_ids(index: Any) -> None:
    """
    B041.
    """
    chunks = (piece(MISSING, "a", "f", "{}"), piece(index, "b", "g", "{}"))
    assert calls_of(*chunks) == [("a", "f", "{}"), ("b", "g", "{}")]


def test_arguments_that_come_before_the_name_are_given_once_it_is_known() -> None:
    """
    B042.
    """
    deltas, _ = run(piece(id="a", args='{"q":'), piece(id="a", name="f", args="1}"))
    assert deltas == [ItemAdded(0, "function_call", "a", "f"), ArgumentsDelta(0, '{"q":1}')]


def test_a_new_id_on_a_used_index_begins_a_new_call() -> None:
    """
    B043.
    """
    assert calls_of(piece(0, "a", "f", '{"q":1}'), piece(0, "b", "f", '{"q":2}')) == [
        ("a", "f", '{"q":1}'),
        ("b", "f", '{"q":2}'),
    ]


def test_calls_of_one_index_stay_apart_when_their_pieces_alternate() -> None:
    """
    B043, interleaved.
    """
    chunks = (
        piece(0, "a", "f", '{"q":'),
        piece(0, "b", "g", '{"r":'),
        piece(0, "a", args="1"),
        piece(0, "b", args="2"),
        piece(0, "a", args="}"),
        piece(0, args="0}"),
    )
    assert [call[:2] for call in calls_of(*chunks)] == [("a", "f"), ("b", "g")]
    assert calls_of(*chunks[:5], piece(0, "b", args="0}")) == [("a", "f", '{"q":1}'), ("b", "g", '{"r":20}')]


def test_a_name_repeated_in_every_delta_is_taken_once() -> None:
    """
    B046.
    """
    chunks = [piece(0, "a", "final_result", part) for part in ('{"v":', '"}{",', '"w":1}')]
    assert calls_of(*chunks) == [("a", "final_result", '{"v":"}{","w":1}')]
    without_ids = [piece(name="final_result", args=part) for part in ('{"v":', "1", "}")]
    assert calls_of(*without_ids) == [("", "final_result", '{"v":1}')]
    first_without_arguments = [piece(0, "a", "final_result", part) for part in ("", "", "{", "}")]
    assert calls_of(*first_without_arguments) == [("a", "final_result", "{}")]


@pytest.mark.parametrize("nothing", [MISSING, None, ""])
def test_a_name_split_over_deltas_is_put_together(nothing: Any) -> None:
    """
    B047.
    """
    chunks = (
        piece(0, "a", "edit_ex", nothing),
        piece(0, nothing, nothing, nothing),
        piece(0, nothing, "isting_file", nothing),
        piece(0, nothing, nothing, '{"a":'),
        piece(0, nothing, nothing, "1}"),
    )
    deltas, _ = run(*chunks)
    assert deltas[0] == ItemAdded(0, "function_call", "a", "edit_existing_file")
    assert read(deltas) == [Seen("a", "edit_existing_file", '{"a":1}')]


def test_the_last_part_of_a_name_may_come_with_the_first_arguments() -> None:
    assert calls_of(piece(0, "a", "look_"), piece(0, name="up", args="{}")) == [("a", "look_up", "{}")]


def test_an_only_call_of_index_one_makes_one_call() -> None:
    """
    B050.
    """
    assert calls_of(piece(1, "a", "f", ""), piece(1, args="{}")) == [("a", "f", "{}")]


@pytest.mark.parametrize("value", [None, [], {}, "x", 3, [None, "x", 3, []]])
def test_a_tool_calls_value_without_calls_makes_none(value: Any) -> None:
    """
    B051.
    """
    assert calls_of(value) == []


def test_two_calls_that_share_an_index_keep_their_order() -> None:
    """
    B052.
    """
    assert calls_of(piece(0, "a", "f", "{}"), piece(0, "b", "g", "{}")) == [("a", "f", "{}"), ("b", "g", "{}")]


def test_an_id_is_passed_on_as_it_is_whatever_its_length() -> None:
    """
    B032, B039: whether it can be used is the session's to say.
    """
    assert calls_of(piece(0, "x" * 94, "f", "{}"), piece(1, "terminal:0", "f", "{}")) == [
        ("x" * 94, "f", "{}"),
        ("terminal:0", "f", "{}"),
    ]


def test_an_id_shared_by_two_indexes_makes_two_calls() -> None:
    assert calls_of(piece(0, "a", "f", "{}"), piece(1, "a", "g", ""), piece(1, "a", args='{"q":1}')) == [
        ("a", "f", "{}"),
        ("a", "g", '{"q":1}'),
    ]


def test_an_id_shared_without_indexes_makes_two_calls_once_the_first_is_whole() -> None:
    chunks = (piece(id="a", name="f", args='{"q":1}'), piece(id="a", name="f", args='{"q":2}'))
    assert calls_of(*chunks) == [("a", "f", '{"q":1}'), ("a", "f", '{"q":2}')]


def test_a_whole_call_said_again_under_its_id_is_one_call() -> None:
    whole = piece(0, "a", "f", '{"q":1}')
    assert calls_of(whole, whole) == [("a", "f", '{"q":1}')]
    assert calls_of(piece(0, "a", "f", '{"q"'), piece(0, "a", args=":1}"), whole) == [("a", "f", '{"q":1}')]
    no_arguments = piece(0, "a", "f", {})
    assert calls_of(no_arguments, no_arguments) == [("a", "f", "{}")]


def test_equal_calls_without_ids_are_two_calls() -> None:
    roll = piece(0, name="roll", args="{}")
    assert calls_of(roll, roll) == [("", "roll", "{}"), ("", "roll", "{}")]


def test_calls_with_neither_id_nor_index_are_told_apart_by_their_names() -> None:
    assert calls_of(piece(name="f", args='{"q":1}'), piece(name="g", args="{"), piece(args="}")) == [
        ("", "f", '{"q":1}'),
        ("", "g", "{}"),
    ]


def test_calls_of_one_delta_with_neither_id_nor_index_are_told_apart_by_their_place() -> None:
    chunks = ([piece(name="f", args="{"), piece(name="f", args="{")], [piece(args='"q":1}'), piece(args='"q":2}')])
    assert calls_of(*chunks) == [("", "f", '{"q":1}'), ("", "f", '{"q":2}')]


def test_a_late_id_is_the_calls_own_if_it_was_not_added_yet() -> None:
    assert calls_of(piece(0, name="f"), piece(0, "a", args="{}")) == [("a", "f", "{}")]
    assert calls_of(piece(name="f"), piece(id="a", args="{}")) == [("a", "f", "{}")]


def test_an_id_that_comes_after_the_call_was_added_changes_nothing_but_is_known() -> None:
    chunks = (piece(0, name="f", args='{"q":'), piece(0, "a", args="1"), piece(id="a", args="}"))
    assert calls_of(*chunks) == [("", "f", '{"q":1}')]


def test_arguments_under_a_wrong_index_go_by_the_id() -> None:
    chunks = (piece(0, "a", "f", ""), piece(1, "b", "g", ""), piece(2, "a", args="{}"), piece(0, "b", args="{}"))
    assert calls_of(*chunks) == [("a", "f", "{}"), ("b", "g", "{}")]


def test_a_number_as_id_and_a_text_as_index_are_taken() -> None:
    chunks = (piece("0", 7, "f", "{"), piece("1", 8, "g", "{"), piece("0", args="}"), piece("1", args="}"))
    assert calls_of(*chunks) == [("7", "f", "{}"), ("8", "g", "{}")]


def test_a_call_without_arguments_is_added_before_a_later_one() -> None:
    chunks = (piece(0, "a", "now", ""), piece(1, "b", "g", "{}"))
    assert calls_of(*chunks) == [("a", "now", ""), ("b", "g", "{}")]


def test_a_call_that_never_got_a_name_is_added_at_the_end() -> None:
    assert calls_of(piece(0, "a", args="{}"), piece(1, "b", "g", "{}")) == [("b", "g", "{}"), ("a", "", "{}")]


def test_a_function_without_its_wrapper_is_read() -> None:
    assert calls_of({"id": "a", "name": "f", "arguments": "{}"}) == [("a", "f", "{}")]


def test_the_old_function_call_is_one_call() -> None:
    counter = iter(range(9))
    assembler = CallAssembler(counter)
    deltas: list[Delta] = []
    values = ({"name": "f", "arguments": ""}, {"arguments": '{"q"'}, {"name": "f", "arguments": ":1}"}, None, "x")
    for value in values:
        deltas += assembler.feed_function_call(value)
    assert read([*deltas, *assembler.finish()]) == [Seen("", "f", '{"q":1}')]


@pytest.mark.parametrize(
    "value, text",
    [({"k": 1}, '{"k":1}'), ({}, "{}"), ([1, 2], "[1,2]"), (3, "3"), (True, "true"), ({"t": "ä"}, '{"t":"ä"}')],
)
def test_arguments_that_are_no_text_become_json_once(value: Any, text: str) -> None:
    """
    B056, B059.
    """
    assert calls_of(piece(0, "a", "f", value)) == [("a", "f", text)]


@pytest.mark.parametrize(
    "text", ['{"value": ', '"{\\"city\\":\\"NY\\"}"', '{"t":"a\nb"}', "[1,2]", "3", "null", "true", " {} ", "\x00"]
)
def test_arguments_that_are_text_are_passed_on_to_the_letter(text: str) -> None:
    """
    B054, B057, B058, B059: whether they can be used is the session's to say.
    """
    assert calls_of(piece(0, "a", "f", text)) == [("a", "f", text)]


@pytest.mark.parametrize("value", [None, ""])
def test_arguments_that_are_null_or_empty_say_nothing(value: Any) -> None:
    assert calls_of(piece(0, "a", "f", value)) == [("a", "f", "")]


def test_an_empty_object_before_text_is_no_part_of_the_arguments() -> None:
    assert calls_of(piece(0, "a", "f", {}), piece(0, args='{"q":'), piece(0, args="1}")) == [("a", "f", '{"q":1}')]


def test_objects_of_calls_without_ids_make_two_calls() -> None:
    assert calls_of(piece(name="f", args={"q": 1}), piece(name="f", args={"q": 2}), piece(name="g", args={})) == [
        ("", "f", '{"q":1}'),
        ("", "f", '{"q":2}'),
        ("", "g", "{}"),
    ]


def test_halves_of_a_character_in_arguments_are_joined() -> None:
    """
    B090.
    """
    assert calls_of(piece(0, "a", "f", '{"t":"\ud83d'), piece(0, args='\ude00"}')) == [("a", "f", '{"t":"😀"}')]
    assert calls_of(piece(0, "a", "f", '{"t":"\ud83d')) == [("a", "f", '{"t":"�')]


@pytest.mark.parametrize(
    "text, is_cut", [("{}", False), ('{"path":"a","content":"abc', True), ("", True), ("[1]", True)]
)
def test_it_says_whether_the_last_call_is_cut(text: str, is_cut: bool) -> None:
    """
    B075.
    """
    assert run(piece(0, "a", "f", "{}"), piece(1, "b", "g", text))[1].ends_cut() is is_cut
    assert run()[1].ends_cut() is False


@pytest.mark.parametrize(
    "value, text",
    [
        (None, ""),
        ("{ }", "{ }"),
        ({"t": "\ud83d"}, '{"t": "�"}'),
        ({"n": 2**70}, '{"n": 1180591620717411303424}'),
    ],
)
def test_arguments_text_takes_any_json_value(value: Any, text: str) -> None:
    assert arguments_text(value) == text


def test_arguments_too_deep_to_write_are_no_object() -> None:
    value: Any = {}
    for _ in range(100_000):
        value = [value]
    assert not isinstance(json.loads(arguments_text(value)), dict)


# Any well-formed calls, cut and mixed in any way.

NAMES = st.text("abcdefghijklmnop_", min_size=1, max_size=12)
VALUES = st.dictionaries(st.text(max_size=5), st.none() | st.integers(-9, 9) | st.text(max_size=9), max_size=3)


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    places = sorted(draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=4)))
    pieces = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    return [part for part in pieces if part]


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Piece], list[tuple[str, str, str]]]:
    """
    The pieces of one to four calls, mixed, and the calls. A name is finished before a later call's arguments begin.
    """
    names = draw(st.lists(NAMES, min_size=1, max_size=4))
    calls = [(f"call_{n}", name, orjson.dumps(draw(VALUES)).decode()) for n, name in enumerate(names)]
    style = draw(st.sampled_from(["index", "index and id", "id", "one index"]))
    repeats = draw(st.booleans())
    heads: list[list[Piece]] = []
    tails: list[list[Piece]] = []
    for number, (call_id, name, arguments) in enumerate(calls):
        index = {"index": number, "index and id": number, "id": draw(st.sampled_from([None, MISSING])), "one index": 0}[
            style
        ]
        later_id = MISSING if style == "index" else call_id
        # A part that equals all before it cannot be told from a repetition.
        parts = (
            [name]
            if repeats
            else draw(cut(name).filter(lambda parts: all(p != "".join(parts[:n]) for n, p in enumerate(parts))))
        )
        blank = draw(st.sampled_from(["", None, MISSING]))
        heads.append([piece(index, later_id if n else call_id, part, blank) for n, part in enumerate(parts)])
        again = name if repeats else draw(st.sampled_from(["", None, MISSING]))
        tails.append([piece(index, later_id, again, part) for part in draw(cut(arguments))])
    mixed: list[Piece] = []
    begun = 0
    while any(heads) or any(tails):
        ready = [n for n in range(begun) if heads[n] or tails[n]]
        choice = draw(st.sampled_from([*ready, begun] if begun < len(calls) else ready))
        if choice == begun:
            begun += 1
        if heads[choice]:
            mixed.append(heads[choice].pop(0))
            continue
        for earlier in range(choice):
            mixed += heads[earlier]
            heads[earlier] = []
        mixed.append(tails[choice].pop(0))
    return mixed, calls


@given(streams())
def test_any_mixture_of_well_formed_calls_gives_these_calls(
    stream: tuple[list[Piece], list[tuple[str, str, str]]],
) -> None:
    mixed, calls = stream
    assert calls_of(*mixed) == calls
    assert calls_of(mixed) == calls


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
WILD = st.fixed_dictionaries(
    {},
    optional={
        "index": st.sampled_from([0, 1, None, "0"]) | JSON,
        "id": st.sampled_from(["a", "b", "", None]) | JSON,
        "function": st.fixed_dictionaries(
            {},
            optional={
                "name": st.sampled_from(["f", "g", "", None]) | JSON,
                "arguments": st.sampled_from(["{", "}", "{}", "", None]) | JSON,
            },
        )
        | JSON,
    },
)


@given(st.lists(st.lists(WILD | JSON, max_size=3) | JSON, max_size=6))
def test_whatever_comes_the_contract_is_kept(chunks: list[Any]) -> None:
    counter = iter(range(1000))
    assembler = CallAssembler(counter)
    deltas = [delta for chunk in chunks for delta in assembler.feed(chunk)]
    calls = read([*deltas, *assembler.finish()])
    assert sorted(assembler.indexes()) == list(range(len(calls)))
    for call in calls:
        f"{call.call_id}{call.name}{call.arguments}".encode()
