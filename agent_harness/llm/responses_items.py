"""
The items of a Responses answer while their events come in, and which event belongs to which item. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import attrs

from agent_harness.llm.surrogates import SurrogateJoiner, join_halves

__all__ = ["ItemLog", "ItemType", "OpenItem", "StreamedText", "as_index", "as_item_type", "as_name"]

ItemType = Literal["message", "function_call", "reasoning"]

_TYPES: dict[object, ItemType] = {
    "message": "message",
    "function_call": "function_call",
    "reasoning": "reasoning",
}


class StreamedText:
    """
    A text that comes in pieces and may be repeated whole at its end.
    """

    __slots__ = ("_joiner", "_pieces", "closed")

    def __init__(self) -> None:
        self._joiner = SurrogateJoiner()
        self._pieces: list[str] = []
        self.closed = False

    @property
    def text(self) -> str:
        """
        What was said so far.
        """
        return "".join(self._pieces)

    def add(self, piece: str) -> str:
        """
        Take a piece; what can be said of it now. After the end nothing more is taken.
        """
        if self.closed:
            return ""
        text = self._joiner.feed(piece)
        if text:
            self._pieces.append(text)
        return text

    def close(self, full: str = "") -> str:
        """
        End the text; what is left to say. *full* is the text as it is repeated at its end, "" if it is not: what the
        pieces lack of it is said now, but where it contradicts them they win.
        """
        self.closed = True
        whole = join_halves(full)
        said = self.text
        held, self._joiner = self._joiner.flush(), SurrogateJoiner()
        return self._note(whole[len(said) :] if whole and whole.startswith(said) else held)

    def _note(self, text: str) -> str:
        if text:
            self._pieces.append(text)
        return text


@attrs.define(eq=False)
class OpenItem:
    """
    An item of the answer. ``index`` is its number in the answer once it was added; ``parts`` holds its texts by kind
    and the upstream's own index, each with the number under which it is passed on.
    """

    type: ItemType
    id: str = ""
    call_id: str = ""
    name: str = ""
    index: int | None = None
    announced: bool = False
    done: bool = False
    arguments: str | None = None
    parts: dict[tuple[str, int], tuple[int, StreamedText]] = attrs.field(factory=dict)
    annotations: dict[int, list[Mapping[str, Any]]] = attrs.field(factory=dict)
    hidden: dict[str, Any] = attrs.field(factory=dict)

    def part(self, kind: str, index: int) -> tuple[int, StreamedText]:
        """
        The text of that kind at the upstream's *index*, begun if it is new.
        """
        found = self.parts.get((kind, index))
        if found is None:
            found = self.parts[kind, index] = (len(self.parts), StreamedText())
        return found

    def texts(self, kind: str) -> list[tuple[int, StreamedText]]:
        """
        The texts of one kind in the upstream's order.
        """
        keys = sorted(key for key in self.parts if key[0] == kind)
        return [self.parts[key] for key in keys]

    def repeats(self, value: Mapping[str, Any]) -> bool:
        """
        Whether *value*, an item said to be done, is this one again.
        """
        if self.type == "function_call":
            return (self.call_id, self.name) == (as_name(value.get("call_id")), as_name(value.get("name")))
        if self.type == "reasoning":
            return True
        parts = value.get("content")
        told = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
        whole = "".join(as_name(part.get("text")) or as_name(part.get("refusal")) for part in told)
        return whole == "".join(streamed.text for _, streamed in self.parts.values())


class ItemLog:
    """
    The items of an answer in order of appearance, found by id or by ``output_index``.
    """

    def __init__(self) -> None:
        self.items: list[OpenItem] = []
        self._by_id: dict[str, OpenItem] = {}
        self._by_place: dict[tuple[ItemType, int], OpenItem] = {}

    def begin(self, value: Mapping[str, Any], item_type: ItemType, place: int | None) -> OpenItem:
        """
        The item that ``output_item.added`` speaks of. A place used again by another id or call is another item.
        """
        item_id, call_id = as_name(value.get("id")), as_name(value.get("call_id"))
        item = self._find_id(item_id, item_type)
        if item is None:
            other = self._find_place(item_type, place)
            if other is not None:
                is_same = (not item_id or not other.id) and other.call_id == call_id
                is_new_to_us = not other.announced and not other.done
                item = other if is_new_to_us or (is_same and (call_id or not other.done)) else None
        item = self._keep(item or OpenItem(item_type), item_id, place)
        item.announced = True
        if not item.done and item.index is None:
            item.call_id = item.call_id or call_id
            item.name = item.name or as_name(value.get("name"))
        return item

    def end(self, value: Mapping[str, Any], item_type: ItemType, place: int | None) -> OpenItem:
        """
        The item that ``output_item.done`` speaks of. Some servers give another id in each event: then the place counts.
        """
        item_id = as_name(value.get("id"))
        item = self._find_id(item_id, item_type)
        if item is None:
            item = self._find_place(item_type, place)
            is_other = item is not None and bool(item_id and item.id and item_id != item.id)
            if item is not None and item.done:
                item = item if item.repeats(value) and not is_other else None
            elif is_other and place is None:
                item = None
        return self._keep(item or OpenItem(item_type), item_id, place)

    def grow(self, item_id: str, item_type: ItemType, place: int | None) -> OpenItem:
        """
        The item that an event about a text in it speaks of.
        """
        item = self._find_id(item_id, item_type)
        if item is not None:
            return item
        if place is not None or not item_id:
            item = self._find_place(item_type, place)
        if item is not None and item.done and item_id not in ("", item.id):
            item = None
        return self._keep(item or OpenItem(item_type), item_id, place)

    def is_known(self, item_id: str, item: OpenItem) -> bool:
        """
        Whether every later event with *item_id* speaks of *item*: an id that is known goes before the place.
        """
        return self._by_id.get(item_id) is item

    def pair(self, values: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], OpenItem]]:
        """
        The items that the last event lists again, each with the one it was in the stream: by id, by call_id, else the
        next of its type that is left. What the stream did not have is new.
        """
        left = list(self.items)
        found: dict[int, OpenItem] = {}
        for is_one in (_has_id, _has_call_id, _has_type):
            for number, value in enumerate(values):
                item = next((item for item in left if is_one(item, value)), None)
                if number not in found and item is not None:
                    found[number] = item
                    left.remove(item)
        for number, value in enumerate(values):
            yield value, found.get(number) or self._keep(OpenItem(_TYPES[value.get("type")]), "", None)

    def _find_id(self, item_id: str, item_type: ItemType) -> OpenItem | None:
        item = self._by_id.get(item_id)
        return item if item is not None and item.type == item_type else None

    def _find_place(self, item_type: ItemType, place: int | None) -> OpenItem | None:
        if place is not None:
            return self._by_place.get((item_type, place))
        same = [item for item in self.items if item.type == item_type]
        return next((item for item in reversed(same) if not item.done), same[-1] if same else None)

    def _keep(self, item: OpenItem, item_id: str, place: int | None) -> OpenItem:
        if item not in self.items:
            self.items.append(item)
        if item_id:
            item.id = item.id or item_id
            self._by_id.setdefault(item_id, item)
        if place is not None:
            self._by_place[item.type, place] = item
        return item


def as_item_type(value: object) -> ItemType | None:
    """
    The type of an item that is kept; None for every other one.
    """
    return _TYPES.get(value) if isinstance(value, str) else None


def as_name(value: object) -> str:
    """
    An id or a name, "" where there is none that can be used.
    """
    return value if isinstance(value, str) else ""


def as_index(value: object) -> int | None:
    """
    A place in a list, None where none is given.
    """
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _has_type(item: OpenItem, value: Mapping[str, Any]) -> bool:
    return item.type == value.get("type")


def _has_id(item: OpenItem, value: Mapping[str, Any]) -> bool:
    return _has_type(item, value) and item.id != "" and item.id == value.get("id")


def _has_call_id(item: OpenItem, value: Mapping[str, Any]) -> bool:
    return _has_type(item, value) and item.call_id != "" and item.call_id == value.get("call_id")
