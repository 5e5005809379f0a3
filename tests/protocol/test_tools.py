"""
What becomes of the calls a model makes: their arguments, texts, names and ids; and which tools a turn offers.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent_harness.protocol.agents import Agent
from agent_harness.protocol.commands import MessageData, OutputData
from agent_harness.protocol.tools import (
    CALL_ID_MAX,
    NAME_PATTERN,
    Tool,
    clean_call_id,
    clean_json,
    clean_name,
    clean_text,
    merge_tools,
    read_arguments,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=5), JSON, max_size=4)
ANY_TEXT = st.text(st.characters(exclude_categories=[]))
"""Lone surrogates and NUL too."""


def refuse_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def strict(text: str) -> Any:
    """
    *text* as two strict parsers read it; both must take it.
    """
    value = orjson.loads(text)
    json.loads(text, parse_constant=refuse_constant)
    return value


@pytest.mark.parametrize(
    "raw",
    [
        "{}",
        '{"widget_id": 42}',
        ' {"a":1} ',
        '{"a" : 1.50,\n\t"b":[ ]}',
        '{"b":1,"a":2,"b":3}',
        '{"n":123456789012345678901234567890,"e":1E+2}',
        r'{"t":"\u00e9\n\ud83d\ude00\/\u0000"}',
        '{"t":"é\u2028日"}',
        '{"a":{"b":[{"c":null}]}}',
    ],
)
def test_arguments_that_are_an_object_are_kept_to_the_letter(raw: str) -> None:
    assert read_arguments(raw) == (raw, None)


@pytest.mark.parametrize("raw", ["", " ", "\n\t", "null", " null\n"])
def test_no_arguments_are_the_empty_object(raw: str) -> None:
    """B059: null counts as no arguments."""
    assert read_arguments(raw) == ("{}", None)


@pytest.mark.parametrize(
    "raw, value",
    [
        (json.dumps('{"city":"NY"}'), {"city": "NY"}),
        (json.dumps(' {"a": {"b": [1]}} '), {"a": {"b": [1]}}),
        (json.dumps("{}"), {}),
        (json.dumps('{"t":"a\nb"}'), {"t": "a\nb"}),
    ],
)
def test_string_that_holds_an_object_is_unwrapped(raw: str, value: Any) -> None:
    """B057."""
    arguments, problem = read_arguments(raw)

    assert problem is None
    assert strict(arguments) == value


@pytest.mark.parametrize(
    "raw, value",
    [
        ('{"t":"a\nb"}', {"t": "a\nb"}),
        ('{"t":"a\tb\r\x01"}', {"t": "a\tb\r\x01"}),
        ('{"t":"é\n日"}', {"t": "é\n日"}),
        ('{"t":"a\0b"}', {"t": "a\0b"}),
        ('{"t":"\ud83d"}', {"t": "\ufffd"}),
        (r'{"t":"\ud83d!"}', {"t": "\ufffd!"}),
        ('{"t":"\ud83d\ude00"}', {"t": "😀"}),
        ('{"\udc00":1}', {"\ufffd": 1}),
    ],
)
def test_what_strict_parsers_refuse_inside_strings_is_written_anew(raw: str, value: Any) -> None:
    """B058."""
    arguments, problem = read_arguments(raw)

    assert problem is None
    assert strict(arguments) == value


@pytest.mark.parametrize(
    "raw, problem",
    [
        ("[1,2]", "an array"),
        ("3", "a number"),
        ("3.5", "a number"),
        ("true", "a boolean"),
        ("false", "a boolean"),
        ('"text"', "not valid JSON"),
        ('"null"', "null"),
        ('"[1]"', "an array"),
        (json.dumps(json.dumps("{}")), "a string"),
        ('""', "not valid JSON"),
        ('{"value": ', "not valid JSON"),
        ('{"a":1}{"b":2}', "not valid JSON"),
        ("{'a':1}", "not valid JSON"),
        ('{"a":1,}', "not valid JSON"),
        ("{a:1}", "not valid JSON"),
        ('{"a":NaN}', "NaN"),
        ('{"a":Infinity}', "Infinity"),
        ('{"a":-Infinity}', "-Infinity"),
        ('{"a":1e999}', "not valid JSON"),
        ("\ufeff{}", "not valid JSON"),
        ("look up 42", "not valid JSON"),
        ("\ud83d\0", "not valid JSON"),
        ('{"a":' + "9" * 5000 + "}", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"a":' * 2000 + "1" + "}" * 2000, "not valid JSON"),
    ],
)
def test_anything_else_is_wrapped_and_the_problem_is_told(raw: str, problem: str) -> None:
    """B054, B056, B059: what is kept is an object all the same, so that no later request is refused."""
    arguments, told = read_arguments(raw)

    assert told is not None
    assert problem in told
    assert strict(arguments) == {"invalid_arguments": clean_text(raw)}


@given(value=OBJECTS, indent=st.none() | st.integers(0, 2), plain=st.booleans())
@settings(deadline=None, derandomize=True)
def test_every_object_is_kept_to_the_letter_however_it_is_written(value: Any, indent: int | None, plain: bool) -> None:
    """B056: an object that an adapter turned into text is not encoded again."""
    raw = json.dumps(value, indent=indent, ensure_ascii=plain)

    assert read_arguments(raw) == (raw, None)


@given(raw=ANY_TEXT | JSON.map(json.dumps) | JSON.map(lambda value: json.dumps(json.dumps(value))))
@example("\0")
@example('{"\ud800')
@settings(deadline=None, derandomize=True)
def test_what_is_kept_is_always_strict_json_of_an_object(raw: str) -> None:
    arguments, problem = read_arguments(raw)

    assert isinstance(strict(arguments), dict)
    assert problem is None or problem.encode()


@given(raw=ANY_TEXT | JSON.map(json.dumps) | JSON.map(lambda value: json.dumps(json.dumps(value))))
@settings(deadline=None, derandomize=True)
def test_what_is_kept_is_kept_again_as_it_is(raw: str) -> None:
    arguments, _ = read_arguments(raw)

    assert read_arguments(arguments) == (arguments, None)


@pytest.mark.parametrize(
    "text, kept",
    [
        ("", ""),
        ("plain", "plain"),
        ("\0", "\ufffd"),
        ("a\0b\0", "a\ufffdb\ufffd"),
        ("é\0", "é\ufffd"),
        ("\x01\x1b\t\n\r\x7f", "\x01\x1b\t\n\r\x7f"),
        ("\ud83d", "\ufffd"),
        ("\ude00!", "\ufffd!"),
        ("a\ud83db\0", "a\ufffdb\ufffd"),
        ("\ud83d\ud83d", "\ufffd\ufffd"),
        ("\ude00\ud83d!", "\ufffd\ufffd!"),
        ("\ud83d\ude00", "😀"),
        ("\ud83d\ud83d\ude00\ude00", "\ufffd😀\ufffd"),
        ("\ufeffé", "\ufeffé"),
        ("\ufeff\ud83d", "\ufeff\ufffd"),
        ("😀\u2028\u0085", "😀\u2028\u0085"),
    ],
)
def test_nul_and_lone_surrogates_are_replaced_and_nothing_else(text: str, kept: str) -> None:
    """B068, B090."""
    assert clean_text(text) == kept


@given(text=ANY_TEXT)
@settings(deadline=None, derandomize=True)
def test_clean_text_can_be_encoded_and_is_kept_again_as_it_is(text: str) -> None:
    kept = clean_text(text)

    assert kept.encode().decode() == kept
    assert "\0" not in kept
    assert clean_text(kept) == kept


@given(text=st.text().filter(lambda text: "\0" not in text))
@settings(deadline=None, derandomize=True)
def test_text_without_faults_is_kept_to_the_letter(text: str) -> None:
    assert clean_text(text) == text


def test_every_string_of_free_form_json_is_cleaned_and_a_number_that_is_none_becomes_null() -> None:
    """B068, B069, B090."""
    value = {"a\0": ("b\0", {"c": "\ud83d"}), "d": [float("nan"), 2**70, 1.5, None, True]}

    assert clean_json(value) == {"a\ufffd": ["b\ufffd", {"c": "\ufffd"}], "d": [None, 2**70, 1.5, None, True]}


@pytest.mark.parametrize("value", [{}, {"a": [1, "\\u0000", {"b": None}]}, {"\u2028": "\x01"}])
def test_free_form_json_without_faults_is_kept_as_it_is(value: Any) -> None:
    assert clean_json(value) == value


def test_what_a_model_is_told_of_a_tool_and_an_agent_is_kept_without_nul() -> None:
    """B068."""
    tool = Tool(name="f", description="d\0", parameters={"a\0": "b\0"})
    agent = Agent(model="m\0", instructions="i\0", reasoning={"effort": "\0"}, text={"\0": 1})

    assert (tool.description, tool.parameters) == ("d\ufffd", {"a\ufffd": "b\ufffd"})
    assert (agent.model, agent.instructions) == ("m\ufffd", "i\ufffd")
    assert (agent.reasoning, agent.text) == ({"effort": "\ufffd"}, {"\ufffd": 1})


def test_what_is_said_in_process_is_kept_without_nul() -> None:
    """B068."""
    assert MessageData(content="a\0").content == "a\ufffd"
    assert OutputData(call_id="c", output="a\0").output == "a\ufffd"


@pytest.mark.parametrize(
    "name, kept",
    [
        ("look_up-2", "look_up-2"),
        ("look up", "look_up"),
        ("functions.look", "functions_look"),
        ("é/日", "___"),
        ("look\n", "look_"),
        ("\ud83d", "_"),
        ("", "unnamed"),
        ("x" * 64, "x" * 64),
        ("x" * 65, "x" * 64),
    ],
)
def test_name_is_brought_into_the_form_a_request_may_carry(name: str, kept: str) -> None:
    assert clean_name(name) == kept


@given(name=ANY_TEXT)
@settings(deadline=None, derandomize=True)
def test_every_clean_name_is_a_name(name: str) -> None:
    assert NAME_PATTERN.match(clean_name(name))
    assert clean_name(clean_name(name)) == clean_name(name)


@pytest.mark.parametrize("given_id", ["a", "t:0", "call_1", "terminal 0", "é" * 64, "x" * 64, "{}", "日-😀"])
def test_call_id_of_up_to_64_characters_is_left_as_it_is(given_id: str) -> None:
    """B039."""
    assert clean_call_id(given_id, {}, "fc_1") == given_id


@pytest.mark.parametrize("given_id", ["", "x" * 65, "x" * 94, "taken", "a\0", "\ud83d"])
def test_any_other_call_id_is_replaced(given_id: str) -> None:
    """B032, B035, B039: empty, over 64 characters, used before, or impossible to send."""
    made = clean_call_id(given_id, {"taken": None}, "fc_1")

    assert re.fullmatch(r"call_[0-9a-f]{24}", made)
    assert len(made) <= CALL_ID_MAX


def test_made_call_id_depends_on_the_given_one_and_its_item_alone() -> None:
    """B032, B035, B039."""
    assert clean_call_id("x" * 94, {}, "fc_1") == clean_call_id("x" * 94, {}, "fc_1")
    assert clean_call_id("t:0", {"t:0": 1}, "fc_1") == clean_call_id("t:0", {"t:0": 2, "t:1": 3}, "fc_1")
    assert clean_call_id("", {}, "fc_1") != clean_call_id("", {}, "fc_2")
    assert clean_call_id("t:0", {"t:0": 1}, "fc_1") != clean_call_id("t:0", {"t:0": 1}, "fc_2")


def test_long_call_ids_with_one_beginning_stay_apart() -> None:
    """B039: a hash, no plain cut."""
    made = {clean_call_id("x" * 64 + ending, {}, "fc_1") for ending in ("a" * 30, "b" * 30, "a" * 29, "\ud83d" * 30)}

    assert len(made) == 4


@given(ids=st.lists(ANY_TEXT | st.sampled_from(["", "t:0", "t:1", "x" * 70]), max_size=12))
@settings(deadline=None, derandomize=True)
def test_calls_of_a_session_never_share_an_id(ids: list[str]) -> None:
    taken: dict[str, object] = {}
    for number, given_id in enumerate(ids):
        call_id = clean_call_id(given_id, taken, f"fc_{number}")
        assert call_id not in taken
        assert 0 < len(call_id) <= CALL_ID_MAX
        assert call_id.encode()
        taken[call_id] = None


def make_tools(*names: str, description: str) -> tuple[Tool, ...]:
    return tuple(Tool(name=name, description=description) for name in names)


def test_turn_offers_the_tools_of_agent_and_message() -> None:
    agent, message = make_tools("a", "b", description="agent"), make_tools("c", description="message")

    assert merge_tools(agent, message) == agent + message
    assert merge_tools(agent, ()) == agent
    assert merge_tools((), message) == message
    assert merge_tools((), ()) == ()


def test_tool_of_the_message_wins_on_a_name() -> None:
    agent, message = make_tools("a", "b", "c", description="agent"), make_tools("d", "b", description="message")

    merged = merge_tools(agent, message)

    assert [(tool.name, tool.description) for tool in merged] == [
        ("a", "agent"),
        ("c", "agent"),
        ("d", "message"),
        ("b", "message"),
    ]
