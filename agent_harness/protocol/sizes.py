"""
How much memory things take, about: the characters of their texts and a flat sum for the rest. For bounds, not for
bills.
"""

from typing import Any

from agent_harness.protocol import events as said
from agent_harness.protocol.items import FunctionCall, FunctionCallOutput, Item, Message, Reasoning

__all__ = ["ITEM_SIZE", "event_size", "item_size"]

ITEM_SIZE = 400
"""What an item takes beside its texts, in bytes."""

_EVENT_SIZE = 300


def item_size(item: Item) -> int:
    """
    The size of *item* in bytes, about.
    """
    match item:
        case Message():
            return ITEM_SIZE + sum(map(_part_size, item.content)) + _hidden_size(item.provenance)
        case FunctionCall():
            return ITEM_SIZE + len(item.arguments) + _hidden_size(item.provenance)
        case FunctionCallOutput(output=str() as text):
            return ITEM_SIZE + len(text)
        case FunctionCallOutput():
            return ITEM_SIZE + sum(map(_part_size, item.output))
        case Reasoning():
            return ITEM_SIZE + sum(len(part.text) for part in item.summary) + _hidden_size(item.provenance)


def event_size(event: said.Event) -> int:
    """
    The size of *event* in bytes, about.
    """
    match event:
        case said.SessionItem() | said.OutputItemAdded() | said.OutputItemDone():
            return _EVENT_SIZE + item_size(event.item)
        case said.TextDelta() | said.RefusalDelta() | said.ArgumentsDelta() | said.SummaryDelta():
            return _EVENT_SIZE + len(event.delta)
        case said.TextDone() | said.SummaryDone():
            return _EVENT_SIZE + len(event.text)
        case said.RefusalDone():
            return _EVENT_SIZE + len(event.refusal)
        case said.ArgumentsDone():
            return _EVENT_SIZE + len(event.arguments)
        case said.SessionStatus():
            return _EVENT_SIZE + sum(_EVENT_SIZE + len(call.arguments) for call in event.required_actions)
        case said.SessionUpdated():
            # Whole, with instructions and the schemas of all tools: as much as a request body may hold.
            return _EVENT_SIZE + len(repr(event.agent)) + len(repr(event.metadata))
        case _:
            return 2 * _EVENT_SIZE


def _part_size(part: Any) -> int:
    fields = ("text", "refusal", "image_url", "file_data", "file_url")
    return 100 + sum(len(getattr(part, field, None) or "") for field in fields)


def _hidden_size(provenance: Any) -> int:
    return 0 if provenance is None else 100 + sum(len(str(value)) for value in provenance.data.values())
