"""
The transport over the openai SDK: its client and connections, not its typed streams, which cost ten times the CPU.

For what needs the SDK's own ways of asking; `agent_harness.llm.upstream_http` is the default. The only file that
imports the SDK, inside functions: that takes 0.7 s. What the SDK would take from ``OPENAI_*`` variables is overridden
here.
"""

import asyncio
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from agent_harness.config import ProviderSettings
from agent_harness.llm.upstream_transport import PIECE_BYTES, Unpackable, cut_body

if TYPE_CHECKING:
    import httpx2
    import openai

__all__ = ["SdkReply", "SdkTransport", "load_sdk"]


@functools.cache
def load_sdk() -> Any:
    """
    Import the SDK, about 0.7 s; its client's class. Blocks; a server calls it in a thread after it began to listen.
    """
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


class SdkReply:
    """
    A `Reply` over the SDK's response; *body* is that of an error, which the SDK has read already.
    """

    __slots__ = ("_body", "_chunks", "_response", "headers", "status")

    def __init__(self, response: "httpx2.Response", body: bytes | None = None) -> None:
        self._response, self._body = response, body
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers
        # A server that packs its stream is rare, and reading without unpacking is cheaper.
        self._chunks: AsyncGenerator[bytes, None] = (
            response.aiter_bytes() if "content-encoding" in response.headers else response.aiter_raw()
        )

    async def read_piece(self, deadline: float) -> bytes:
        """
        See `Reply`.
        """
        import httpx2

        try:
            async with asyncio.timeout_at(deadline):
                return await anext(self._chunks, b"")
        except httpx2.DecodingError as error:
            raise Unpackable(str(error)) from error

    async def read_error(self) -> bytes:
        """
        See `Reply`.
        """
        return self._body or b""

    async def aclose(self) -> None:
        """
        See `Reply`.
        """
        await self._chunks.aclose()
        await self._response.aclose()


class SdkTransport:
    """
    A `Transport` over the SDK's client and its aiohttp connections. Blocks while it is made, 0.04 s after `load_sdk`.

    Args:
        settings: the provider.
        key: its key, or None.
    """

    def __init__(self, settings: ProviderSettings, key: str | None) -> None:
        client_class = load_sdk()
        import httpx2
        import openai

        # Redirects are not followed: key and transcript go where the settings say.
        http = openai.DefaultAioHttpClient(
            timeout=None, limits=httpx2.Limits(max_connections=0), follow_redirects=False
        )
        # Without a key the SDK would look for one in the environment; the empty one set afterwards means none.
        client = client_class(
            api_key=key or "none", base_url=settings.base_url, max_retries=0, timeout=None, http_client=http
        )
        client.api_key = key or ""
        client.own_headers = {
            "Accept": "text/event-stream",
            # What is packed on its way is often held back until there is enough of it.
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": "agent-harness",
            **settings.headers,
        }
        self._client: openai.AsyncOpenAI = client
        # The pool has no limit, so that waiting for a connection is only resolving the name and connecting.
        self._timeout = httpx2.Timeout(None, connect=settings.connect_timeout_s, pool=settings.connect_timeout_s)
        self._headers: dict[str, str | openai.Omit] = {"x-stainless-retry-count": openai.Omit()}
        if not key and not any(name.lower() == "authorization" for name in settings.headers):
            self._headers["Authorization"] = openai.Omit()

    async def post(self, path: str, body: bytes, session_id: str) -> SdkReply:
        """
        See `Transport`.
        """
        import httpx2
        import openai

        headers = {**self._headers, "x-session-id": session_id}
        content: bytes | AsyncIterator[bytes] = body
        if len(body) > PIECE_BYTES:
            # With its length: not every server takes a body in chunks.
            content, headers["Content-Length"] = _copied(cut_body(body)), str(len(body))
        try:
            response = await self._client.post(
                path,
                content=content,
                cast_to=httpx2.Response,
                stream=True,
                options={"headers": headers, "timeout": self._timeout, "security": {"bearer_auth": True}},
            )
        except openai.APIStatusError as error:
            return SdkReply(error.response, error.response.content)
        return SdkReply(response)

    async def aclose(self) -> None:
        """
        See `Transport`.
        """
        await self._client.close()


async def _copied(pieces: AsyncIterator[memoryview]) -> AsyncIterator[bytes]:
    """
    What the SDK's client takes: bytes.
    """
    async for piece in pieces:
        yield bytes(piece)
