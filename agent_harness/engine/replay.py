"""
The replay of a feed: events that nobody who follows has yet to read, kept small for who comes back.

Nearly all events are pieces of text, one behind the other. Of such a run only the first is kept whole, of the others
their text: a third of the memory, and nothing for the collector of cycles to go through.
"""

from array import array
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from agent_harness.protocol import events as said
from agent_harness.protocol.changed import changed
from agent_harness.protocol.sizes import EVENT_SIZE, event_size

__all__ = ["Replay"]


class Replay:
    """
    Events with the time of each (Unix seconds), oldest first.
    """

    # _head is the first piece of the newest run, None if the newest event is no piece; _lead the first of the oldest
    # run, where that went.
    __slots__ = ("_at", "_entries", "_head", "_lead")

    def __init__(self) -> None:
        self._entries: list[said.Event | str] = []
        self._at = array("d")
        self._head: Any = None
        self._lead: Any = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[said.Event, float]]:
        return zip(self._read(0), self._at, strict=True)

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
        taken = list(zip(self._read(start), self._at[start:], strict=True))
        del self._entries[start:], self._at[start:]
        head = self._head_of(start - 1)
        self._head = head if type(head) in _NUMBERS else None
        return taken

    def drop_oldest(self, count: int) -> None:
        """
        Let go of the oldest *count*.
        """
        if count == len(self._entries):
            self._head = None
        elif isinstance(self._entries[count], str):
            self._lead = self._head_of(count)
        del self._entries[:count], self._at[:count]

    def _read(self, start: int) -> Iterator[said.Event]:
        head: Any = self._head_of(start - 1)
        for entry in self._entries[start:]:
            if isinstance(entry, str):
                yield changed(head, delta=entry)
            else:
                head = entry
                yield entry

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
