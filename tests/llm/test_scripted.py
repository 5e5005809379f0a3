"""
Models without a model: the script is followed step by step, and the demo answers from what it was sent.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import orjson
import pytest
from jsonschema import Draft202012Validator

from agent_harness.errors import ModelError
from agent_harness.llm.base import (
    ArgumentsDelta,
    Delta,
    Ended,
    ItemAdded,
    ItemDone,
    Request,
    SummaryDelta,
    TextDelta,
)
from agent_harness.llm.scripted import DemoModel, ScriptedModel, Step, call, say, think
from agent_harness.protocol.blocks import Block
from agent_harness.protocol.items import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Message,
    OutputText,
    Reasoning,
    Usage,
)
from agent_harness.protocol.tools import Tool

WAIT_S = 5.0
NOTHING = Usage(input_tokens=0, output_tokens=0, total_tokens=0)


def user(text: str) -> Block:
    content = (InputText(text),)
    return Block((Message(id="msg_q", role="user", content=content, origin="client", created_at=0),))


def answer(text: str) -> Block:
    content = (OutputText(text),)
    return Block((Message(id="msg_a", role="assistant", content=content, origin="model", created_at=0),))


def answered_call(output: Any, name: str = "look_up", call_id: str = "c1", *, is_error: bool = False) -> Block:
    item = FunctionCall(id="fc", call_id=call_id, name=name, arguments='{"a": 1}', status="completed", created_at=0)
    result = FunctionCallOutput(id="fco", call_id=call_id, output=output, is_error=is_error, created_at=0)
    return Block((Reasoning(id="rs", status="completed", created_at=0), item), (result,))


def ask(*blocks: Block, **more: Any) -> Request:
    return Request(session_id="sess_1", provider="default", model=None, blocks=blocks or (user("hi"),), **more)


async def collect(model: ScriptedModel, request: Request | None = None) -> list[Delta]:
    async with asyncio.timeout(WAIT_S):
        return [delta async for delta in model.stream(request or ask())]


async def text_of(model: ScriptedModel, request: Request) -> str:
    return "".join(delta.delta for delta in await collect(model, request) if isinstance(delta, TextDelta))


async def call_of(schema: Any) -> tuple[str, Any]:
    """
    The name and the arguments of the demo's call to a tool with that *schema*.
    """
    deltas = await collect(DemoModel(), ask(tools=(Tool(name="look_up", parameters=schema),)))
    added, *middle, done, ended = deltas
    assert isinstance(added, ItemAdded)
    assert isinstance(done, ItemDone)
    assert isinstance(ended, Ended)
    written = "".join(delta.delta for delta in middle if isinstance(delta, ArgumentsDelta))
    assert done.arguments == written
    return added.name, orjson.loads(written)


def test_step_of_text_is_one_message() -> None:
    assert say("Hel", "lo").parts == (ItemAdded(0, "message"), TextDelta(0, "Hel"), TextDelta(0, "lo"), ItemDone(0))


def test_step_of_a_call_gives_its_arguments_in_two_deltas() -> None:
    assert call("f", '{"a":1}', "c1").parts == (
        ItemAdded(0, "function_call", "c1", "f"),
        ArgumentsDelta(0, '{"a'),
        ArgumentsDelta(0, '":1}'),
        ItemDone(0, arguments='{"a":1}'),
    )


def test_step_of_thought_holds_its_summary_and_what_is_hidden() -> None:
    assert think("hm", {"id": "x"}).parts == (
        ItemAdded(0, "reasoning"),
        SummaryDelta(0, "hm"),
        ItemDone(0, hidden={"id": "x"}),
    )


def test_steps_add_up_and_their_items_count_on() -> None:
    gate = asyncio.Event()
    failure = ModelError("m", code="rate_limited")

    step = think("hm") + say("text") + Step((gate, failure)) + call("f") + Step((Ended("content_filter"),))

    assert [part.index for part in step.parts if isinstance(part, ItemAdded)] == [0, 1, 2]
    assert [part.index for part in step.parts if isinstance(part, ItemDone)] == [0, 1, 2]
    assert [part.index for part in step.parts if isinstance(part, TextDelta | ArgumentsDelta)] == [1, 2, 2]
    assert gate in step.parts
    assert failure in step.parts
    assert step.parts[-1] == Ended("content_filter")


async def test_answers_come_in_the_order_of_the_script_and_end_well() -> None:
    model = ScriptedModel([say("one"), call("f", "{}", "c1") + call("g")])

    assert await collect(model) == [*say("one").parts, Ended(usage=NOTHING)]
    assert await collect(model) == [*(call("f", "{}", "c1") + call("g")).parts, Ended(usage=NOTHING)]


async def test_step_that_brings_its_end_gets_no_other() -> None:
    ended = Ended("max_output_tokens", Usage(1, 2, 3))

    assert await collect(ScriptedModel([say("cut") + Step((ended,))])) == [*say("cut").parts, ended]


async def test_error_is_raised_where_it_stands() -> None:
    failure = ModelError("wait", code="rate_limited")
    model = ScriptedModel([Step((*say("Hel").parts[:2], failure)), failure, say("fine")])

    stream = model.stream(ask())
    assert [await anext(stream), await anext(stream)] == [ItemAdded(0, "message"), TextDelta(0, "Hel")]
    with pytest.raises(ModelError) as caught:
        await anext(stream)
    assert caught.value is failure
    with pytest.raises(ModelError, match="wait"):
        await collect(model)
    assert await text_of(model, ask()) == "fine"


async def test_script_without_an_answer_left_says_so() -> None:
    model = ScriptedModel([say("only")])
    await collect(model)

    with pytest.raises(ModelError, match="model call 2") as caught:
        await collect(model)
    assert caught.value.code == "provider_rejected"


async def test_step_may_be_made_from_the_request_and_every_request_is_kept() -> None:
    model = ScriptedModel([lambda request: say(f"{request.session_id}!"), say("two")])
    first, second = ask(), ask(user("again"))

    assert await text_of(model, first) == "sess_1!"
    await collect(model, second)
    assert model.requests == [first, second]


async def test_event_of_a_script_is_waited_for() -> None:
    gate = asyncio.Event()
    step = say("Hel", "lo")
    stream = ScriptedModel([Step((*step.parts[:2], gate, *step.parts[2:]))]).stream(ask())
    async with asyncio.timeout(WAIT_S):
        assert [await anext(stream), await anext(stream)] == [ItemAdded(0, "message"), TextDelta(0, "Hel")]
        waiting = asyncio.ensure_future(anext(stream))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        gate.set()
        assert await waiting == TextDelta(0, "lo")
    await stream.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("model", [ScriptedModel([say("a", "b", "c")]), DemoModel()])
async def test_model_gives_way_to_the_loop_before_each_delta(model: ScriptedModel) -> None:
    """Whatever a client can do between two deltas, it can do in a test."""
    passed = 0

    async def tick() -> None:
        nonlocal passed
        while True:
            passed += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    seen = [0]
    async with asyncio.timeout(WAIT_S):
        async for _ in model.stream(ask()):
            seen.append(passed)
    ticking.cancel()

    assert len(seen) > 4
    assert all(before < after for before, after in pairwise(seen))


async def test_stream_can_be_closed_at_any_moment() -> None:
    stream = ScriptedModel([say("a", "b")]).stream(ask())
    assert await anext(stream) == ItemAdded(0, "message")

    await stream.aclose()  # type: ignore[attr-defined]

    with pytest.raises(StopAsyncIteration):
        await anext(stream)


def test_body_shows_the_items_of_the_request() -> None:
    request = ask(user("q"), answered_call("42"), answer("a"), instructions="be", tools=(Tool(name="f"),))

    assert orjson.loads(ScriptedModel().body(request)) == {
        "model": None,
        "instructions": "be",
        "input": [
            {"type": "message", "role": "user", "content": "q"},
            {"type": "reasoning"},
            {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "42"},
            {"type": "message", "role": "assistant", "content": "a"},
        ],
        "tools": ["f"],
    }


@pytest.mark.parametrize("output", ["42", (InputText("4"), InputText("2"))])
@pytest.mark.parametrize("is_error, read", [(False, "42"), (True, "Error: 42")])
def test_output_is_read_to_the_letter_and_an_error_is_marked(output: Any, is_error: bool, read: str) -> None:
    """B071."""
    body = orjson.loads(ScriptedModel().body(ask(answered_call(output, is_error=is_error))))

    assert body["input"][-1]["output"] == read


async def test_demo_calls_the_first_tool_it_is_offered() -> None:
    deltas = await collect(DemoModel(), ask(tools=(Tool(name="first"), Tool(name="second"))))

    assert [delta.name for delta in deltas if isinstance(delta, ItemAdded)] == ["first"]
    assert deltas[-1] == Ended(usage=Usage(input_tokens=1, output_tokens=4, total_tokens=5))


@pytest.mark.parametrize(
    "schema, arguments",
    [
        (None, {}),
        ({}, {}),
        ({"type": "object"}, {}),
        ({"type": "object", "properties": {}}, {}),
        ({"additionalProperties": True}, {}),
        ({"properties": {"a": {"type": "string"}}}, {"a": "example"}),
        (
            {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["b"]},
            {"b": 1},
        ),
        ({"type": "object", "properties": {"n": {"type": "integer", "description": "the id, such as 42"}}}, {"n": 42}),
        ({"type": "object", "properties": {"n": {"type": "number", "minimum": 7}}}, {"n": 7}),
        ({"type": "object", "properties": {"n": {"type": ["integer", "null"]}}}, {"n": 1}),
        ({"type": "object", "properties": {"e": {"enum": ["x", "y"]}, "d": {"default": [1]}}}, {"e": "x", "d": [1]}),
        (
            {"type": "object", "properties": {"b": {"type": "boolean"}, "l": {"type": "array"}, "z": {"type": "null"}}},
            {"b": True, "l": [], "z": None},
        ),
        ({"type": "object", "properties": {"o": {"properties": {"i": {"type": "integer"}}}}}, {"o": {"i": 1}}),
        ({"type": "object", "properties": {"a": {}, "b": True}}, {"a": "example", "b": "example"}),
        ({"type": "object", "properties": {"never": False}}, {"never": "example"}),
        ({"type": "object", "required": ["unsaid"]}, {"unsaid": "example"}),
    ],
)  # fmt: skip
async def test_demo_makes_arguments_from_the_schema(schema: Any, arguments: Any) -> None:
    assert await call_of(schema) == ("look_up", arguments)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}},
        {"type": "object", "properties": {"a": {"anyOf": [False, {"const": "x"}]}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"const": None}, "b": {"const": {"c": 1}}}},
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/A", "description": "one"}},
            "$defs": {"A": {"allOf": [{"$ref": "#/$defs/B"}, {"properties": {"n": {"type": "integer"}}}]},
                      "B": {"type": "object", "properties": {"e": {"enum": [3, 4]}}, "required": ["e", "n"]}},
        },
        {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {"b": {"type": "boolean"}}}}},
        {
            "type": "object",
            "properties": {"next": {"$ref": "#/$defs/Node"}},
            "$defs": {"Node": {"type": "object", "required": ["next", "kids"], "properties": {
                "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/Node"}}}}},
        },
        {"oneOf": [{"type": "object", "required": ["x"], "properties": {"x": {"type": "array", "minItems": 2}}}]},
        {"type": "object", "required": ["a"], "additionalProperties": {"type": "integer"}},
        {"type": "object", "required": ["a", "b"]},
        {"type": "object", "properties": {"a": {"type": "object", "required": ["b"]}}},
        {"type": "object", "properties": {"a": {"type": "array", "minItems": 3, "maxItems": 3,
                                                "prefixItems": [{"type": "integer"}, {"type": "boolean"}],
                                                "items": {"enum": ["x"]}}}},
        {"type": "object", "properties": {"a": {"type": "string", "minLength": 9}, "b": {"type": "string",
                                                                                     "maxLength": 2}}},
        {"type": "object", "properties": {"a": {"type": "string", "format": "date"}}},
        *(
            {"type": "object", "properties": {"n": {"type": kind, **bounds}}}
            for kind, bounds in [
                ("integer", {"minimum": 5, "maximum": 9, "description": "such as 42"}),
                ("integer", {"minimum": 2.5}),
                ("integer", {"maximum": -3.5}),
                ("integer", {"exclusiveMinimum": 1, "exclusiveMaximum": 3}),
                ("integer", {"exclusiveMaximum": 0}),
                ("integer", {"minimum": 7, "multipleOf": 5}),
                ("number", {"exclusiveMinimum": 1, "exclusiveMaximum": 2}),
                ("number", {"minimum": 0, "maximum": 0.5}),
                ("number", {"exclusiveMinimum": 0, "maximum": 0.5}),
            ]
        ),
    ],
)  # fmt: skip
async def test_demo_makes_arguments_that_fit(schema: Any) -> None:
    _, arguments = await call_of(schema)

    assert list(Draft202012Validator(schema).iter_errors(arguments)) == []


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/none"},
        {"$ref": 5},
        {"type": "object", "properties": {"a": {"$ref": "https://example.com/schema"}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "object", "properties": 5, "required": "a"},
        {"type": "object", "properties": {"a": {"type": "integer", "minimum": "low"}}},
        {"type": "object", "properties": {"a": {"type": "integer", "description": "9" * 5000}}},
        {"type": "object", "properties": {"a": {"const": 2**70}}},
        {"type": "object", "required": True},
        {"type": "object", "properties": {"a": {"anyOf": [False]}}},
        {"type": "object", "properties": {"a": {"type": "string", "format": []}}},
        {"type": {}, "allOf": 5},
        {"type": "object", "properties": {name: {"$ref": "#"} for name in "abcd"}, "required": list("abcd")},
        {"type": "object", "properties": {"a": {"type": "array", "minItems": 10**9, "items": {"$ref": "#"}}}},
    ],
)
async def test_demo_calls_with_an_object_whatever_the_schema(schema: Any) -> None:
    _, arguments = await call_of(schema)

    assert isinstance(arguments, dict)


async def test_demo_answers_with_what_the_tool_returned() -> None:
    request = ask(user("q"), answered_call("  blue\n and green"), tools=(Tool(name="look_up"),))

    assert await text_of(DemoModel(), request) == "look_up returned   blue\n and green"


async def test_demo_recalls_a_result_of_an_earlier_turn_with_no_tool_attached() -> None:
    request = ask(user("q"), answered_call("red"), answered_call("blue", "paint", "c2"), answer("a"), user("again?"))

    assert await text_of(DemoModel(), request) == "I remember: paint returned blue"


async def test_demo_says_so_where_there_is_nothing_to_look_up() -> None:
    text = await text_of(DemoModel(), ask(user("one"), answer("a"), user("two?")))

    assert "'two?'" in text
    assert "No tool" in text


@pytest.mark.parametrize(
    "blocks, choice",
    [((user("q"),), "none"), ((user("q"), answered_call("42")), None), ((user("q"), answered_call("42")), "required")],
)
async def test_demo_calls_once_a_message_and_never_against_the_choice(blocks: Any, choice: Any) -> None:
    deltas = await collect(DemoModel(), ask(*blocks, tools=(Tool(name="f"),), tool_choice=choice))

    assert [delta.type for delta in deltas if isinstance(delta, ItemAdded)] == ["message"]


@pytest.mark.parametrize("model, name", [(ScriptedModel(), "scripted"), (DemoModel(), "demo")])
def test_model_has_a_name_of_its_own(model: ScriptedModel, name: str) -> None:
    assert model.default_model == name
