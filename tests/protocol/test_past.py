"""
A transcript given by the client: which items may begin a session, and how calls and outputs must pair.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from agent_harness.errors import InvalidRequest, RequestTooLarge
from agent_harness.protocol.commands import OUTPUT_MAX
from agent_harness.protocol.items import (
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    InputText,
    Item,
    Message,
    OutputText,
    Reasoning,
    Refusal,
    SummaryText,
)
from agent_harness.protocol.past import read_past

NOW = 1_700_000_000


def user(content: Any = "hi", **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": content, **more}


def assistant(content: Any = "yes", **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": content, **more}


def call(call_id: Any = "c1", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}", **more}


def output(call_id: Any = "c1", value: Any = "42", **more: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": value, **more}


def text_part(annotations: Any) -> dict[str, Any]:
    return {"type": "output_text", "text": "t", "annotations": annotations}


def read(*items: Any) -> tuple[Item, ...]:
    return read_past(list(items), NOW)


def refuse(value: Any) -> tuple[str, str | None]:
    with pytest.raises(InvalidRequest) as caught:
        read_past(value, NOW)
    assert caught.value.message
    return caught.value.code, caught.value.param


def without_id(item: Item) -> Item:
    return attrs.evolve(item, id="")


def test_empty_past_is_a_past() -> None:
    assert read_past([], NOW) == ()


def test_every_kind_of_item_is_read_in_order() -> None:
    summary = [{"type": "summary_text", "text": "s"}, {"text": "t"}]

    items = read(user(), {"type": "reasoning", "summary": summary}, assistant(), call(), output(), call("c2"))

    assert [without_id(item) for item in items] == [
        Message(id="", role="user", content=(InputText("hi"),), origin="client", created_at=NOW),
        Reasoning(id="", summary=(SummaryText("s"), SummaryText("t")), status="completed", created_at=NOW),
        Message(id="", role="assistant", content=(OutputText("yes"),), origin="model", created_at=NOW),
        FunctionCall(id="", call_id="c1", name="f", arguments="{}", status="completed", created_at=NOW),
        FunctionCallOutput(id="", call_id="c1", output="42", created_at=NOW),
        FunctionCall(id="", call_id="c2", name="f", arguments="{}", status="action_required", created_at=NOW),
    ]
    assert [item.id.partition("_")[0] for item in items] == ["msg", "rs", "msg", "fc", "fco", "fc"]
    assert len({item.id for item in items}) == 6


def test_origin_may_be_given_back_as_it_was_read() -> None:
    marker, closed = read(user(origin="harness"), call(), output(origin="harness", is_error=True))[::2]

    assert isinstance(marker, Message)
    assert isinstance(closed, FunctionCallOutput)
    assert (marker.origin, closed.origin, closed.is_error) == ("harness", "harness", True)


def test_content_may_be_parts() -> None:
    image = {"type": "input_image", "file_id": "f"}
    annotation = {"type": "url_citation", "url": "u"}
    said = [{"type": "output_text", "text": "t", "annotations": [annotation]}, {"type": "refusal", "refusal": "no"}]

    question, answer, _, result = read(user([image]), assistant(said), call(), output(value=[image]))

    assert isinstance(question, Message)
    assert isinstance(answer, Message)
    assert isinstance(result, FunctionCallOutput)
    assert question.content == (InputImage(file_id="f"),)
    assert answer.content == (OutputText("t", (annotation,)), Refusal("no"))
    assert result.output == (InputImage(file_id="f"),)


@pytest.mark.parametrize(
    "entry, kept",
    [
        (user("a\0"), (InputText("a\ufffd"),)),
        (user([{"type": "input_text", "text": "a\0"}]), (InputText("a\ufffd"),)),
        (assistant("a\0"), (OutputText("a\ufffd"),)),
        (assistant([{"type": "output_text", "text": "a\0"}]), (OutputText("a\ufffd"),)),
        (assistant([{"type": "refusal", "refusal": "a\0"}]), (Refusal("a\ufffd"),)),
    ],
)
def test_nul_in_a_message_becomes_the_replacement_character(entry: Any, kept: Any) -> None:
    """B068."""
    (message,) = read(entry)

    assert isinstance(message, Message)
    assert message.content == kept


def test_nul_in_outputs_and_summaries_becomes_the_replacement_character() -> None:
    """B068."""
    _, text, _, parts, reasoning = read(
        call(),
        output(value="a\0"),
        call("c2"),
        output("c2", [{"type": "input_text", "text": "a\0"}]),
        {"type": "reasoning", "summary": [{"text": "a\0"}]},
    )

    assert isinstance(text, FunctionCallOutput)
    assert isinstance(parts, FunctionCallOutput)
    assert isinstance(reasoning, Reasoning)
    assert (text.output, parts.output) == ("a\ufffd", (InputText("a\ufffd"),))
    assert reasoning.summary == (SummaryText("a\ufffd"),)


def test_call_has_the_status_that_its_output_gives_it() -> None:
    items = read(call("c1"), call("c2"), call("c3"), output("c2", None, is_error=True), user(), output("c1"))

    assert [item.status for item in items] == [
        "completed", "failed", "action_required", "completed", "completed", "completed",
    ]  # fmt: skip
    assert isinstance(items[3], FunctionCallOutput)
    assert items[3].output == ""


@pytest.mark.parametrize("call_id", ["a", "x" * 64, "é" * 64, "t:0"])
def test_call_id_is_kept_as_it_is_given(call_id: str) -> None:
    """B039."""
    first, second = read(call(call_id), output(call_id))

    assert isinstance(first, FunctionCall)
    assert isinstance(second, FunctionCallOutput)
    assert first.call_id == second.call_id == call_id


@pytest.mark.parametrize("arguments", ["{}", ' {"a": 1.0}', '{"t":"\\u0000é"}'])
def test_arguments_of_an_object_are_kept_to_the_letter(arguments: str) -> None:
    (item,) = read(call(arguments=arguments))

    assert isinstance(item, FunctionCall)
    assert item.arguments == arguments


@pytest.mark.parametrize("arguments", ["", "null", "[1]", "3", '{"a": ', '{"t":"a\nb"}', '"{}"', '{"a": NaN}'])
def test_arguments_of_no_object_are_refused(arguments: str) -> None:
    """B054, B057, B058, B059: here it is the client's to mend."""
    assert refuse([call(arguments=arguments)]) == ("invalid_value", "items[0].arguments")


