"""
How much memory things take, about: the characters of their texts and a flat sum for the rest. For bounds, not for
bills.
"""

from collections.abc import Callable
from typing import Any, get_args

from agent_harness.protocol import events as said
from agent_harness.protocol.items import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    Message,
    OutputText,
    Part,
)

__all__ = ["EVENT_SIZE", "ITEM_SIZE", "event_size", "item_size"]

ITEM_SIZE = 400
"""What an item takes beside its texts, in bytes."""

EVENT_SIZE = 300
"""What an event takes beside its text, in bytes."""

_TEXTS = (InputText, OutputText)


def item_size(item: Item) -> int:
    """
    The size of *item* in bytes, about.
    """
    if isinstance(item, Message):
        return ITEM_SIZE + _parts_size(item.content) + _hidden_size(item.provenance)
    if isinstance(item, FunctionCall):
        return ITEM_SIZE + len(item.arguments) + _hidden_size(item.provenance)
    if isinstance(item, FunctionCallOutput):
        return ITEM_SIZE + (len(item.output) if isinstance(item.output, str) else _parts_size(item.output))
    return ITEM_SIZE + sum(len(part.text) for part in item.summary) + _hidden_size(item.provenance)


def event_size(event: said.Event) -> int:
    """
    The size of *event* in bytes, about.
    """
    kind = type(event)
    if kind in _PIECES:
        # Nearly all are, so no call is made for them.
        return EVENT_SIZE + len(event.delta)  # type: ignore[union-attr]
    measure = _MEASURES.get(kind)
    return 2 * EVENT_SIZE if measure is None else EVENT_SIZE + measure(event)


def _parts_size(parts: tuple[Part, ...]) -> int:
    size = 0
    for part in parts:
        if isinstance(part, _TEXTS):
            size += 100 + len(part.text)
        else:
            fields = ("refusal", "image_url", "file_data", "file_url")
            size += 100 + sum(len(getattr(part, field, None) or "") for field in fields)
    return size


def _hidden_size(provenance: Any) -> int:
    return 0 if provenance is None else 100 + sum(len(str(value)) for value in provenance.data.values())


def _item_size(event: said.SessionItem | said.OutputItemAdded | said.OutputItemDone) -> int:
    return item_size(event.item)


def _text_size(event: said.TextDone | said.SummaryDone) -> int:
    return len(event.text)


def _refusal_size(event: said.RefusalDone) -> int:
    return len(event.refusal)


def _arguments_size(event: said.ArgumentsDone) -> int:
    return len(event.arguments)


def _status_size(event: said.SessionStatus) -> int:
    return sum(EVENT_SIZE + len(call.arguments) for call in event.required_actions)


def _agent_size(event: said.SessionUpdated) -> int:
    # Whole, with instructions and the schemas of all tools: as much as a request body may hold.
    return len(repr(event.agent)) + len(repr(event.metadata))


_PIECES = frozenset(get_args(said.Piece))

_MEASURES: dict[type, Callable[[Any], int]] = {
    said.SessionItem: _item_size,
    said.OutputItemAdded: _item_size,
    said.OutputItemDone: _item_size,
    said.TextDone: _text_size,
    said.SummaryDone: _text_size,
    said.RefusalDone: _refusal_size,
    said.ArgumentsDone: _arguments_size,
    said.SessionStatus: _status_size,
    said.SessionUpdated: _agent_size,
}
"""What an event takes beside `EVENT_SIZE`; of one that is not listed, as much again."""
