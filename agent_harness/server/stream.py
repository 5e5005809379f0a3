"""
Streams: a follower's events as the body of one HTTP response.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextvars import copy_context

from aiohttp import web

from agent_harness.engine.follower import Follower, Published
from agent_harness.engine.following import Everything, Part, UntilIdle, follow_message
from agent_harness.engine.replies import Sent
from agent_harness.engine.session import Session
from agent_harness.errors import InvalidRequest
from agent_harness.logs import Line
from agent_harness.protocol.encode import encode_event
from agent_harness.protocol.sse import DONE
from agent_harness.server.event_stream import EventStream
from agent_harness.server.holding import HARNESS

__all__ = ["let_begin", "stream_message", "stream_session"]

log = logging.getLogger(__name__)

RETRY_MS = 1000
"""What a browser waits before it connects again, in milliseconds; stands in the first frame."""

HEAD_START = 2
"""How many turns of the event loop it takes to bring a request to a model server on its way."""

WRITE_BYTES = 64 * 1024
"""How much is written at once, about: who reads slowly costs so much memory beside what is kept for all."""

WRITE_EVENTS = 64
"""How many events are read at once."""


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
    follower, part = follow_message(session, sent)
    return await _write_stream(request, follower, part, ping_s, headers, head_start=True)


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
    except Exception:
        if not stream.prepared:
            raise
        # Its head is out, so that no error can be answered any more: the client finds it cut, and resumes by number.
        log.exception(Line("a stream broke"))
        stream.abort()
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
