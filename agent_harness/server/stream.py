"""
Streams: a follower's events as the body of one HTTP response.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import Any
from weakref import WeakSet

from aiohttp import ClientConnectionResetError, HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp_sse import EventSourceResponse

from agent_harness.engine.feed import Follower, Published
from agent_harness.engine.following import Everything, OneResponse, Part, UntilIdle
from agent_harness.engine.replies import Sent
from agent_harness.engine.session import Session
from agent_harness.errors import InvalidRequest
from agent_harness.logs import Line
from agent_harness.protocol.encode import encode_event
from agent_harness.protocol.events import TERMINAL_EVENTS
from agent_harness.protocol.sse import DONE, PING
from agent_harness.server.holding import HARNESS

__all__ = ["EventStream", "let_begin", "stream_message", "stream_session"]

log = logging.getLogger(__name__)

RETRY_MS = 1000
"""What a browser waits before it connects again, in milliseconds; stands in the first frame."""

HEAD_START = 2
"""How many turns of the event loop it takes to bring a request to a model server on its way."""

WRITE_BYTES = 64 * 1024
"""How much is written at once, about: who reads slowly costs so much memory beside what is kept for all."""

WRITE_EVENTS = 64
"""How many events are read at once."""

LAST_WORD_S = 5.0
"""How long a follower has to read its last frames once it fell behind or the session ended, in seconds."""


_TIMED: WeakSet[asyncio.Transport] = WeakSet()
"""Connections that have the kernel's time-out for dead peers."""


class EventStream(EventSourceResponse):
    """
    An event stream with LF line ends whose ping is one comment line, without a blank line behind it. A timer writes it:
    a task for each stream, as in the base class, costs more than what else begins and ends one.

    Args:
        request: what it answers.
        ping_s: longest silence, in seconds.
        on_lost: called when a ping finds that the client is gone.
    """

    # The head goes out with the first frame, in one write; aiohttp has no public name for this.
    _send_headers_immediately = False

    def __init__(self, request: web.Request, ping_s: float, on_lost: Callable[[], None]) -> None:
        super().__init__(sep="\n", allow_all_methods=True, ping_interval=ping_s)
        self._loop = asyncio.get_running_loop()
        self._connection, self._writer = request.protocol, request.writer
        self._on_lost = on_lost
        self._lost = False
        self._written_at = self._loop.time()
        self._next_ping: asyncio.TimerHandle | None = None
        self._cut: asyncio.TimerHandle | None = None
        self._in_chunks = request.version >= HttpVersion11
        if not self._in_chunks:
            # Without chunks, only the end of the connection tells the end of the body.
            self.force_close()
            self.headers["Connection"] = "close"

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """
        Begin; the head goes out with the first frame.

        Raises:
            ConnectionError: the client is gone.
        """
        if request.transport is None:
            raise ClientConnectionResetError("the client has left")
        if self.prepared:
            return await super().prepare(request)
        self._set_tcp_user_timeout(request)
        # Past the base class, which would begin its task.
        writer = await web.StreamResponse.prepare(self, request)
        self._ping_later()
        return writer

    def is_connected(self) -> bool:
        """
        Whether the stream has begun, and no ping has found the client gone.
        """
        return self.prepared and not self._lost

    def stop_streaming(self) -> None:
        """
        End the pings.
        """
        if self._next_ping is not None:
            self._next_ping.cancel()
            self._next_ping = None

    def cut_soon(self) -> None:
        """
        Give the reader a moment for the last frames; one that reads nothing is cut, so that it holds up nobody's end.
        """
        if self._connection.transport is not None and self._cut is None:
            self._cut = self._loop.call_later(LAST_WORD_S, self._connection.transport.abort)

    def spare(self) -> None:
        """
        Take `cut_soon` back: the connection may serve other requests.
        """
        if self._cut is not None:
            self._cut.cancel()

    @property
    def is_sent(self) -> bool:
        """
        Whether all that was written has left for the client: the connection may then serve other requests.
        """
        transport: Any = self._connection.transport
        return transport is not None and transport.get_write_buffer_size() == 0

    @property
    def is_slow(self) -> bool:
        """
        Whether the client has yet to read much of what was written.
        """
        return self._connection.writing_paused

    async def write_frames(self, frames: bytes) -> None:
        """
        Write whole frames, as soon as the client is not slow.

        Raises:
            ConnectionError: the client is gone.
        """
        await self._writer.drain()
        self._written_at = self._loop.time()
        await self.write(frames)

    def write_now(self, frames: bytes) -> None:
        """
        Write whole frames behind the first: `write_frames` without its layers and without a wait.

        Raises:
            ConnectionError: the client is gone.
        """
        transport = self._connection.transport
        if transport is None or transport.is_closing():
            raise ClientConnectionResetError("the client has left")
        self._written_at = self._loop.time()
        chunk = b"%x\r\n%b\r\n" % (len(frames), frames) if self._in_chunks else frames
        self._writer.output_size += len(chunk)
        transport.write(chunk)

    def _ping_later(self) -> None:
        self._next_ping = self._loop.call_at(self._written_at + self._ping_interval, self._ping_if_silent)

    def _ping_if_silent(self) -> None:
        try:
            if self._loop.time() - self._written_at >= self._ping_interval:
                self._writer.send_headers()
                self.write_now(PING)
        except ConnectionError:
            self._lost = True
            self._on_lost()
        else:
            self._ping_later()

    def _set_tcp_user_timeout(self, request: web.BaseRequest) -> None:
        """
        Once for a connection: it stays, for the streams that follow.
        """
        transport = request.transport
        if transport is not None and transport not in _TIMED:
            super()._set_tcp_user_timeout(request)
            self._saved_tcp_user_timeout = None
            _TIMED.add(transport)


