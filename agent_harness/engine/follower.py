"""
A follower of a feed, and the events as it gets them.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import attrs

from agent_harness.protocol.encode import encode_event
from agent_harness.protocol.events import Event, SessionLagged

if TYPE_CHECKING:
    from agent_harness.engine.feed import Feed

__all__ = ["Follower", "Published"]


@attrs.define(eq=False, weakref_slot=False)
class Published:
    """
    An event as followers get it. ``seq`` is its number, or for one that has none the newest number it takes in; ``at``
    is Unix seconds.
    """

    seq: int
    event: Event
    at: float
    numbered: bool = True
    _frame: bytes | None = None

    @property
    def frame(self) -> bytes:
        """
        The event as one SSE frame, encoded once for all who follow now.
        """
        if self._frame is None:
            self._frame = encode_event(self.event, self.seq, self.at, numbered=self.numbered)
        return self._frame


class Follower:
    """
    One reader of a feed. ``lagged`` tells that it was cut; ``on_cut`` is called, if set, at that moment and
    when the feed is closed: a reader that is stuck must not be waited for.
    """

    __slots__ = ("_call", "_closed", "_feed", "_first", "_holds", "_seq", "lagged", "on_cut")

    def __init__(self, feed: "Feed", first: list[Published], seq: int) -> None:
        self._feed = feed
        self._first = first
        # What the first frames take in must be released before they are given.
        self._seq = self._holds = seq
        self._call: Callable[[], None] | None = None
        self.lagged = self._closed = False
        self.on_cut: Callable[[], None] | None = None

    async def take(self) -> list[Published]:
        """
        Wait for events and take all that are there; an empty list is the end: the feed was closed, or this follower was
        cut (then ``session.lagged`` was its last event).
        """
        while (taken := self.ready()) is None:
            news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.call_at_news(partial(_settle, news))
            try:
                await news
            except BaseException:
                self._call = None
                self._feed.rouse(self)
                raise
        return taken

    def ready(self, most: int = sys.maxsize) -> list[Published] | None:
        """
        What `take` gives, without waiting, behind the first frames at *most* so many; None if there is nothing yet.
        """
        if self._first and self._holds <= self._feed.released:
            first, self._first = self._first, []
            return first
        if self.lagged or self._closed:
            return []
        taken = [] if self._first else self._feed.since(self._seq, most)
        if taken:
            self._seq = taken[-1].seq
            return taken
        if self._feed.closed and self._seq >= self._feed.released == self._feed.seq:
            return []
        return None

    def call_at_news(self, call: Callable[[], None]) -> None:
        """
        Have *call* called, once, when `ready` may give something again; it gave None. Called in the middle of a change:
        it must not read at once.
        """
        asleep, self._call = self._call is not None, call
        if not asleep:
            self._feed.sleep(self)

    @property
    def read_up_to(self) -> int:
        """
        The number of the last event that was taken.
        """
        return self._seq

    def wake(self) -> None:
        """
        Let the reader look again.
        """
        call, self._call = self._call, None
        if call is not None:
            call()

    def cut(self) -> None:
        """
        Give up on this follower: it fell behind.
        """
        self._feed.detach(self)
        self.lagged = True
        self._holds = 0
        self._first = [Published(self._feed.released, SessionLagged(), time.time(), numbered=False)]
        if self.on_cut is not None:
            self.on_cut()

    def close(self) -> None:
        """
        Stop following; a reader that waits gets the end. Harmless at any time.
        """
        self._feed.detach(self)
        self._closed = True
        self.wake()


def _settle(news: asyncio.Future[None]) -> None:
    if not news.done():
        news.set_result(None)
