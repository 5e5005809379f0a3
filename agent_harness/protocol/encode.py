"""
Values to JSON: the wire's dictionaries, and events as frames.

This file and `agent_harness.protocol.decode` are the only ones that know cattrs.
"""

import types
from collections.abc import Callable, Mapping
from typing import Any, Union, get_origin

import cattrs
import orjson
from cattrs.gen import make_dict_unstructure_fn, override

from agent_harness.protocol import events as said
from agent_harness.protocol.items import (
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Message,
    OutputText,
    Reasoning,
    Usage,
)
from agent_harness.protocol.pages import Snapshot
from agent_harness.protocol.sse import encode_frame
from agent_harness.protocol.tools import clean_text
from agent_harness.protocol.turns import RequiredAction, Turn

__all__ = ["DATED", "LEFT_OUT_IF_NONE", "dump_json", "encode_event", "to_wire"]

DATED = frozenset[type]((said.SessionItem, said.SessionStatus, said.OutputItemAdded, said.OutputItemDone))
"""Events that carry ``at``."""

LEFT_OUT_IF_NONE: dict[Any, tuple[str, ...]] = {
    InputImage: ("image_url", "file_id", "detail"),
    InputFile: ("file_data", "file_id", "file_url", "filename"),
    said.SessionStatus: ("item_id",),
    said.OutputItemDone: ("replayed",),
    Snapshot: ("items",),
}
"""Fields that are absent where they would be null."""


