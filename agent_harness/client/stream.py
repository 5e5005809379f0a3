"""
A session's events as they come, over as many connections as it takes: none lost, none twice.
"""

from collections import deque
from typing import Any

import aiohttp
import orjson

from agent_harness.client.connection import Again, Connection, Retries
from agent_harness.protocol.events import OutputItemDone, SessionGap, SessionLagged, SessionStatus
from agent_harness.protocol.sse import Frame, FrameReader
from agent_harness.protocol.tolerant import AnyEvent, UnknownEvent, read_event

__all__ = ["EventStream"]

_DONE = b"[DONE]"


class EventStream:
    """
    An async iterator of events; made by `agent_harness.client.Session.follow`. Leave it with ``await aclose()``,
    ``async with``, or by dropping it.

    A connection that breaks, even inside a frame, is opened again from the last number that was read. So is one that
    the server cut because it was read too slowly (``session.lagged``). Events that the server no longer keeps by then
    show as a `SessionGap`. The stream ends when the session is deleted, or the server stops.

    Attributes:
        seq: the number of the newest event that came out: ``follow(after=seq)`` goes on behind it.
        opening: the status at the moment the present connection was opened.
        opening_seq: the newest number at that moment.
    """

    def __init__(self, connection: Connection, path: str, after: int | None) -> None:
        self.seq = after
        self.opening: SessionStatus | None = None
        self.opening_seq = 0
        self._connection = connection
        self._path = path
        self._retries, self._resumes = Retries(connection), Retries(connection)
        self._response: aiohttp.ClientResponse | None = None
        self._reader = FrameReader()
        self._frames: deque[Frame] = deque()
        self._events: deque[AnyEvent] = deque()
        self._held: list[AnyEvent] = []
        self._last_id = ""
        self._opened = self._greeted = self._over = False
        self._failure: Exception | None = None
        connection.streams.add(self)

    def __aiter__(self) -> "EventStream":
        return self

    async def __anext__(self) -> AnyEvent:
        """
        The next event.

        Raises:
            NotFound: there is no such session, or no longer.
            RequestError: the server refuses for another reason.
            ConnectionError: it cannot be reached.
        """
        while True:
            if self._failure is not None:
                raise self._failure
            if self._events:
                return self._events.popleft()
            if self._frames:
                self._take(self._frames.popleft())
            elif self._over:
                self._drop()
                raise StopAsyncIteration
            else:
                await self._read()

    async def __aenter__(self) -> "EventStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def aclose(self) -> None:
        """
        Stop following; idempotent.
        """
        self.close()

    async def resume(self) -> None:
        """
        Go on behind an end that the server told: it stops, or starts again.

        Raises:
            ConnectionError: it has done so for long.
        """
        self._over = False
        await self._resumes.wait(Again(ConnectionError("the server ended the stream")))

    def close(self, failure: Exception | None = None) -> None:
        """
        Stop following, from anywhere; whoever waits for an event gets *failure*, or the end.
        """
        self._over = True
        self._failure = self._failure or failure
        self._frames.clear()
        self._events.clear()
        self._drop()

    def __del__(self) -> None:
        self._drop()

    # One connection after another.

    async def _read(self) -> None:
        """
        Read what has come, or open the connection that it will come by.
        """
        try:
            if self._response is None:
                await self._open()
            else:
                chunk = await self._read_chunk(self._response)
                self._frames.extend(self._reader.feed(chunk))
        except Again as again:
            self._drop()
            if not self._over:
                await self._retries.wait(again)

    async def _open(self) -> None:
        timing = self._connection.timing
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
        if self.seq is not None:
            headers["Last-Event-ID"] = str(self.seq)
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=timing.connect_timeout_s, sock_read=timing.idle_timeout_s
        )
        response = await self._connection.open("GET", self._path, headers=headers, timeout=timeout)
        if self._over:
            response.close()
            return
        self._response, self._reader = response, FrameReader()
        self._opened, self._held, self._last_id = False, [], ""

    async def _read_chunk(self, response: aiohttp.ClientResponse) -> bytes:
        try:
            chunk = await response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise Again(error) from error
        if not chunk:
            raise Again(ConnectionError("the stream broke off"))
        return chunk

    def _drop(self) -> None:
        response, self._response = getattr(self, "_response", None), None
        if response is not None:
            response.close()

    # One frame after another.

    def _take(self, frame: Frame) -> None:
        """
        Put what *frame* tells into ``_events``, unless it was told before.
        """
        if frame.data == _DONE:
            self._over = True
            return
        try:
            data = orjson.loads(frame.data)
        except orjson.JSONDecodeError:
            data = None
        if not isinstance(data, dict):
            self._events.append(UnknownEvent(frame.event, {"data": frame.data.decode(errors="replace")}))
            return
        event = read_event(data)
        if not self._opened:
            self._opened = True
            self._retries.reset()
            if isinstance(event, SessionStatus):
                self._take_opening(event, data)
                return
        if self._held:
            if isinstance(event, OutputItemDone) and event.replayed:
                self._take_announced(event)
                return
            self._tell_held()
        if isinstance(event, SessionLagged):
            self._drop()
            self._frames.clear()
        elif isinstance(event, SessionGap):
            # What follows begins with first_seq, whatever was read before: numbers may have begun anew.
            self.seq = data.get("seq") if event.first_seq is None else event.first_seq - 1
            self._events.append(event)
        elif self._is_news(event, frame, data.get("seq")):
            self._events.append(event)
        self._last_id = frame.id

    def _take_opening(self, event: SessionStatus, data: dict[str, Any]) -> None:
        """
        The first frame of a connection: told once. Without a number, the open calls announced behind it belong to it:
        until all of them are here nothing is told, so that a connection that breaks between them loses none.
        """
        self.opening, self.opening_seq = event, data.get("seq") or 0
        if self.seq is None and event.required_actions:
            self._held = [event]
            return
        if self.seq is None:
            self.seq = self.opening_seq
        if not self._greeted:
            self._greeted = True
            self._events.append(event)

    def _take_announced(self, event: AnyEvent) -> None:
        self._held.append(event)
        if self.opening is None or len(self._held) > len(self.opening.required_actions):
            self._tell_held()

    def _tell_held(self) -> None:
        self.seq = self.opening_seq
        self._greeted = True
        self._events.extend(self._held)
        self._held = []

    def _is_news(self, event: AnyEvent, frame: Frame, number: Any) -> bool:
        """
        Whether the event was not told before; its number is noted. An event has one if its frame's id is its number. A
        frame without an id bears that of the one before: so may an event of a type that nobody here knows.
        """
        if not isinstance(number, int) or frame.id != str(number):
            return True
        if isinstance(event, UnknownEvent) and frame.id == self._last_id:
            return True
        if self.seq is not None and number <= self.seq:
            return False
        self.seq = number
        self._resumes.reset()
        return True
