"""
JSON to values, tolerantly: for a client that must not break when the server is newer.

Unknown fields are ignored and values pass as they are. An event of a type nobody here knows, or that lacks what it
should have, is an `UnknownEvent`; an unknown item or part stands in its place as an `UnknownItem` or `UnknownPart`.
"""

import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, get_args, get_origin

import attrs
import cattrs

from agent_harness.protocol import events as said
from agent_harness.protocol import items
from agent_harness.protocol.agents import Agent
from agent_harness.protocol.items import Item, Part, Usage
from agent_harness.protocol.pages import Snapshot
from agent_harness.protocol.tools import NamedChoice, ToolChoice
from agent_harness.protocol.turns import LastError, Turn

__all__ = [
    "AnyEvent",
    "UnknownEvent",
    "UnknownItem",
    "UnknownPart",
    "read_agent",
    "read_event",
    "read_item",
    "read_snapshot",
    "read_turn",
    "response_id_of",
]


@attrs.frozen
class UnknownEvent:
    """
    An event that this version does not know; ``data`` is all of its JSON.
    """

    type: str
    data: Mapping[str, Any]


@attrs.frozen
class UnknownItem:
    """
    An item of a type that this version does not know; ``data`` is all of its JSON.
    """

    type: str
    data: Mapping[str, Any]

    @property
    def id(self) -> str:
        """
        The item's id.
        """
        return str(self.data.get("id"))

    @property
    def status(self) -> str | None:
        """
        The item's status, if it has one.
        """
        return self.data.get("status")

    @property
    def response_id(self) -> str | None:
        """
        The turn it belongs to, or None.
        """
        return self.data.get("response_id")


@attrs.frozen
class UnknownPart:
    """
    A content part of a type that this version does not know; ``data`` is all of its JSON.
    """

    type: str
    data: Mapping[str, Any]


AnyEvent = said.Event | UnknownEvent


def _by_type(union: Any) -> dict[str, Any]:
    return {str(attrs.fields_dict(cls)["type"].default): cls for cls in get_args(union)}


_EVENTS = _by_type(said.Event)


def read_event(data: Mapping[str, Any]) -> AnyEvent:
    """
    The JSON of an event as a value.
    """
    kind = data.get("type")
    if kind in _EVENTS:
        try:
            event: AnyEvent = _reader.structure(data, _EVENTS[kind])
            return event
        except Exception:
            # It lacks what its type should have: as good as unknown, and nothing of it is lost.
            pass
    return UnknownEvent(str(kind), data)


def response_id_of(event: AnyEvent) -> str | None:
    """
    The turn that *event* belongs to, or None.
    """
    if not isinstance(event, UnknownEvent):
        return said.event_response_id(event)
    for holder, key in ((event.data, "response_id"), (event.data.get("response"), "id")):
        if isinstance(holder, Mapping) and isinstance(holder.get(key), str):
            return str(holder[key])
    return None


def read_item(data: Mapping[str, Any]) -> Item:
    """
    The JSON of an item as a value; an unknown one is an `UnknownItem`, which the return type does not say: whoever
    looks at ``type`` first can read the rest as usual.
    """
    item: Item = _read_item(data, Item)
    return item


def read_snapshot(data: Mapping[str, Any]) -> Snapshot:
    """
    The JSON of a session as a value.
    """
    return _reader.structure(data, Snapshot)


def read_agent(data: Mapping[str, Any]) -> Agent:
    """
    The JSON of an agent as a value.
    """
    return _reader.structure(data, Agent)


def read_turn(data: Mapping[str, Any]) -> Turn:
    """
    The JSON of a response (a turn's record) as a value.
    """
    return _reader.structure(data, Turn)


def _read_tagged(known: Mapping[str, Any], unknown: Any) -> Callable[[Any, Any], Any]:
    def read_one(data: Any, _: Any) -> Any:
        kind = data.get("type")
        if kind in known:
            try:
                return _reader.structure(data, known[kind])
            except Exception:
                # As in read_event.
                pass
        return unknown(str(kind), data)

    return read_one


_read_item = _read_tagged(_by_type(Item), UnknownItem)
_read_part = _read_tagged(_by_type(Part), UnknownPart)


def _read_usage(data: Any, _: Any) -> Usage:
    inputs, outputs = data.get("input_tokens_details") or {}, data.get("output_tokens_details") or {}
    return Usage(
        data.get("input_tokens"),
        data.get("output_tokens"),
        data.get("total_tokens"),
        inputs.get("cached_tokens"),
        outputs.get("reasoning_tokens"),
    )


def _read_turn(data: Any, _: Any) -> Turn:
    usage, error = data.get("usage"), data.get("error")
    return Turn(
        id=data["id"],
        status=data["status"],
        model=data.get("model"),
        usage=None if usage is None else _read_usage(usage, Usage),
        error=None if error is None else LastError(error["code"], error["message"]),
        incomplete_reason=(data.get("incomplete_details") or {}).get("reason"),
        created_at=data["created_at"],
        completed_at=data.get("completed_at"),
    )


def _read_choice(data: Any, _: Any) -> Any:
    return NamedChoice(data["name"]) if isinstance(data, Mapping) else data


def _read_output(data: Any, _: Any) -> Any:
    return data if isinstance(data, str) else tuple(_read_part(part, Part) for part in data)


def _passes(shape: Any) -> bool:
    if get_origin(shape) in (Union, types.UnionType):
        return all(member is type(None) or _passes(member) for member in get_args(shape))
    return shape in (str, int, float, bool, Any) or get_origin(shape) in (Literal, Mapping)


def _is_output(shape: Any) -> bool:
    return get_origin(shape) in (Union, types.UnionType) and {str, tuple} <= {
        get_origin(member) or member for member in get_args(shape)
    }


def _make_reader() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=False)
    converter.register_structure_hook_func(_passes, lambda data, _: data)
    converter.register_structure_hook_func(_is_output, _read_output)
    converter.register_structure_hook_func(lambda shape: shape in (ToolChoice, ToolChoice | None), _read_choice)
    converter.register_structure_hook_func(lambda shape: shape == Item, _read_item)
    converter.register_structure_hook_func(lambda shape: shape == Part, _read_part)
    converter.register_structure_hook(Usage, _read_usage)
    converter.register_structure_hook(Turn, _read_turn)
    for cls in (items.Message, items.FunctionCall, items.Reasoning):
        # `provenance` never travels.
        override = cattrs.override(omit=True)
        converter.register_structure_hook(
            cls,
            cattrs.gen.make_dict_structure_fn(cls, converter, provenance=override, _cattrs_detailed_validation=False),
        )
    return converter


_reader = _make_reader()
