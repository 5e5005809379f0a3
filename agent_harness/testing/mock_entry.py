"""
One scripted answer of the mock model server, and what it is answered to: reading both. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from agent_harness.testing.strict_error import Dialect
from agent_harness.testing.strict_reasoning import read_text
from agent_harness.testing.strict_shapes import item_type, list_items

__all__ = ["UNSET", "Entry", "ToolCall", "read_entry", "read_last_user_text", "recall_text", "split_text"]

UNSET: Any = object()
MAX_PIECES = 32


@attrs.frozen
class ToolCall:
    """
    A call that the answer makes; without a call id the server mints one. `deltas` is how the arguments are split.
    """

    name: str
    arguments: str
    call_id: str | None
    deltas: tuple[str, ...]


@attrs.frozen
class Entry:
    """
    A scripted answer. What its fields do stands in the docstring of `mock_llm`; `usage` is `UNSET` when left out.
    """

    text: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    error: str | dict[str, Any] | None = None
    status_code: int | None = None
    headers: Mapping[str, str] = attrs.field(factory=dict)
    block: bool | int | None = None
    delay_s: float = 0.0
    deltas: tuple[str, ...] = ()
    disconnect_after: int | None = None
    raw: tuple[bytes, ...] | None = None
    recall: str | None = None
    usage: Any = UNSET
    finish: str | None = None


KINDS: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "reasoning": (str,),
    "error": (str, dict),
    "status_code": (int,),
    "headers": (dict,),
    "block": (bool, int),
    "delay_s": (int, float),
    "deltas": (list,),
    "disconnect_after": (int,),
    "raw": (list,),
    "recall": (str,),
    "tool_calls": (list,),
    "finish": (str,),
}


def read_entry(value: Any, at: str) -> Entry:
    """
    Read one answer of `/mock/configure`. A key that is null counts as left out, `usage` excepted.

    :raises ValueError: naming the path of an unknown key or of a value with the wrong type.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{at}: expected an object")
    fields: dict[str, Any] = {}
    for key, held in value.items():
        if key == "usage":
            fields[key] = held
            continue
        if key not in KINDS:
            raise ValueError(f"{at}.{key}: unknown key; known are {', '.join(sorted([*KINDS, 'usage']))}")
        if held is None:
            continue
        if not isinstance(held, KINDS[key]):
            raise ValueError(f"{at}.{key}: expected {' or '.join(kind.__name__ for kind in KINDS[key])}")
        fields[key] = held
    if "recall" in fields:
        try:
            re.compile(fields["recall"])
        except re.error as error:
            raise ValueError(f"{at}.recall: {error}") from error
    if "raw" in fields:
        fields["raw"] = tuple(read_raw(held, f"{at}.raw[{index}]") for index, held in enumerate(fields["raw"]))
    calls = fields.get("tool_calls", ())
    fields["tool_calls"] = tuple(read_call(call, f"{at}.tool_calls[{index}]") for index, call in enumerate(calls))
    fields["deltas"] = tuple(fields.get("deltas", ()))
    if fields["deltas"] and "text" not in fields:
        fields["text"] = "".join(fields["deltas"])
    return Entry(**fields)


def read_raw(value: Any, at: str) -> bytes:
    """
    Read what one write sends: a string (a lone surrogate becomes its three bytes, which are no UTF-8), or `{"hex"}`.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, dict) and isinstance(value.get("hex"), str):
        return bytes.fromhex(value["hex"])
    raise ValueError(f'{at}: expected a string or {{"hex": "…"}}')


def read_call(value: Any, at: str) -> ToolCall:
    """
    Read a call. Its arguments are sent as written; an object is written as JSON first.
    """
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError(f"{at}.name: expected a string")
    unknown = set(value) - {"call_id", "name", "arguments", "deltas"}
    if unknown:
        raise ValueError(f"{at}.{sorted(unknown)[0]}: unknown key")
    arguments = value.get("arguments", "{}")
    if not isinstance(arguments, str):
        arguments = encode_arguments(arguments)
    deltas = tuple(value.get("deltas") or cut_in_half(arguments))
    return ToolCall(name=value["name"], arguments="".join(deltas), call_id=value.get("call_id"), deltas=deltas)


def encode_arguments(value: Any) -> str:
    """
    Write arguments as the compact JSON that models write.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def cut_in_half(text: str) -> tuple[str, ...]:
    """
    Give a text in two pieces, so that every reader has something to put together.
    """
    middle = len(text) // 2
    return tuple(piece for piece in (text[:middle], text[middle:]) if piece)


def split_text(text: str, deltas: tuple[str, ...]) -> tuple[str, ...]:
    """
    Give the pieces in which a text is streamed: those asked for if they make up the text, else its words (32 at most).
    """
    if deltas and "".join(deltas) == text:
        return deltas
    words = re.findall(r"\s*\S+\s*$|\s*\S+|\s+", text)
    step = -(-len(words) // MAX_PIECES) or 1
    return tuple("".join(words[at : at + step]) for at in range(0, len(words), step))


def read_last_user_text(dialect: Dialect, body: dict[str, Any]) -> str:
    """
    Give the text of the request's last user message, its parts joined; empty when there is none.
    """
    for item in reversed(list_items(dialect, body)):
        if isinstance(item, dict) and item.get("role") == "user":
            return read_text(item)
    return ""


def recall_text(dialect: Dialect, body: dict[str, Any], pattern: str) -> str:
    """
    Give the first match of `pattern` in the request's items, its group 1 if it has one; else "not found".
    """
    for text in list_texts(dialect, body):
        match = re.search(pattern, text)
        if match:
            return str(match[1] if match.re.groups and match[1] is not None else match[0])
    return "not found"


def list_texts(dialect: Dialect, body: dict[str, Any]) -> Iterator[str]:
    """
    Give what the items say, in order: texts of messages, arguments of calls, outputs; no system messages.
    """
    for item in list_items(dialect, body):
        if not isinstance(item, dict) or item.get("role") in ("system", "developer"):
            continue
        kind = item_type(item) if dialect == "responses" else "message"
        if kind == "message":
            yield read_text(item)
            for call in item.get("tool_calls") or ():
                yield str(call.get("function", {}).get("arguments", ""))
        elif kind == "function_call":
            yield str(item.get("arguments", ""))
        elif kind == "function_call_output":
            yield read_text({"content": item.get("output")})
