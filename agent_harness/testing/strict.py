"""
STRICT: the nine rules that a model request must pass, in either dialect, besides what its shape alone gives away.

1. Every call has exactly one output, later in the same request; every output has an earlier call.
2. No call id twice, none empty, none over 64 characters.
3. Function names match `^[A-Za-z0-9_-]{1,64}$`.
4. Arguments are a string that parses to a JSON object.
5. Chat Completions: a message with `tool_calls` is followed directly by one tool message per id, nothing between.
6. Responses: see `strict_reasoning`.
7. An output is a string, or a list of typed parts where the endpoint takes lists; at most 10,485,760 characters.
8. The body is valid UTF-8 and strict JSON.
9. The items of a session's last request that was answered 200 are the byte-identical beginning of the next one's.
   No item id stands twice in one request.

Pure: everything here works on the bytes of a body and on what its caller remembers for it in a `SessionMemory`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import orjson

from agent_harness.testing.strict_error import NAME, Dialect, StrictError, refuse
from agent_harness.testing.strict_prefix import PastRequest, check_prefix, slice_items
from agent_harness.testing.strict_reasoning import AnswerLog, check_reasoning
from agent_harness.testing.strict_shapes import check_shape, item_type, list_items

__all__ = ["Dialect", "SessionMemory", "StrictError", "StrictOptions", "check_request", "parse_body"]

MAX_OUTPUT_CHARS = 10_485_760
OUTPUT_PARTS: dict[str, tuple[str, ...]] = {
    "responses": ("input_text", "input_image", "input_file"),
    "chat": ("text",),
}


@attrs.frozen
class StrictOptions:
    """
    How strict the server is.

    `enabled=False` checks nothing. `prefix=False` leaves out rule 9's comparison. `drop_reasoning` and
    `merge_user_messages` stand for providers set so: the comparison then looks past reasoning (and the item ids that
    hang on it), or past the last user message of the earlier request. The `refuse_*` ones imitate servers that
    refuse NUL characters, `content: null`, and outputs that are lists of parts.
    """

    enabled: bool = True
    prefix: bool = True
    drop_reasoning: bool = False
    merge_user_messages: bool = False
    refuse_nul: bool = False
    refuse_null_content: bool = False
    refuse_output_parts: bool = False


@attrs.define
class SessionMemory:
    """
    What the server remembers of one session: its last request answered 200, and the items of its own answers.
    """

    last: PastRequest | None = None
    answers: AnswerLog = attrs.field(factory=AnswerLog)


@attrs.frozen
class Call:
    """
    A function call in a request; values as they were sent, whatever their types.
    """

    at: str
    call_id: Any
    name: Any
    arguments: Any
    paths: tuple[str, str, str]


@attrs.frozen
class Output:
    """
    A call's output in a request, with the path of its value.
    """

    at: str
    call_id: Any
    value: Any
    paths: tuple[str, str]


def parse_body(raw: bytes) -> dict[str, Any]:
    """
    Parse a request's body as strictly as rule 8 asks: UTF-8, no NaN, no lone surrogate, an object.

    :raises StrictError: for rule 8.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        refuse(f"We could not parse the JSON body of your request: {error}.", None, rule=8, code="invalid_json")
    if not isinstance(body, dict):
        refuse("We could not parse the JSON body of your request: no object.", None, rule=8, code="invalid_json")
    return body


def check_request(
    dialect: Dialect, body: dict[str, Any], raw: bytes, options: StrictOptions, memory: SessionMemory
) -> PastRequest | None:
    """
    Refuse a request that breaks a rule; `body` is what `parse_body` made of `raw`. Changes nothing in `memory`.

    :returns: what to keep as `memory.last` once the request is answered 200; None when nothing is checked.
    :raises StrictError: for the first rule that is broken.
    """
    if not options.enabled:
        return None
    check_shape(dialect, body)
    items = list_items(dialect, body)
    check_variants(dialect, body, items, options)
    exchange = list(read_exchange(dialect, items))
    check_calls(exchange)
    check_pairs(exchange)
    check_outputs(dialect, exchange, options)
    if dialect == "chat":
        check_neighbours(items)
    else:
        check_item_ids(items)
        check_reasoning(items, memory.answers, stored=body.get("store") is not False)
    slices = slice_items(raw, "input" if dialect == "responses" else "messages")
    request = PastRequest(dialect, body.get("model"), items, slices)
    if memory.last is not None and options.prefix:
        check_prefix(
            memory.last,
            request,
            drop_reasoning=options.drop_reasoning,
            merge_user_messages=options.merge_user_messages,
        )
    return request


def read_exchange(dialect: Dialect, items: Sequence[dict[str, Any]]) -> Iterator[Call | Output]:
    """
    Give the calls and outputs of a request in order, the same for both dialects.
    """
    for index, item in enumerate(items):
        if dialect == "chat":
            at = f"messages[{index}]"
            for number, call in enumerate(item.get("tool_calls") or ()):
                here, function = f"{at}.tool_calls[{number}]", call["function"]
                paths = (f"{here}.id", f"{here}.function.name", f"{here}.function.arguments")
                yield Call(here, call.get("id"), function.get("name"), function.get("arguments"), paths)
            if item["role"] == "tool":
                yield Output(at, item.get("tool_call_id"), item.get("content"), (f"{at}.tool_call_id", f"{at}.content"))
            continue
        at = f"input[{index}]"
        if item_type(item) == "function_call":
            paths = (f"{at}.call_id", f"{at}.name", f"{at}.arguments")
            yield Call(at, item.get("call_id"), item.get("name"), item.get("arguments"), paths)
        elif item_type(item) == "function_call_output":
            yield Output(at, item.get("call_id"), item.get("output"), (f"{at}.call_id", f"{at}.output"))


