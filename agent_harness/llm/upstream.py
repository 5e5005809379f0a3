"""
The one seam to a model server: bytes out, events in, over one of two transports.

Retries, waits, idle limits and errors are ours; keys, URL and headers come from our settings only.
"""

import asyncio
import logging
from typing import Any

from agent_harness.config import ProviderSettings
from agent_harness.errors import forget_frames
from agent_harness.llm.upstream_errors import (
    BROKEN,
    CONNECT,
    CUT,
    IDLE,
    NO_KEY,
    UpstreamError,
    read_error,
    read_error_body,
)
from agent_harness.llm.upstream_frames import EventReader
from agent_harness.llm.upstream_transport import Reply, Transport, Unpackable
from agent_harness.protocol.tools import clean_text

__all__ = [
    "AnswerStream",
    "Event",
    "Upstream",
    "UpstreamError",
    "load_transport",
    "read_count",
    "read_error",
]

_log = logging.getLogger(__name__)

Event = tuple[str, dict[str, Any]]

LINGER_S = 0.25
"""
How long the end of a stream is waited for behind its end marker, in seconds. A connection that was read to its end is
used again; another one is closed.
"""

ERROR_S = 5.0
"""How long the body of an error is waited for, in seconds: its status says the most."""

MESSAGE_LIMIT = 1_000
"""Longest message of an error, in characters."""

_KEY_HEADERS = frozenset({"authorization", "api-key", "x-api-key"})


def load_transport(settings: ProviderSettings) -> None:
    """
    Import what the provider's transport needs: of the SDK, about 0.7 s. Blocks; a server calls it in a thread after it
    began to listen.
    """
    if settings.transport == "openai":
        from agent_harness.llm.upstream_sdk import load_sdk

        load_sdk()
    else:
        from agent_harness.llm import upstream_http  # noqa: F401


class Upstream:
    """
    A connection pool to one model server. Belongs to one event loop, the one it is first used in.
    """

    def __init__(self, settings: ProviderSettings) -> None:
        self.settings = settings
        self._transport: Transport | None = None
        self._closed = False

    async def warm(self) -> None:
        """
        Make the transport ready, without blocking the loop. Done by itself at the first use.
        """
        await self._open()

    async def aclose(self) -> None:
        """
        Close all connections; streams that still run are cut. Doing it again does nothing.
        """
        self._closed = True
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    async def open(self, path: str, body: bytes, session_id: str) -> "AnswerStream":
        """
        POST *body* (JSON) to *path* below the base URL; the answer's events. Cancelling closes the connection at once.

        Raises:
            UpstreamError: whatever goes wrong; nothing else is raised.
        """
        return AnswerStream(self, await self._post(path, body, session_id))

    async def _post(self, path: str, body: bytes, session_id: str) -> Reply:
        transport = self._transport or await self._open()
        scope = asyncio.timeout(self.settings.idle_timeout_s)
        try:
            async with scope:
                reply = await transport.post(path, body, session_id)
                if 200 <= reply.status < 300:
                    return reply
                said = await _read_error(reply)
        except Exception as error:
            _log.debug("a request failed", exc_info=error)
            forget_frames(error)
            if isinstance(error, TimeoutError) and scope.expired():
                raise IDLE.error(_silence(self.settings)) from error
            words = f"The model server cannot be reached: {_root(error)}"
            raise self.clean(CONNECT.error(words)) from error
        raise self.clean(read_error_body(reply.status, reply.headers, said))

    async def _open(self) -> Transport:
        key = self._find_key()
        if self._transport is None:
            # It takes a thread for what blocks. No connection is made, so that of two that come at once one may lose
            # what it made.
            try:
                transport = await _make_transport(self.settings, key)
            except Exception as error:
                _log.exception("the transport of provider %r cannot be made", self.settings.name)
                words = f"The client of provider {self.settings.name!r} cannot be made: {_root(error)}"
                raise self.clean(UpstreamError(words, code="internal_error")) from error
            await self._keep(transport)
        if self._transport is None:
            raise UpstreamError("The adapter of this provider is closed.", code="provider_unavailable")
        return self._transport

    async def _keep(self, transport: Transport) -> None:
        if self._transport is None and not self._closed:
            self._transport = transport
        else:
            await transport.aclose()

    def _find_key(self) -> str | None:
        settings = self.settings
        key = settings.key()
        if key is None and settings.needs_key and not any(name.lower() in _KEY_HEADERS for name in settings.headers):
            variable = settings.api_key_env
            where = f"set the environment variable {variable}" if variable else "set its api_key"
            raise NO_KEY.error(
                f"The provider {settings.name!r} has no API key: {where}, or set needs_key to false if it wants none."
            )
        return key

    def clean(self, error: UpstreamError) -> UpstreamError:
        """
        *error* with a message that can be shown: cut, and without the key and the headers' values, which servers like
        to repeat.
        """
        message = clean_text(error.message)
        for secret in (self.settings.key(), *self.settings.headers.values()):
            # Shorter ones are words such as "none", and no secrets.
            if secret and len(secret) >= 6:
                message = message.replace(secret, "[hidden]")
        if len(message) > MESSAGE_LIMIT:
            message = message[: MESSAGE_LIMIT - 1] + "…"
        error.message, error.args = message, (message,)
        return error


