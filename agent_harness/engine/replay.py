"""
The replay of a feed: events that nobody who follows has yet to read, kept small for who comes back.

Nearly all events are pieces of text, one behind the other. Of such a run only the first is kept whole, of the others
their text: a third of the memory, and nothing for the collector of cycles to go through.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any

from agent_harness.protocol import events as said
from agent_harness.protocol.sizes import EVENT_SIZE, event_size

__all__ = ["Replay"]


class Replay:
    """
    Events with the time of each (Unix seconds), oldest first.
    """

    # _head is the first piece of the newest run, None if the newest event is no piece; _lead stands for the first piece
    # of the oldest run, where that went.
    __slots__ = ("_at", "_entries", "_head", "_lead")

    def __init__(self) -> None:
        self._entries: list[said.Event | str] = []
        self._at = array("d")
        self._head: Any = None
        self._lead: Any = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[said.Event, float]]:
        return zip(_make_whole(self._entries, self._lead), self._at, strict=True)

    def append(self, event: said.Event, at: float) -> None:
        """
        Keep one more.
        """
        self._at.append(at)
        head, number = self._head, _NUMBERS.get(type(event))
        if number is None:
            self._head = None
        elif (
            type(head) is type(event)
            and head.item_id == event.item_id  # type: ignore[union-attr]
            and number(head) == number(event)
            and head.output_index == event.output_index  # type: ignore[union-attr]
            and head.response_id == event.response_id  # type: ignore[union-attr]
        ):
            self._entries.append(event.delta)  # type: ignore[union-attr]
            return
        else:
            self._head = event
        self._entries.append(event)

    def has(self, wanted: Callable[[said.Event], bool]) -> bool:
        """
        Whether an event is *wanted*; of a run of pieces, only the first is asked.
        """
        return any(not isinstance(entry, str) and wanted(entry) for entry in self._entries)

    def size_at(self, index: int) -> int:
        """
        The size of an event in bytes, about; 0 is the oldest.
        """
        entry = self._entries[index]
        return EVENT_SIZE + len(entry) if isinstance(entry, str) else event_size(entry)

    def take_newest(self, count: int) -> list[tuple[said.Event, float]]:
        """
        Let go of the newest *count*, and give them back whole.
        """
        start = len(self._entries) - count
        entries, at = self._entries[start:], self._at[start:]
        del self._entries[start:], self._at[start:]
        head = self._head
        if head is None or not all(isinstance(entry, str) for entry in entries):
            # They do not all belong to the newest run.
            head = self._head_of(start - 1)
            self._head = head if type(head) in _NUMBERS else None
        return list(zip(_make_whole(entries, head), at, strict=True))

    def drop_oldest(self, count: int) -> None:
        """
        Let go of the oldest *count*.
        """
        if count == len(self._entries):
            self._head = self._lead = None
        elif isinstance(self._entries[count], str):
            head = self._head_of(count)
            # Its text goes with it.
            self._lead = _make(head, "")
            if self._head is head:
                self._head = self._lead
        else:
            self._lead = None
        del self._entries[:count], self._at[:count]

    def _head_of(self, index: int) -> Any:
        """
        The event at *index*, or the first of the run that it belongs to.
        """
        while index >= 0:
            entry = self._entries[index]
            if not isinstance(entry, str):
                return entry
            index -= 1
        return self._lead


_NUMBERS: dict[type, Callable[[Any], int]] = {
    said.TextDelta: attrgetter("content_index"),
    said.RefusalDelta: attrgetter("content_index"),
    said.SummaryDelta: attrgetter("summary_index"),
    said.ArgumentsDelta: attrgetter("output_index"),
}
"""What tells the part of its item that a piece belongs to."""


def _make_whole(entries: Iterable[said.Event | str], head: Any) -> Iterator[said.Event]:
    """
    The events that *entries* stand for; *head* is the first of the run that they begin in.
    """
    for entry in entries:
        if isinstance(entry, str):
            yield _make(head, entry)
        else:
            head = entry
            yield entry


def _make(head: Any, text: str) -> said.Event:
    """
    The piece *text* of the run of *head*.
    """
    kind = type(head)
    if kind is said.ArgumentsDelta:
        return said.ArgumentsDelta(head.response_id, head.item_id, head.output_index, text)
    piece: said.Event = kind(head.response_id, head.item_id, head.output_index, _NUMBERS[kind](head), text)
    return piece
