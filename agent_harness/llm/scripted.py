"""
Models without a model: one that follows a script, for tests, and the demo's, which needs neither key nor network.

Both give way to the event loop between two deltas, so that whatever a client can do between them, it can do in a test.
"""

import asyncio
import math
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import attrs
import orjson

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
from agent_harness.protocol.items import FunctionCall, FunctionCallOutput, InputText, Message, OutputText, Usage
from agent_harness.protocol.tools import Tool

__all__ = ["DemoModel", "ScriptedModel", "Step", "call", "say", "think"]

OPTIONAL_DEPTH = 4
"""How deep in a demo argument what may be left out still stands."""

MAX_DEPTH = 16
"""How deep a demo argument is at most: a schema may hold itself."""

MAX_ITEMS, MAX_TEXT, MAX_VALUES = 20, 10_000, 1_000
"""How long lists and texts of a demo argument are at most, and how many values are in it."""

_MADE_OF = ("$ref", "allOf", "anyOf", "oneOf")

_TELLING = {
    "properties": "object",
    "required": "object",
    "items": "array",
    "prefixItems": "array",
    "minimum": "number",
    "maximum": "number",
}
"""What the type is where only other keys tell it."""

_FORMATS = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "email": "someone@example.com",
    "uri": "https://example.com",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
}


@attrs.frozen
class Step:
    """
    One answer of a script: deltas in order; an error is raised where it stands, an event is waited for.
    """

    parts: tuple[Delta | ModelError | asyncio.Event, ...]

    def __add__(self, other: "Step") -> "Step":
        """
        Both, one behind the other; the items of *other* get the next indexes.
        """
        first = 1 + max((part.index for part in self.parts if isinstance(part, ItemAdded)), default=-1)
        return Step(self.parts + tuple(_shift(part, first) for part in other.parts))


def _shift(part: Any, by: int) -> Any:
    return attrs.evolve(part, index=part.index + by) if hasattr(part, "index") and attrs.has(type(part)) else part


def say(text: str, *pieces: str) -> Step:
    """
    A message; *pieces* are further deltas.
    """
    deltas = [TextDelta(0, piece) for piece in (text, *pieces)]
    return Step((ItemAdded(0, "message"), *deltas, ItemDone(0)))


def call(name: str, arguments: str = "{}", call_id: str = "") -> Step:
    """
    A function call, its arguments in two deltas.
    """
    middle = len(arguments) // 2
    deltas = [ArgumentsDelta(0, piece) for piece in (arguments[:middle], arguments[middle:])]
    return Step((ItemAdded(0, "function_call", call_id, name), *deltas, ItemDone(0, arguments=arguments)))


def think(summary: str, hidden: Mapping[str, Any] | None = None) -> Step:
    """
    Reasoning with a summary.
    """
    return Step((ItemAdded(0, "reasoning"), SummaryDelta(0, summary), ItemDone(0, hidden=hidden)))


class ScriptedModel:
    """
    Answers request after request from a script, and keeps the requests.

    Args:
        steps: one answer each: a `Step`, an error, or a function of the request that makes one of them. An answer
            without an `Ended` ends well.
    """

    def __init__(self, steps: Iterable[Step | ModelError | Callable[[Request], Step]] = ()) -> None:
        self.default_model = "scripted"
        self.steps = deque(steps)
        self.requests: list[Request] = []

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        """
        The next step of the script.

        Raises:
            ModelError: the script says so, or has no step left (``provider_rejected``).
        """
        self.requests.append(request)
        if not self.steps:
            message = f"The script has no answer left for model call {len(self.requests)}."
            raise ModelError(message, code="provider_rejected")
        step = self.steps.popleft()
        if callable(step):
            step = step(request)
        parts = (step,) if isinstance(step, ModelError) else step.parts
        for part in parts:
            await asyncio.sleep(0)
            if isinstance(part, ModelError):
                raise part
            if isinstance(part, asyncio.Event):
                await part.wait()
            else:
                yield part
        if not any(isinstance(part, Ended) for part in parts):
            await asyncio.sleep(0)
            yield Ended(usage=Usage(input_tokens=0, output_tokens=0, total_tokens=0))

    def body(self, request: Request) -> bytes:
        """
        The request's items in a dialect of its own: there is no wire.
        """
        items = [_describe(item) for block in request.blocks for item in (*block.items, *block.outputs)]
        tools = [tool.name for tool in request.tools]
        return orjson.dumps(
            {"model": request.model, "instructions": request.instructions, "input": items, "tools": tools}
        )