class AnswerStream:
    """
    The events of one answer, as they come. Belongs to one reader, who closes it, whatever happens.
    """

    __slots__ = ("_deadline", "_ended", "_reader", "_reply", "_time", "_upstream")

    def __init__(self, upstream: Upstream, reply: Reply) -> None:
        self._upstream, self._reply = upstream, reply
        self._reader = EventReader()
        self._time = asyncio.get_running_loop().time
        self._deadline = self._time() + upstream.settings.idle_timeout_s
        self._ended = False

    async def next(self) -> list[Event] | None:
        """
        The next events, each as its name and its JSON object; None at ``[DONE]`` or the end of the stream. What came
        before a failure is given first. Cancelling leaves the stream of no use.

        Raises:
            UpstreamError: whatever goes wrong; nothing else is raised.
        """
        reader = self._reader
        while not reader.done and not self._ended and reader.failure is None:
            piece = await self._read_piece()
            self._ended = not piece
            events = reader.feed(piece) if piece else reader.end()
            if events:
                # What is timed is silence between events, not between bytes: comments would keep a dead stream alive.
                self._deadline = self._time() + self._upstream.settings.idle_timeout_s
                return events
            if self._time() > self._deadline and piece:
                # Bytes that are always there already leave the timer no chance.
                raise IDLE.error(_silence(self._upstream.settings))
        if reader.failure is not None:
            raise self._upstream.clean(reader.failure)
        await self.finish()
        return None

    async def finish(self) -> None:
        """
        Let go of an answer whose end marker was read: read on for a moment, so that its connection can be used again,
        and close. Nothing that comes or fails behind the end marker counts.
        """
        deadline = self._time() + LINGER_S
        try:
            while not self._ended:
                self._ended = not await self._reply.read_piece(deadline)
        except Exception as error:
            forget_frames(error)
            _log.debug("behind the end of a stream: %r", error)
        await self.aclose()

    async def aclose(self) -> None:
        """
        Close; a connection whose answer was not read to its end is closed too. Harmless at any time.
        """
        self._ended = True
        await _close(self._reply)

    async def _read_piece(self) -> bytes:
        try:
            return await self._reply.read_piece(self._deadline)
        except Exception as error:
            _log.debug("an answer broke off", exc_info=error)
            forget_frames(error)
            if isinstance(error, TimeoutError):
                raise IDLE.error(_silence(self._upstream.settings)) from error
            if isinstance(error, Unpackable):
                words = f"The model server's answer cannot be unpacked: {error}"
                raise self._upstream.clean(BROKEN.error(words)) from error
            words = f"The connection to the model server broke inside its answer: {_root(error)}"
            raise self._upstream.clean(CUT.error(words)) from error


def read_count(value: Any) -> int | None:
    """
    A count of tokens, or None where there is none that can be one.
    """
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


async def _make_transport(settings: ProviderSettings, key: str | None) -> Transport:
    if settings.transport == "openai":
        from agent_harness.llm.upstream_sdk import SdkTransport

        return await asyncio.to_thread(SdkTransport, settings, key)
    from agent_harness.llm.upstream_http import HttpTransport, make_tls

    tls = await asyncio.to_thread(make_tls, settings.base_url) if settings.base_url.startswith("https:") else None
    return HttpTransport(settings, key, tls)


async def _read_error(reply: Reply) -> bytes:
    """
    What an error says, as far as it came.
    """
    try:
        async with asyncio.timeout(ERROR_S):
            return await reply.read_error()
    except Exception as error:
        _log.debug("inside an error's body: %r", error)
        return b""
    finally:
        await _close(reply)


async def _close(reply: Reply) -> None:
    try:
        await reply.aclose()
    except Exception as error:
        # Closing a broken connection may say so again; what broke it was told already.
        _log.debug("while closing a stream: %r", error)


def _silence(settings: ProviderSettings) -> str:
    return f"The model server sent no event for {settings.idle_timeout_s:g} s."


def _root(error: BaseException) -> str:
    """
    The words of the exception that *error* goes back to: the SDK's own say only "Connection error.".
    """
    while error.__cause__ is not None:
        error = error.__cause__
    # aiohttp's parser puts a status of its own and a drawing of the place around its words.
    words = str(getattr(error, "message", error)).strip().partition("\n")[0]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
