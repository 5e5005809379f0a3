"""
Streams: a follower's events as the body of one HTTP response.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from aiohttp import HttpVersion11, web
from aiohttp_sse import EventSourceResponse

from agent_harness.engine.feed import Follower
from agent_harness.engine.following import Batches, read_all, read_response, read_until_idle
from agent_harness.engine.replies import Sent
from agent_harness.engine.session import Session
from agent_harness.errors import InvalidRequest
from agent_harness.logs import Line
from agent_harness.protocol.encode import encode_event
from agent_harness.protocol.events import TERMINAL_EVENTS
from agent_harness.protocol.sse import DONE, PING
from agent_harness.server.holding import HARNESS

__all__ = ["EventStream", "stream_message", "stream_session"]

log = logging.getLogger(__name__)

RETRY_MS = 1000
"""What a browser waits before it connects again, in milliseconds; stands in the first frame."""

LAST_WORD_S = 5.0
"""How long a follower has to read its last frames once it fell behind or the session ended, in seconds."""


class EventStream(EventSourceResponse):
    """
    An event stream with LF line ends whose ping is one comment line, without a blank line behind it.

    Args:
        ping_s: longest silence, in seconds.
        on_lost: called when a ping finds that the client is gone.
    """

    def __init__(self, ping_s: float, on_lost: Callable[[], None]) -> None:
        super().__init__(sep="\n", allow_all_methods=True, ping_interval=ping_s)
        self._on_lost = on_lost
        self._written_at = 0.0
        self._cut: asyncio.TimerHandle | None = None

    def cut_soon(self, request: web.Request) -> None:
        """
        Give the reader a moment for the last frames; one that reads nothing is cut, so that it holds up nobody's end.
        """
        if request.transport is not None and self._cut is None:
            self._cut = asyncio.get_running_loop().call_later(LAST_WORD_S, request.transport.abort)

    def spare(self) -> None:
        """
        Take `cut_soon` back: the connection may serve other requests.
        """
        if self._cut is not None:
            self._cut.cancel()

    async def write_frames(self, data: bytes) -> None:
        """
        Write whole frames.
        """
        self._written_at = asyncio.get_running_loop().time()
        await self.write(data)

    async def _ping(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            silent = loop.time() - self._written_at
            if silent < self._ping_interval:
                await asyncio.sleep(self._ping_interval - silent)
                continue
            try:
                await self.write_frames(PING)
            except (ConnectionError, RuntimeError):
                self._on_lost()
                return


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
    batches = read_until_idle(follower, resting) if until else read_all(follower)
    return await _write_stream(request, follower, batches, ping_s)


async def stream_message(
    request: web.Request, session: Session, sent: Sent, ping_s: float, headers: Mapping[str, str] | None = None
) -> web.StreamResponse:
    """
    ``POST …/events?stream=true``: the events of the message's response, from before the message took effect.
    """
    follower = session.follow(sent=sent)
    begun = session.transcript.turns[sent.response_id].status == "in_progress"
    batches = read_response(follower, sent.response_id, begun, _is_forgotten(session, sent.response_id))
    return await _write_stream(request, follower, batches, ping_s, headers)


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
    batches: Batches,
    ping_s: float,
    headers: Mapping[str, str] | None = None,
) -> web.StreamResponse:
    stream = EventStream(ping_s, follower.close)
    stream.headers.update(headers or {})
    if request.version < HttpVersion11:
        # Without chunks, only the end of the connection tells the end of the body.
        stream.force_close()
        stream.headers["Connection"] = "close"
    follower.on_cut = lambda: stream.cut_soon(request)
    try:
        await request.app[HARNESS].committed()
        await stream.prepare(request)
        async with stream:
            first = True
            async for batch in batches:
                frames = [published.frame for published in batch]
                if first:
                    opening = batch[0]
                    frames[0] = encode_event(opening.event, opening.seq, opening.at, numbered=False, retry=RETRY_MS)
                    first = False
                await stream.write_frames(frames[0] if len(frames) == 1 else b"".join(frames))
            if follower.lagged:
                stream.force_close()
            elif stream.is_connected():
                await stream.write_frames(DONE)
    except ConnectionError:
        # The client left. That is its right, and cancels nothing.
        pass
    finally:
        follower.close()
        if follower.lagged:
            log.info(Line("follower lagged behind and was cut"))
        else:
            stream.spare()
    return stream
