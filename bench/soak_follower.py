"""
Followers of the soak: they read at their own pace, leave, come back with the number they read last, and miss nothing.
"""

import asyncio
import collections
import random
from collections.abc import Callable
from typing import Any

import aiohttp
import attrs
import orjson

__all__ = ["Follower", "Tally"]

AWAY_S = 0.2
"""Longest time between leaving and coming back, in seconds."""


@attrs.define
class Tally:
    """
    What the whole run counts. ``losses``, ``stuck`` and ``faults`` say in words what went wrong.
    """

    counts: collections.Counter[str] = attrs.field(factory=collections.Counter)
    outcomes: collections.Counter[str] = attrs.field(factory=collections.Counter)
    losses: list[str] = attrs.field(factory=list)
    stuck: list[str] = attrs.field(factory=list)
    faults: list[str] = attrs.field(factory=list)


class Follower:
    """
    Reads one session from its beginning to its deletion.

    Args:
        http: for its connections.
        url: of the stream.
        name: which of the session's it is, for people.
        hear: gets every event once, in order.
        pause_s: longest rest after each piece of bytes; it rests no more once the session is being deleted.
        stays: after how many frames it leaves and comes back, a range; None for never.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        url: str,
        name: str,
        tally: Tally,
        rng: random.Random,
        *,
        hear: Callable[[str, dict[str, Any]], None] | None = None,
        pause_s: float = 0.0,
        stays: tuple[int, int] | None = None,
    ) -> None:
        self.last = 0
        self.deleting = False
        self.name = name
        self._http, self._url, self._tally, self._rng = http, url, tally, rng
        self._hear, self._pause_s, self._stays = hear, pause_s, stays
        self._lagged = self._deleted = self._over = False

    async def read(self) -> None:
        """
        Follow until the session is deleted.
        """
        while not self._over:
            try:
                async with self._http.get(self._url, params={"after": str(self.last)}) as response:
                    if response.status == 404 and self.deleting:
                        return
                    if response.status != 200:
                        self._tally.faults.append(f"{self._url} {self.name}: stream answered {response.status}")
                        return
                    await self._read_response(response)
            except aiohttp.ClientError as error:
                if self._deleted:
                    return
                # A reader that reads nothing is cut where it stands, and comes back.
                if not self._pause_s:
                    self._tally.faults.append(f"{self._url} {self.name}: stream broke: {error!r}")
                self._lagged = True
                self._tally.counts["cut"] += 1
            await asyncio.sleep(self._rng.random() * AWAY_S)

    async def _read_response(self, response: aiohttp.ClientResponse) -> None:
        left = self._rng.randint(*self._stays) if self._stays else -1
        rest = bytearray()
        while True:
            end = rest.find(b"\n\n")
            if end < 0:
                if self._pause_s and not self.deleting:
                    await asyncio.sleep(self._pause_s * self._rng.random())
                chunk = await response.content.readany()
                if not chunk:
                    if not self._lagged and not self._over:
                        self._tally.losses.append(
                            f"{self._url} {self.name}: stream ended without [DONE] at {self.last}"
                        )
                    return
                rest += chunk
                continue
            frame = bytes(rest[:end])
            del rest[: end + 2]
            self._read_frame(frame)
            if self._over:
                return
            left -= 1
            if left == 0:
                self._tally.counts["left"] += 1
                return

    def _read_frame(self, frame: bytes) -> None:
        fields = dict(line.split(b": ", 1) for line in frame.split(b"\n") if not line.startswith(b":"))
        data = fields[b"data"]
        if data == b"[DONE]":
            self._over = True
            if not self.deleting:
                self._tally.losses.append(f"{self._url} {self.name}: [DONE] of a session that lives")
            return
        kind = fields[b"event"].decode()
        if b"id" in fields:
            number = int(fields[b"id"])
            if number != self.last + 1:
                what = "twice" if number <= self.last else "missing"
                self._tally.losses.append(f"{self._url} {self.name}: number {what}: {number} behind {self.last}")
            self.last = number
            self._lagged = False
            self._deleted = kind == "session.deleted"
            if self._hear is not None:
                self._hear(kind, orjson.loads(data))
        elif kind == "session.lagged":
            self._lagged = True
            self._tally.counts["lagged"] += 1
        elif kind == "session.gap":
            first = orjson.loads(data)["first_seq"]
            self._tally.counts["gaps"] += 1
            if not self._lagged:
                self._tally.losses.append(f"{self._url} {self.name}: gap behind {self.last} up to {first}")
            self.last = (first or self.last + 1) - 1