@pytest.mark.parametrize(
    "items, param",
    [
        ([output()], "items[0].call_id"),
        ([output(), call()], "items[0].call_id"),
        ([call(), output("c2")], "items[1].call_id"),
        ([call(), output(), output()], "items[2].call_id"),
        ([call(), output(), output(value="other")], "items[2].call_id"),
        ([call(), call()], "items[1].call_id"),
        ([call(), output(), user(), call(), output()], "items[3].call_id"),
    ],
)
def test_calls_and_outputs_that_do_not_pair_are_refused(items: Any, param: str) -> None:
    """B003, B012, B032."""
    assert refuse(items) == ("invalid_value", param)


@pytest.mark.parametrize(
    "entry, code, param",
    [
        ("text", "invalid_value", ""),
        (None, "invalid_value", ""),
        ([], "invalid_value", ""),
        ({}, "missing_field", ".type"),
        ({"type": "item_reference", "id": "msg_1"}, "invalid_value", ".type"),
        ({"type": ["message"]}, "invalid_value", ".type"),
        ({"type": None}, "invalid_value", ".type"),
        ({"type": "message", "content": "t"}, "missing_field", ".role"),
        ({"type": "message", "role": "user"}, "missing_field", ".content"),
        ({"type": "message", "role": "assistant"}, "missing_field", ".content"),
        ({"type": "message", "role": "system", "content": "t"}, "invalid_value", ".role"),
        ({"type": "message", "role": ["user"], "content": "t"}, "invalid_value", ".role"),
        (user(1), "invalid_value", ".content"),
        (user(None), "invalid_value", ".content"),
        (user([]), "invalid_value", ".content"),
        (user([{"type": "output_text", "text": "t"}]), "invalid_value", ".content[0].type"),
        (assistant([{"type": "input_text", "text": "t"}]), "invalid_value", ".content[0].type"),
        (assistant([text_part("")]), "invalid_value", ".content[0].annotations"),
        (assistant([text_part({})]), "invalid_value", ".content[0].annotations"),
        (assistant([text_part(["a"])]), "invalid_value", ".content[0].annotations[0]"),
        (assistant([{"type": "refusal"}]), "missing_field", ".content[0].refusal"),
        (user(origin="someone"), "invalid_value", ".origin"),
        (user(id="msg_1"), "unknown_field", ".id"),
        (user(status="completed"), "unknown_field", ".status"),
        (assistant(response_id=None), "unknown_field", ".response_id"),
        (call(created_at=1), "unknown_field", ".created_at"),
        (call(None), "invalid_value", ".call_id"),
        (call(""), "invalid_value", ".call_id"),
        (call("x" * 65), "invalid_value", ".call_id"),
        (call(name="look up"), "invalid_value", ".name"),
        (call(name=""), "invalid_value", ".name"),
        (call(name="x" * 65), "invalid_value", ".name"),
        (call(arguments={"a": 1}), "invalid_value", ".arguments"),
        ({"type": "function_call", "call_id": "c", "name": "f"}, "missing_field", ".arguments"),
        ({"type": "function_call_output", "call_id": "c"}, "missing_field", ".output"),
        (output(value=42), "invalid_value", ".output"),
        (output(value=[{"type": "output_text", "text": "t"}]), "invalid_value", ".output[0].type"),
        (output(is_error=1), "invalid_value", ".is_error"),
        ({"type": "reasoning", "summary": "s"}, "invalid_value", ".summary"),
        ({"type": "reasoning", "summary": {}}, "invalid_value", ".summary"),
        ({"type": "reasoning", "summary": [{"text": 1}]}, "invalid_value", ".summary[0].text"),
        ({"type": "reasoning", "summary": [{"type": "text", "text": ""}]}, "invalid_value", ".summary[0].type"),
        ({"type": "reasoning", "encrypted_content": "e"}, "unknown_field", ".encrypted_content"),
    ],
)  # fmt: skip
def test_bad_item_is_refused_with_its_place(entry: Any, code: str, param: str) -> None:
    assert refuse([user(), call("earlier"), entry]) == (code, f"items[2]{param}")


@pytest.mark.parametrize("value", [{}, "items", 1, True])
def test_past_that_is_no_array_is_refused(value: Any) -> None:
    assert refuse(value) == ("invalid_value", "items")


@pytest.mark.parametrize("parts", [False, True])
def test_output_over_the_limit_is_too_large_here_too(parts: bool) -> None:
    """B066."""
    text = "x" * (OUTPUT_MAX + 1)
    with pytest.raises(RequestTooLarge) as caught:
        read(call(), output(value=[{"type": "input_text", "text": text}] if parts else text))

    assert caught.value.param == "items[1].output"