def check_calls(exchange: Sequence[Call | Output]) -> None:
    """
    Rules 2, 3 and 4: each call's id, name and arguments for themselves.
    """
    seen: set[str] = set()
    for entry in exchange:
        at = entry.paths[0]
        if not isinstance(entry.call_id, str) or not 0 < len(entry.call_id) <= 64:
            refuse(f"Invalid id {entry.call_id!r}: expected a string with 1 to 64 characters.", at, rule=2)
        if isinstance(entry, Output):
            continue
        if entry.call_id in seen:
            refuse(f"Duplicate call id '{entry.call_id}'.", at, rule=2)
        seen.add(entry.call_id)
        if not isinstance(entry.name, str) or NAME.fullmatch(entry.name) is None:
            message = f"Invalid name {entry.name!r}: expected a string that matches '^[A-Za-z0-9_-]{{1,64}}$'."
            refuse(message, entry.paths[1], rule=3)
        if not is_object_text(entry.arguments):
            refuse("Arguments must be a string that parses to a JSON object.", entry.paths[2], rule=4)


def is_object_text(arguments: Any) -> bool:
    """
    Say whether arguments are the text of a JSON object.
    """
    if not isinstance(arguments, str):
        return False
    try:
        return isinstance(orjson.loads(arguments), dict)
    except orjson.JSONDecodeError:
        return False


def check_pairs(exchange: Sequence[Call | Output]) -> None:
    """
    Rule 1: one output for each call, after it, and no output besides.
    """
    waiting: dict[str, Call] = {}
    answered: set[str] = set()
    for entry in exchange:
        if isinstance(entry, Call):
            waiting[entry.call_id] = entry
        elif entry.call_id in answered:
            refuse(f"Call '{entry.call_id}' has more than one output.", entry.at, rule=1)
        elif waiting.pop(entry.call_id, None) is None:
            refuse(f"No tool call found for function call output with call_id {entry.call_id}.", entry.at, rule=1)
        else:
            answered.add(entry.call_id)
    for call in waiting.values():
        refuse(f"No tool output found for function call {call.call_id}.", call.at, rule=1, code=None)


def check_outputs(dialect: Dialect, exchange: Sequence[Call | Output], options: StrictOptions) -> None:
    """
    Rule 7: each output's type and length.
    """
    for output in exchange:
        if not isinstance(output, Output):
            continue
        at = output.paths[1]
        if isinstance(output.value, str):
            length = len(output.value)
        elif isinstance(output.value, list) and not options.refuse_output_parts:
            length = measure_parts(dialect, output.value, at)
        else:
            known = "a string" if options.refuse_output_parts else "a string or a list of parts"
            refuse(f"Invalid type: expected {known}.", at, rule=7, code="invalid_type")
        if length > MAX_OUTPUT_CHARS:
            message = f"string too long: expected at most {MAX_OUTPUT_CHARS} characters, got {length}."
            refuse(message, at, rule=7, code="string_above_max_length")


def measure_parts(dialect: Dialect, parts: list[Any], at: str) -> int:
    """
    Check an output's parts and count the characters of their texts. Chat Completions takes text only.
    """
    known = OUTPUT_PARTS[dialect]
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if dialect == "chat" and kind == "image_url":
            message = "Image URLs are only allowed for messages with role 'user', but this message has role 'tool'."
            refuse(message, f"{at}[{index}]", rule=7)
        if kind not in known:
            refuse(f"Invalid value: {kind!r}. Supported values are: {', '.join(known)}.", f"{at}[{index}].type", rule=7)
        if kind.endswith("text") and not isinstance(part.get("text"), str):
            refuse("Invalid type: expected a string.", f"{at}[{index}].text", rule=7, code="invalid_type")
    return sum(len(part["text"]) for part in parts if part["type"].endswith("text"))


def check_neighbours(items: Sequence[dict[str, Any]]) -> None:
    """
    Rule 5: the messages right after one with `tool_calls` are its tool messages, one for each id.
    """
    for index, item in enumerate(items):
        ids = {call["id"] for call in item.get("tool_calls") or ()}
        after = items[index + 1 : index + 1 + len(ids)]
        if {message.get("tool_call_id") for message in after if message["role"] == "tool"} != ids:
            refuse(
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                "'tool_call_id', and nothing may stand between.",
                f"messages[{index}].tool_calls",
                rule=5,
            )


def check_item_ids(items: Sequence[dict[str, Any]]) -> None:
    """
    Rule 9, its second half: no item id twice.
    """
    seen: set[str] = set()
    for index, item in enumerate(items):
        if "id" in item:
            if item["id"] in seen:
                refuse(f"Duplicate item found with id {item['id']}.", f"input[{index}].id", rule=9)
            seen.add(item["id"])


def check_variants(dialect: Dialect, body: dict[str, Any], items: Sequence[Any], options: StrictOptions) -> None:
    """
    Refuse what only some servers refuse: NUL characters anywhere, content that is null.
    """
    if options.refuse_nul and has_nul(body):
        refuse("The body holds a NUL character.", None, rule=8)
    if options.refuse_null_content:
        for index, item in enumerate(items):
            if "content" in item and item["content"] is None:
                key = "input" if dialect == "responses" else "messages"
                refuse("Content must not be null.", f"{key}[{index}].content", rule=8)


def has_nul(value: Any) -> bool:
    """
    Say whether a string in a JSON value holds U+0000.
    """
    if isinstance(value, str):
        return "\x00" in value
    if isinstance(value, dict):
        return any(has_nul(key) or has_nul(held) for key, held in value.items())
    return isinstance(value, list) and any(map(has_nul, value))
