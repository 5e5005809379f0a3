"""
The ``items`` of a session that is made from a transcript: flat shapes without what we give (id, status, times).
"""

from typing import Any, Literal

import attrs

from agent_harness.errors import InvalidRequest
from agent_harness.protocol.commands import InputPart
from agent_harness.protocol.decode import read
from agent_harness.protocol.items import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    Message,
    Origin,
    OutputText,
    Part,
    Reasoning,
    Refusal,
    SummaryText,
    make_id,
)
from agent_harness.protocol.outputs import check_output
from agent_harness.protocol.tools import CALL_ID_MAX, NAME_PATTERN, clean_text, read_arguments

__all__ = [
    "PastAssistantMessage",
    "PastCall",
    "PastItem",
    "PastOutput",
    "PastReasoning",
    "PastUserMessage",
    "read_past",
]


@attrs.frozen(kw_only=True)
class PastUserMessage:
    """
    What a user said before.
    """

    role: Literal["user"]
    content: str | tuple[InputPart, ...]
    origin: Origin = "client"
    type: Literal["message"] = "message"


@attrs.frozen(kw_only=True)
class PastAssistantMessage:
    """
    What the model said before.
    """

    role: Literal["assistant"]
    content: str | tuple[OutputText | Refusal, ...]
    origin: Origin = "model"
    type: Literal["message"] = "message"


@attrs.frozen(kw_only=True)
class PastCall:
    """
    A call that was made before.
    """

    call_id: str
    name: str
    arguments: str
    type: Literal["function_call"] = "function_call"


@attrs.frozen(kw_only=True)
class PastOutput:
    """
    What an earlier call was answered; None is the empty text.
    """

    call_id: str
    output: str | tuple[InputPart, ...] | None
    is_error: bool = False
    origin: Origin = "client"
    type: Literal["function_call_output"] = "function_call_output"


@attrs.frozen(kw_only=True)
class PastReasoning:
    """
    The summary of earlier reasoning.
    """

    summary: tuple[SummaryText, ...] = ()
    type: Literal["reasoning"] = "reasoning"


PastItem = PastUserMessage | PastAssistantMessage | PastCall | PastOutput | PastReasoning

_SHAPES: dict[str, Any] = {"function_call": PastCall, "function_call_output": PastOutput, "reasoning": PastReasoning}


def read_past(value: Any, now: int) -> tuple[Item, ...]:
    """
    *value* as items, dated *now*. A call without output has the status ``action_required``.

    Raises:
        RequestTooLarge: an output is over its limit.
        InvalidRequest: an item's shape, an output without an earlier call, a call_id used twice, arguments that are no
            JSON object; ``param`` says where.
    """
    if not isinstance(value, list):
        raise InvalidRequest("items is an array.", param="items")
    items = [
        _make_item(_read_shape(entry, f"items[{index}]"), now, f"items[{index}]") for index, entry in enumerate(value)
    ]
    _check_pairs(items)
    outputs = {item.call_id: item for item in items if isinstance(item, FunctionCallOutput)}
    return tuple(_close_answered(item, outputs) for item in items)


def _read_shape(entry: Any, path: str) -> Any:
    if not isinstance(entry, dict):
        raise InvalidRequest("An item is an object.", param=path)
    if "type" not in entry:
        raise InvalidRequest(f"{path}.type is missing.", code="missing_field", param=f"{path}.type")
    kind = entry["type"]
    if kind == "message":
        return read(entry, PastAssistantMessage if entry.get("role") == "assistant" else PastUserMessage, path)
    if not isinstance(kind, str) or kind not in _SHAPES:
        known = ", ".join(("message", *_SHAPES))
        raise InvalidRequest(f"An item has one of the types {known}.", param=f"{path}.type")
    return read(entry, _SHAPES[kind], path)


def _make_item(shape: Any, now: int, path: str) -> Item:
    match shape:
        case PastUserMessage() | PastAssistantMessage():
            return Message(
                id=make_id("msg"),
                role=shape.role,
                content=_make_content(shape),
                origin=shape.origin,
                created_at=now,
            )
        case PastCall():
            return _make_call(shape, now, path)
        case PastOutput():
            output = "" if shape.output is None else shape.output
            check_output(output, f"{path}.output")
            return FunctionCallOutput(
                id=make_id("fco"),
                call_id=shape.call_id,
                output=output,
                is_error=shape.is_error,
                origin=shape.origin,
                created_at=now,
            )
        case _:
            return Reasoning(id=make_id("rs"), summary=shape.summary, status="completed", created_at=now)


def _make_content(shape: PastUserMessage | PastAssistantMessage) -> tuple[Part, ...]:
    if not isinstance(shape.content, str):
        return shape.content
    return (InputText(shape.content),) if shape.role == "user" else (OutputText(shape.content),)


def _make_call(shape: PastCall, now: int, path: str) -> FunctionCall:
    if not 0 < len(shape.call_id) <= CALL_ID_MAX:
        raise InvalidRequest(f"A call_id has 1 to {CALL_ID_MAX} characters.", param=f"{path}.call_id")
    if clean_text(shape.call_id) != shape.call_id:
        # Replaced, it would be another id than the client's.
        raise InvalidRequest("A call_id holds no U+0000 and no half characters.", param=f"{path}.call_id")
    if not NAME_PATTERN.match(shape.name):
        raise InvalidRequest("A function's name has 1 to 64 of A-Z a-z 0-9 _ -.", param=f"{path}.name")
    arguments, problem = read_arguments(shape.arguments)
    if problem is not None or arguments != shape.arguments:
        raise InvalidRequest("Arguments are the text of a JSON object.", param=f"{path}.arguments")
    return FunctionCall(
        id=make_id("fc"),
        call_id=shape.call_id,
        name=shape.name,
        arguments=arguments,
        status="action_required",
        created_at=now,
    )


def _check_pairs(items: list[Item]) -> None:
    called: set[str] = set()
    answered: set[str] = set()
    for index, item in enumerate(items):
        param = f"items[{index}].call_id"
        if isinstance(item, FunctionCall):
            if item.call_id in called:
                raise InvalidRequest("Each call has its own call_id.", param=param)
            called.add(item.call_id)
        elif isinstance(item, FunctionCallOutput):
            if item.call_id not in called:
                raise InvalidRequest("No call with this call_id stands before this output.", param=param)
            if item.call_id in answered:
                raise InvalidRequest("This call has an output already.", param=param)
            answered.add(item.call_id)


def _close_answered(item: Item, outputs: dict[str, FunctionCallOutput]) -> Item:
    if not isinstance(item, FunctionCall) or item.call_id not in outputs:
        return item
    return attrs.evolve(item, status="failed" if outputs[item.call_id].is_error else "completed")