class DemoModel(ScriptedModel):
    """
    Calls the first tool it is offered, with arguments made from its schema; answers from what the transcript holds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.default_model = "demo"

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        """
        A call, if a tool is offered and none was made since the last user message; else an answer.
        """
        last = request.blocks[-1]
        may_call = request.tools and request.tool_choice != "none" and last.is_user
        step = _call_tool(request.tools[0]) if may_call else say(*_split(_answer(request)))
        for part in step.parts:
            await asyncio.sleep(0.02)
            assert not isinstance(part, ModelError | asyncio.Event)
            yield part
        await asyncio.sleep(0)
        told, written = len(request.blocks), len(step.parts)
        yield Ended(usage=Usage(input_tokens=told, output_tokens=written, total_tokens=told + written))


def _describe(item: Any) -> dict[str, Any]:
    if isinstance(item, Message):
        return {"type": "message", "role": item.role, "content": _text_of(item)}
    if isinstance(item, FunctionCall):
        return {"type": "function_call", "call_id": item.call_id, "name": item.name, "arguments": item.arguments}
    if isinstance(item, FunctionCallOutput):
        return {"type": "function_call_output", "call_id": item.call_id, "output": _output_text(item)}
    return {"type": "reasoning"}


def _call_tool(tool: Tool) -> Step:
    return call(tool.name, _write_example(tool.parameters))


def _write_example(schema: Any) -> str:
    """
    The text of an object that fits *schema*; an empty one where that is more than this can tell.
    """
    try:
        arguments = _example(schema or {}, _Root(schema))
        return orjson.dumps(arguments if isinstance(arguments, Mapping) else {}).decode()
    except Exception:  # clients may send any schema, and the demo is no place to judge them
        return "{}"


@attrs.define
class _Root:
    """
    The schema that references are of, and how many values may still be made.
    """

    schema: Any
    left: int = MAX_VALUES


def _example(schema: Any, root: _Root, depth: int = 0) -> Any:
    """
    A small value that fits a JSON schema. Patterns and ``not`` are not heeded.

    Raises:
        Exception: the schema is none, or the value would not be small.
    """
    root.left -= 1
    if root.left < 0:
        raise ValueError("too many values")
    if depth > MAX_DEPTH or not isinstance(schema, Mapping):  # `true` and `false` are schemas too
        return None if depth > MAX_DEPTH else "example"
    schema = _flatten(schema, root, depth)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    if "default" in schema:
        return schema["default"]
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind is None:
        kind = next((kind for key, kind in _TELLING.items() if key in schema), "string")
    if kind == "object":
        return _object_example(schema, root, depth)
    if kind == "array":
        count = min(int(schema.get("minItems", 0)), MAX_ITEMS)
        first = list(schema.get("prefixItems", ()))[:count]
        kinds = [*first, *[schema.get("items", {})] * (count - len(first))]
        return [_example(kind, root, depth + 1) for kind in kinds]
    if kind in ("integer", "number"):
        return _number_in(schema, whole=kind == "integer")
    if kind == "string":
        text = _FORMATS.get(schema.get("format", ""), "example")
        return text.ljust(min(int(schema.get("minLength", 0)), MAX_TEXT), "e")[: schema.get("maxLength")]
    return True if kind == "boolean" else None


def _flatten(schema: Mapping[str, Any], root: _Root, depth: int) -> Mapping[str, Any]:
    """
    *schema* with what it refers to and all of ``allOf`` in it, and one of its alternatives.
    """
    for _ in range(MAX_DEPTH):
        rest = {key: value for key, value in schema.items() if key not in _MADE_OF}
        parts = list(schema.get("allOf") or ())
        if "$ref" in schema:
            parts.append(_resolve(schema["$ref"], root.schema))
        for key in ("anyOf", "oneOf"):
            if schema.get(key):
                parts.append(_choose(schema[key], depth))
        if not parts:
            return schema
        for part in parts:
            if isinstance(part, Mapping):
                rest = _merge(part, rest)
        schema = rest
    return {key: value for key, value in schema.items() if key not in _MADE_OF}


def _choose(alternatives: Any, depth: int) -> Any:
    """
    The first alternative; deep down null, so that what holds itself has an end.
    """
    nulls = [one for one in alternatives if isinstance(one, Mapping) and one.get("type") == "null"]
    possible = [one for one in alternatives if one is not False]
    return nulls[0] if nulls and depth >= OPTIONAL_DEPTH else possible[0]


def _merge(part: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**part, **over}
    if "properties" in part and "properties" in over:
        merged["properties"] = {**part["properties"], **over["properties"]}
    if "required" in part and "required" in over:
        merged["required"] = [*dict.fromkeys([*part["required"], *over["required"]])]
    return merged


def _resolve(reference: Any, root: Any) -> Any:
    """
    What ``#/$defs/name`` means; nothing at all if it leads nowhere.
    """
    found = root
    for step in str(reference).removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _object_example(schema: Mapping[str, Any], root: _Root, depth: int) -> dict[str, Any]:
    properties = schema.get("properties") or {}
    names = schema.get("required") or (properties if depth < OPTIONAL_DEPTH else ())
    others = schema.get("additionalProperties", {})
    return {name: _example(properties.get(name, others), root, depth + 1) for name in names}


def _number_in(schema: Mapping[str, Any], *, whole: bool) -> int | float:
    """
    A number within the bounds: one that the description names, or 1, or the nearest to it.
    """
    found = re.search(r"\d+", str(schema.get("description", "")))
    number: float = int(found.group()) if found else 1
    step = schema.get("multipleOf") or 1
    above, below = schema.get("exclusiveMinimum", -math.inf), schema.get("exclusiveMaximum", math.inf)
    least, most = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    number = min(max(number, least), most)
    if whole or "multipleOf" in schema:
        number = step * math.floor(number / step) if number == most else step * math.ceil(number / step)
    if number <= above:
        number = step * (math.floor(above / step) + 1)
    if number >= below:
        number = step * (math.ceil(below / step) - 1)
    if number <= above:  # no whole step lies between
        number = (above + min(below, most)) / 2
    return int(number) if whole else number


def _answer(request: Request) -> str:
    outputs = [(block, output) for block in request.blocks for output in block.outputs]
    if not outputs:
        return f"You said: {_last_text(request)!r}. No tool was offered, so there is nothing to look up."
    block, output = outputs[-1]
    names = {item.call_id: item.name for item in block.items if isinstance(item, FunctionCall)}
    name, text = names[output.call_id], _output_text(output)
    if request.blocks[-1] is block:
        return f"{name} returned {text}"
    return f"I remember: {name} returned {text}"


def _last_text(request: Request) -> str:
    return next((_text_of(block.items[0]) for block in reversed(request.blocks) if block.is_user), "")


def _text_of(item: Any) -> str:
    return "".join(part.text for part in item.content if isinstance(part, InputText | OutputText))


def _output_text(output: FunctionCallOutput) -> str:
    head = "Error: " if output.is_error else ""
    if isinstance(output.output, str):
        return head + output.output
    return head + "".join(part.text for part in output.output if isinstance(part, InputText))


def _split(text: str) -> list[str]:
    return re.findall(r"\S+\s*", text)