class Teller:
    """
    Writes what a follower has to read by a callback, in the turn of the event loop after it came. Waking the handler's
    task for each event, through everything that it is wrapped in, would cost as much as sending the bytes; so the
    handler sleeps, and wakes when the reader is slow and at the end.
    """

    __slots__ = ("_context", "_follower", "_left", "_loop", "_over", "_part", "_rest", "_stream")

    def __init__(self, stream: EventStream, follower: Follower, part: Part) -> None:
        self._loop = asyncio.get_running_loop()
        self._stream, self._follower, self._part = stream, follower, part
        self._rest: asyncio.Future[None] | None = None
        self._over = False
        self._left = b""
        self._context = copy_context()

    async def tell(self) -> bytes:
        """
        Write until the follower, or its part, is at its end. Returns the last frames, which are not written yet.

        Raises:
            ConnectionError: the client is gone.
        """
        frames = await self._open()
        while not self._over:
            await self._stream.write_frames(frames)
            self._rest = self._loop.create_future()
            self._look()
            try:
                await self._rest
            finally:
                # An error in it holds the frames it came through, and so this object.
                self._rest = None
            frames = self._left
        return frames

    async def _open(self) -> bytes:
        """
        The first frame, and what is there behind it.
        """
        first = await self._follower.take()
        if not first:
            # A ping found that the client is gone.
            self._over = True
            return b""
        opening, *others = self._part.choose(first)
        self._over = self._part.over
        frame = encode_event(opening.event, opening.seq, opening.at, numbered=False, retry=RETRY_MS)
        return frame + _join(others) + self._collect()

    def _collect(self) -> bytes:
        """
        The frames of what is there, up to about `WRITE_BYTES`.
        """
        frames = b""
        while not self._over and len(frames) < WRITE_BYTES:
            batch = self._follower.ready(WRITE_EVENTS)
            if batch is None:
                break
            frames += _join(self._part.choose(batch))
            self._over = self._part.over or not batch
        return frames

    def _look_soon(self) -> None:
        self._loop.call_soon(self._look, context=self._context)

    def _look(self) -> None:
        rest = self._rest
        if rest is None or rest.done():
            # The handler was cancelled.
            return
        try:
            frames = self._collect()
            if self._over or (frames and self._stream.is_slow):
                self._left = frames
                rest.set_result(None)
                return
            if frames:
                self._stream.write_now(frames)
            if len(frames) < WRITE_BYTES:
                self._follower.call_at_news(self._look_soon)
            else:
                self._look_soon()
        except Exception as error:
            rest.set_exception(error)
            del rest


def _join(batch: list[Published]) -> bytes:
    """
    The frames of *batch*; mostly it is one.
    """
    return batch[0].frame if len(batch) == 1 else b"".join([published.frame for published in batch])


async def let_begin() -> None:
    """
    Let what was just taken set the model to work, which then works while its answer here is written.
    """
    for _ in range(HEAD_START):
        await asyncio.sleep(0)


async def stream_session(request: web.Request, session: Session, ping_s: float) -> web.StreamResponse:
    """
    ``GET …/stream``: from ``Last-Event-ID``, else ``after``, else from now on; with ``until=idle`` to the next rest.

    Raises:
        InvalidRequest: ``until`` is something else.
        NotFound: the session was deleted.
    """
    until = request.query.get("until")
    if until not in (None, "idle"):
        raise InvalidRequest("until can only be idle.", param="until")
    after = request.headers.get("Last-Event-ID", request.query.get("after"))
    follower = session.follow(after)
    resting = after is not None and session.status in ("idle", "failed")
    part: Part = UntilIdle(resting) if until else Everything()
    return await _write_stream(request, follower, part, ping_s)


async def stream_message(
    request: web.Request, session: Session, sent: Sent, ping_s: float, headers: Mapping[str, str] | None = None
) -> web.StreamResponse:
    """
    ``POST …/events?stream=true``: the events of the message's response, from before the message took effect.
    """
    follower = session.follow(sent=sent)
    begun = session.transcript.turns[sent.response_id].status == "in_progress"
    part = OneResponse(sent.response_id, begun, _is_forgotten(session, sent.response_id))
    return await _write_stream(request, follower, part, ping_s, headers, head_start=True)


def _is_forgotten(session: Session, response_id: str) -> bool:
    """
    Whether the response has ended and the feed does not hold its end any more (since a restart, say).
    """
    if session.transcript.turns[response_id].completed_at is None:
        return False
    kept = (published.event for published in session.feed.kept())
    return not any(isinstance(event, TERMINAL_EVENTS) and event.response.id == response_id for event in kept)


async def _write_stream(
    request: web.Request,
    follower: Follower,
    part: Part,
    ping_s: float,
    headers: Mapping[str, str] | None = None,
    head_start: bool = False,
) -> web.StreamResponse:
    stream = EventStream(request, ping_s, follower.close)
    stream.headers.update(headers or {})
    follower.on_cut = stream.cut_soon
    try:
        if head_start:
            await let_begin()
        await request.app[HARNESS].committed()
        await stream.prepare(request)
        last = await Teller(stream, follower, part).tell()
        stream.stop_streaming()
        if stream.is_connected():
            await stream.write_eof(last if follower.lagged else last + DONE)
    except ConnectionError:
        # The client left. That is its right, and cancels nothing.
        pass
    finally:
        stream.stop_streaming()
        follower.close()
        # Each holds the other: apart they go by themselves.
        follower.on_cut = None
        if follower.lagged:
            log.info(Line("follower lagged behind and was cut"))
        if not follower.lagged or stream.is_sent:
            stream.spare()
        else:
            stream.force_close()
    return stream
