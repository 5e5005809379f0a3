"""
The response of a stream: one head, frames, pings, an end.
"""

import asyncio
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from aiohttp import ClientConnectionResetError, HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp_sse import EventSourceResponse

from agent_harness.protocol.sse import PING

__all__ = ["EventStream"]

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

    def abort(self) -> None:
        """
        Cut it now, without an end.
        """
        if self._connection.transport is not None:
            self._connection.transport.abort()

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
