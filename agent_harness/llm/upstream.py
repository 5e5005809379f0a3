"""
The one seam to a model server: bytes out, events in. The only file that imports the openai SDK, inside functions.

What is used of the SDK is its client and its aiohttp transport, not its typed stream, which costs ten times the CPU.
Retries, waits, idle limits and errors are ours, and keys, URL and headers come from our settings only: what the SDK
would take from ``OPENAI_*`` variables is overridden here.
"""

import asyncio
import functools
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any

from agent_harness.config import ProviderSettings
from agent_harness.errors import ModelError
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
from agent_harness.llm.upstream_retries import with_retries
from agent_harness.protocol.tools import clean_text

if TYPE_CHECKING:
    import httpx2
    import openai

__all__ = ["Upstream", "UpstreamError", "finish", "read_count", "read_error", "with_retries"]

_log = logging.getLogger(__name__)

Event = tuple[str, dict[str, Any]]

LINGER_S = 0.25
"""
How long the end of a stream is waited for behind its end marker, in seconds. A connection that was read to its end is
used again; another one is closed.
"""

PIECE_BYTES = 256 * 1024
"""
Largest body that is sent in one piece. aiohttp warns of those over 1 MiB (a turn that fails where warnings are errors),
and writes them without letting anybody else run.
"""

MESSAGE_LIMIT = 1_000
"""Longest message of an error, in characters."""

_KEY_HEADERS = frozenset({"authorization", "api-key", "x-api-key"})


@functools.cache
def _load() -> Any:
    import openai

    class Client(openai.AsyncOpenAI):
        """
        The SDK's client with no headers but those that it was given: none from ``OPENAI_CUSTOM_HEADERS``,
        ``OPENAI_ORG_ID`` or ``OPENAI_PROJECT_ID``, and none about this machine.
        """

        own_headers: Mapping[str, str] = {}

        @property
        def default_headers(self) -> dict[str, "str | openai.Omit"]:
            return dict(self.own_headers)

    return Client


