"""
The transport over aiohttp's client: the cheapest way from a socket to bytes, and the default.

It does what the SDK's does with the same settings: URL, key and headers from them only, the proxies and certificates
that the environment names, no redirects, no cookies.
"""

import asyncio
import os
import platform
import ssl
from collections.abc import AsyncIterator, Mapping
from urllib.request import getproxies, proxy_bypass

from aiohttp import (
    ClientPayloadError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    TCPConnector,
)
from aiohttp.http_exceptions import ContentEncodingError
from multidict import CIMultiDict
from yarl import URL

from agent_harness.config import ProviderSettings
from agent_harness.llm.upstream_transport import PIECE_BYTES, Unpackable, cut_body

__all__ = ["HttpReply", "HttpTransport", "make_tls"]

LOOK_S = 1.0
"""How often a connection is looked at while nothing comes, in seconds."""

ERROR_BYTES = 1024 * 1024
"""How much of an error's body is read, in bytes."""


class HttpReply:
    """
    A `Reply` over aiohttp's response.
    """

    __slots__ = ("_deadline", "_expired", "_gone", "_reading", "_response", "_timer", "headers", "status")

    def __init__(self, response: ClientResponse) -> None:
        self._response = response
        self.status: int = response.status
        self.headers: Mapping[str, str] = response.headers
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._reading = self._expired = self._gone = False

    async def read_piece(self, deadline: float) -> bytes:
        """
        See `Reply`.
        """
        content = self._response.content
        try:
            data = content.read_nowait()
            if data or content.at_eof():
                return data
            self._watch(deadline)
            return await content.readany()
        except Exception as error:
            if self._expired:
                raise TimeoutError from error
            if isinstance(error, ClientPayloadError) and isinstance(error.__cause__, ContentEncodingError):
                raise Unpackable(error.__cause__.message) from error
            raise
        finally:
            self._reading = False

    async def read_error(self) -> bytes:
        """
        See `Reply`.
        """
        found = bytearray()
        while len(found) < ERROR_BYTES and (piece := await self._response.content.readany()):
            found += piece
        return bytes(found)

    async def aclose(self) -> None:
        """
        See `Reply`.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._response.close()

    def _watch(self, deadline: float) -> None:
        """
        Close the connection if this read has nothing at *deadline*.
        """
        self._deadline, self._reading = deadline, True
        if self._timer is not None and self._timer.when() > deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            # One timer for the whole stream, not one for each piece: it looks how things stand when it goes off.
            self._look_later()

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(min(self._deadline, loop.time() + LOOK_S), self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._reading:
            # The next read sets it again.
            self._gone = False
            return
        self._expired = asyncio.get_running_loop().time() >= self._deadline
        # At a good end it is gone too, for a moment, before the reader hears of it.
        was_gone, self._gone = self._gone, self._is_gone()
        if self._expired or (was_gone and self._gone):
            self._response.close()
        else:
            self._look_later()

    def _is_gone(self) -> bool:
        """
        Whether the connection was closed without a word to who reads: so aiohttp does at a chunk that it cannot parse.
        """
        connection = self._response.connection
        transport = None if connection is None else connection.transport
        return transport is None or transport.is_closing()


class HttpTransport:
    """
    A `Transport` over aiohttp's client. Make it where its event loop runs.

    Args:
        settings: the provider.
        key: its key, or None.
        tls: how to speak TLS; None where the base URL needs none.
    """

    def __init__(self, settings: ProviderSettings, key: str | None, tls: ssl.SSLContext | None) -> None:
        self._base = URL(settings.base_url)
        self._proxy = find_proxy(self._base)
        self._urls: dict[str, URL] = {}
        headers = CIMultiDict(
            {
                "Accept": "text/event-stream",
                # What is packed on its way is often held back until there is enough of it.
                "Accept-Encoding": "identity",
                "Content-Type": "application/json",
                "User-Agent": "agent-harness",
            }
        )
        if key:
            headers["Authorization"] = f"Bearer {key}"
        headers.update(settings.headers)
        self._session = ClientSession(
            connector=TCPConnector(limit=0, ssl=True if tls is None else tls),
            cookie_jar=DummyCookieJar(),
            headers=headers,
            timeout=ClientTimeout(
                total=None, connect=settings.connect_timeout_s, sock_connect=settings.connect_timeout_s
            ),
        )

    async def post(self, path: str, body: bytes, session_id: str) -> HttpReply:
        """
        See `Transport`.
        """
        headers = {"x-session-id": session_id}
        content: bytes | AsyncIterator[memoryview] = body
        if len(body) > PIECE_BYTES:
            # With its length: not every server takes a body in chunks.
            content, headers["Content-Length"] = cut_body(body), str(len(body))
        url = self._urls.get(path)
        if url is None:
            # A query of the base URL stays behind the path.
            url = self._urls[path] = self._base.with_path(
                self._base.path.rstrip("/") + path, keep_query=True, keep_fragment=False
            )
        response = await self._session.post(
            url, data=content, headers=headers, allow_redirects=False, proxy=self._proxy
        )
        return HttpReply(response)

    async def aclose(self) -> None:
        """
        See `Transport`.
        """
        await self._session.close()


def find_proxy(url: URL) -> URL | None:
    """
    The proxy that the environment (``HTTPS_PROXY``, ``NO_PROXY`` and the like) names for *url*.
    """
    proxies = getproxies()
    found = proxies.get(url.scheme) or proxies.get("all")
    if not found or url.host is None or proxy_bypass(url.host):
        return None
    return URL(found if "://" in found else f"http://{found}")


def make_tls(base_url: str) -> ssl.SSLContext | None:
    """
    How to speak TLS to *base_url*, None where it is plain HTTP. Reads certificates, about 0.04 s: call it in a thread.

    The authorities are those that ``SSL_CERT_FILE`` or ``SSL_CERT_DIR`` name, else the system's.
    """
    if URL(base_url).scheme != "https":
        return None
    cafile, capath = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if not cafile and not capath and platform.system() == "Darwin":
        # Where OpenSSL knows nothing of the system's store.
        import truststore

        return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Named outright, so that a file that cannot be read is told of.
    return ssl.create_default_context(cafile=cafile or None, capath=capath or None)