def dump_json(value: Any) -> bytes:
    """
    *value* as one line of JSON. What JSON cannot hold becomes null: an adapter of somebody else's may give a number
    that is none, and one such value must not end the streams of all followers.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        return orjson.dumps(_blank_out(value))


def _blank_out(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {clean_text(str(key)): _blank_out(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_blank_out(held) for held in value]
    is_number = isinstance(value, float) or (isinstance(value, int) and -(2**63) <= value < 2**64)
    return value if is_number else None


def to_wire(value: Any) -> Any:
    """
    An item, agent, turn, event or the like as the wire's dictionary; what is hidden stays hidden.
    """
    kind = type(value)
    write = _writes.get(kind)
    if write is None:
        write = _writes[kind] = _writer.get_unstructure_hook(kind)
    return write(value)


def encode_event(event: said.Event, seq: int, at: float, *, numbered: bool = True, retry: int | None = None) -> bytes:
    """
    *event* as one SSE frame. *at* is Unix seconds, written with milliseconds; an event that is not *numbered* has no
    ``id:``, and its ``seq`` is the newest number it takes in.
    """
    kind = type(event)
    write = _PIECES.get(kind)
    if write is not None:
        body = write(event, seq)
    else:
        body = {"type": event.type, "seq": seq}
        if kind in DATED:
            body["at"] = round(at, 3)
        body.update(to_wire(event))
    return encode_frame(event.type, dump_json(body), id=seq if numbered else None, retry=retry)


# Nearly all events are pieces. Their dictionaries are written by hand: a fifth of the time that cattrs takes.


def _write_part_piece(event: said.TextDelta | said.RefusalDelta, seq: int) -> dict[str, Any]:
    return {
        "type": event.type,
        "seq": seq,
        "response_id": event.response_id,
        "item_id": event.item_id,
        "output_index": event.output_index,
        "content_index": event.content_index,
        "delta": event.delta,
    }


def _write_summary_piece(event: said.SummaryDelta, seq: int) -> dict[str, Any]:
    return {
        "type": event.type,
        "seq": seq,
        "response_id": event.response_id,
        "item_id": event.item_id,
        "output_index": event.output_index,
        "summary_index": event.summary_index,
        "delta": event.delta,
    }


def _write_arguments_piece(event: said.ArgumentsDelta, seq: int) -> dict[str, Any]:
    return {
        "type": event.type,
        "seq": seq,
        "response_id": event.response_id,
        "item_id": event.item_id,
        "output_index": event.output_index,
        "delta": event.delta,
    }


_PIECES: dict[type, Callable[[Any, int], dict[str, Any]]] = {
    said.TextDelta: _write_part_piece,
    said.RefusalDelta: _write_part_piece,
    said.SummaryDelta: _write_summary_piece,
    said.ArgumentsDelta: _write_arguments_piece,
}


def _write_usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _write_turn(turn: Turn) -> dict[str, Any]:
    return {
        "id": turn.id,
        "object": "response",
        "status": turn.status,
        "model": turn.model,
        "created_at": turn.created_at,
        "completed_at": turn.completed_at,
        "usage": None if turn.usage is None else _write_usage(turn.usage),
        "error": None if turn.error is None else {"code": turn.error.code, "message": turn.error.message},
        "incomplete_details": None if turn.incomplete_reason is None else {"reason": turn.incomplete_reason},
    }


def _is_mapping(shape: Any) -> bool:
    return get_origin(shape) is Mapping


def _is_union(shape: Any) -> bool:
    return get_origin(shape) in (Union, types.UnionType)


def _leave_out(converter: cattrs.Converter, kind: Any, overrides: dict[str, Any]) -> None:
    converter.register_unstructure_hook(kind, make_dict_unstructure_fn(kind, converter, **overrides))


def _make_writer() -> cattrs.Converter:
    converter = cattrs.Converter(unstruct_collection_overrides={tuple: list})
    converter.register_unstructure_hook(Usage, _write_usage)
    converter.register_unstructure_hook(Turn, _write_turn)
    converter.register_unstructure_hook(tuple, lambda values: [to_wire(value) for value in values])
    converter.register_unstructure_hook_func(_is_mapping, lambda value: value)
    converter.register_unstructure_hook_factory(_is_union, lambda _: to_wire)
    for kind in (Message, FunctionCall, Reasoning):
        _leave_out(converter, kind, {"provenance": override(omit=True)})
    for cls, optional in LEFT_OUT_IF_NONE.items():
        _leave_out(converter, cls, {name: override(omit_if_default=True) for name in optional})
    return converter


_writer = _make_writer()

# What every turn writes, by hand too: half of the time that cattrs takes.


def _write_text(part: InputText) -> dict[str, Any]:
    return {"text": part.text, "type": part.type}


def _write_written(part: OutputText) -> dict[str, Any]:
    return {"text": part.text, "annotations": list(part.annotations), "type": part.type}


def _write_message(item: Message) -> dict[str, Any]:
    return {
        "id": item.id,
        "role": item.role,
        "content": [to_wire(part) for part in item.content],
        "origin": item.origin,
        "status": item.status,
        "response_id": item.response_id,
        "created_at": item.created_at,
        "type": item.type,
    }


def _write_output(item: FunctionCallOutput) -> dict[str, Any]:
    return {
        "id": item.id,
        "call_id": item.call_id,
        "output": to_wire(item.output),
        "is_error": item.is_error,
        "origin": item.origin,
        "status": item.status,
        "response_id": item.response_id,
        "created_at": item.created_at,
        "type": item.type,
    }


def _write_action(action: RequiredAction) -> dict[str, Any]:
    return {
        "response_id": action.response_id,
        "call_id": action.call_id,
        "name": action.name,
        "arguments": action.arguments,
        "expires_at": action.expires_at,
        "type": action.type,
    }


def _write_status(event: said.SessionStatus) -> dict[str, Any]:
    written: dict[str, Any] = {
        "status": event.status,
        "response_id": event.response_id,
        "required_actions": [_write_action(action) for action in event.required_actions],
        "queued": list(event.queued),
        "last_error": None if event.last_error is None else to_wire(event.last_error),
        "type": event.type,
    }
    if event.item_id is not None:
        written["item_id"] = event.item_id
    return written


_writes: dict[type, Callable[[Any], Any]] = {
    Usage: _write_usage,
    Turn: _write_turn,
    InputText: _write_text,
    OutputText: _write_written,
    Message: _write_message,
    FunctionCallOutput: _write_output,
    RequiredAction: _write_action,
    said.SessionStatus: _write_status,
}
"""
What writes each class: these by hand, others by the writer's function, which takes cattrs as long to find as to call.
"""