class Upstream:
    """
    A connection pool to one model server. Belongs to one event loop, the one it is first used in.
    """

    def __init__(self, settings: ProviderSettings) -> None:
        self._settings = settings
        self._client: openai.AsyncOpenAI | None = None
        self._closed = False

    @staticmethod
    def load() -> None:
        """
        Import the SDK, about 0.7 s. Blocks; a server calls it in a thread after it began to listen.
        """
        _load()

    async def warm(self) -> None:
        """
        Make the client ready, without blocking the loop. Done by itself at the first use.
        """
        await self._open_client()

    async def aclose(self) -> None:
        """
        Close all connections; streams that still run are cut. Doing it again does nothing.
        """
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def events(self, path: str, body: bytes, session_id: str) -> AsyncGenerator[Event, None]:
        """
        POST *body* (JSON) to *path* below the base URL and yield each event as its name and its JSON object, until
        ``[DONE]`` or the end of the stream. Closing the generator, or cancelling its task, closes the connection at
        once.

        Raises:
            UpstreamError: whatever goes wrong; nothing else is raised.
        """
        reader = EventReader()
        loop = asyncio.get_running_loop()
        response = await self._post(path, body, session_id)
        # A server that packs its stream is rare, and reading without unpacking is cheaper.
        chunks = response.aiter_bytes() if "content-encoding" in response.headers else response.aiter_raw()
        try:
            # What is timed is silence between events, not between bytes: comments would keep a dead stream alive.
            deadline = loop.time() + self._settings.idle_timeout_s
            while not reader.done:
                chunk = await self._next_chunk(chunks, deadline)
                events = reader.end() if chunk is None else reader.feed(chunk)
                for event in events:
                    yield event
                if reader.failure is not None:
                    raise self._clean(reader.failure)
                if chunk is None:
                    return
                if events:
                    deadline = loop.time() + self._settings.idle_timeout_s
                elif loop.time() > deadline:
                    # Bytes that are always there already leave the timer no chance.
                    raise IDLE.error(_silence(self._settings))
            await _read_out(chunks)
        finally:
            await _close(chunks, response)

    async def _post(self, path: str, body: bytes, session_id: str) -> "httpx2.Response":
        client = await self._open_client()
        import httpx2
        import openai

        settings = self._settings
        # The pool has no limit, so that waiting for a connection is only resolving the name and connecting.
        timeout = httpx2.Timeout(None, connect=settings.connect_timeout_s, pool=settings.connect_timeout_s)
        headers: dict[str, str | openai.Omit] = {"x-session-id": session_id, "x-stainless-retry-count": openai.Omit()}
        if not client.api_key and not any(name.lower() == "authorization" for name in settings.headers):
            headers["Authorization"] = openai.Omit()
        content: bytes | AsyncGenerator[bytes, None] = body
        if len(body) > PIECE_BYTES:
            # With its length: not every server takes a body in chunks.
            content, headers["Content-Length"] = _cut(body), str(len(body))
        scope = asyncio.timeout(settings.idle_timeout_s)
        try:
            async with scope:
                return await client.post(
                    path,
                    content=content,
                    cast_to=httpx2.Response,
                    stream=True,
                    options={"headers": headers, "timeout": timeout, "security": {"bearer_auth": True}},
                )
        except openai.APIStatusError as error:
            answer = error.response
            failure = read_error_body(answer.status_code, answer.headers, answer.content)
            raise self._clean(failure) from error
        except Exception as error:
            if isinstance(error, TimeoutError) and scope.expired():
                raise IDLE.error(_silence(settings)) from error
            words = f"The model server cannot be reached: {_root(error)}"
            raise self._clean(CONNECT.error(words)) from error

    async def _next_chunk(self, chunks: AsyncGenerator[bytes, None], deadline: float) -> bytes | None:
        scope = asyncio.timeout_at(deadline)
        try:
            async with scope:
                return await anext(chunks, None)
        except Exception as error:
            if isinstance(error, TimeoutError) and scope.expired():
                raise IDLE.error(_silence(self._settings)) from error
            import httpx2

            if isinstance(error, httpx2.DecodingError):
                raise BROKEN.error(f"The model server's answer cannot be unpacked: {_root(error)}") from error
            words = f"The connection to the model server broke inside its answer: {_root(error)}"
            raise self._clean(CUT.error(words)) from error

    async def _open_client(self) -> "openai.AsyncOpenAI":
        key = self._find_key()
        if self._client is None:
            # In a thread: the import takes 0.7 s, reading the certificates 0.04 s. No connection is made, so that of
            # two that come at once one may lose what it made.
            try:
                self._keep(await asyncio.to_thread(self._make_client, key))
            except Exception as error:
                _log.exception("the client of provider %r cannot be made", self._settings.name)
                words = f"The client of provider {self._settings.name!r} cannot be made: {_root(error)}"
                raise self._clean(UpstreamError(words, code="internal_error")) from error
        if self._client is None:
            raise UpstreamError("The adapter of this provider is closed.", code="provider_unavailable")
        return self._client

    def _keep(self, client: "openai.AsyncOpenAI") -> None:
        if self._client is None and not self._closed:
            self._client = client

    def _make_client(self, key: str | None) -> "openai.AsyncOpenAI":
        client_class = _load()
        import httpx2
        import openai

        # Redirects are not followed: key and transcript go where the settings say.
        http = openai.DefaultAioHttpClient(
            timeout=None, limits=httpx2.Limits(max_connections=0), follow_redirects=False
        )
        # Without a key the SDK would look for one in the environment; the empty one set afterwards means none.
        client = client_class(
            api_key=key or "none", base_url=self._settings.base_url, max_retries=0, timeout=None, http_client=http
        )
        client.api_key = key or ""
        client.own_headers = {
            "Accept": "text/event-stream",
            # What is packed on its way is often held back until there is enough of it.
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": "agent-harness",
            **self._settings.headers,
        }
        made: openai.AsyncOpenAI = client
        return made

    def _find_key(self) -> str | None:
        settings = self._settings
        key = settings.key()
        if key is None and settings.needs_key and not any(name.lower() in _KEY_HEADERS for name in settings.headers):
            variable = settings.api_key_env
            where = f"set the environment variable {variable}" if variable else "set its api_key"
            raise NO_KEY.error(
                f"The provider {settings.name!r} has no API key: {where}, or set needs_key to false if it wants none."
            )
        return key

    def _clean(self, error: UpstreamError) -> UpstreamError:
        """
        *error* with a message that can be shown: cut, and without the key and the headers' values, which servers like
        to repeat.
        """
        message = clean_text(error.message)
        for secret in (self._settings.key(), *self._settings.headers.values()):
            # Shorter ones are words such as "none", and no secrets.
            if secret and len(secret) >= 6:
                message = message.replace(secret, "[hidden]")
        if len(message) > MESSAGE_LIMIT:
            message = message[: MESSAGE_LIMIT - 1] + "…"
        error.message, error.args = message, (message,)
        return error


async def finish(events: AsyncGenerator[Event, None]) -> None:
    """
    Let go of a stream whose end marker was read: read on for a moment, so that its connection can be used again, and
    close. Nothing that comes or fails behind the end marker counts.
    """
    try:
        async with asyncio.timeout(LINGER_S):
            async for _ in events:
                pass
    except (TimeoutError, ModelError):
        pass
    finally:
        await events.aclose()


def read_count(value: Any) -> int | None:
    """
    A count of tokens, or None where there is none that can be one.
    """
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


async def _cut(body: bytes) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]


async def _read_out(chunks: AsyncGenerator[bytes, None]) -> None:
    try:
        async with asyncio.timeout(LINGER_S):
            async for _ in chunks:
                pass
    except Exception as error:
        # The answer is whole already.
        _log.debug("behind the end of a stream: %r", error)


async def _close(chunks: AsyncGenerator[bytes, None], response: "httpx2.Response") -> None:
    try:
        await chunks.aclose()
        await response.aclose()
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
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
