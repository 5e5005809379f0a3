"""
The adapter for Chat Completions (``/chat/completions``), OpenAI's and that of the many servers that imitate it.

What is sent stands in `chat_request`, what is read in `chat_reader`. After a ``finish_reason`` only the usage is waited
for, a short time, and what breaks then breaks nothing.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from agent_harness.config import ProviderSettings
from agent_harness.llm.base import Delta, Request
from agent_harness.llm.chat_reader import AnswerReader
from agent_harness.llm.chat_request import encode_body, output_limit
from agent_harness.llm.upstream import AnswerStream, Event, Upstream, UpstreamError
from agent_harness.llm.upstream_retries import TextOutputs, ask_until_told

__all__ = ["ChatModel"]

PATH = "/chat/completions"

USAGE_WAIT_S = 5.0
"""Longest silence after ``finish_reason`` while the usage is still missing, in seconds."""

END_WAIT_S = 0.25
"""The same once the usage is known: only the end marker is missing, with which the connection can be used again."""


class ChatModel:
    """
    Answers over Chat Completions; see `agent_harness.llm.base` for the contract.

    Args:
        settings: the provider.
        upstream: the connection to it; by default its own, which `aclose` closes.
    """

    def __init__(self, settings: ProviderSettings, upstream: Upstream | None = None) -> None:
        self.default_model = settings.model
        self._settings = settings
        self._upstream = upstream or Upstream(settings)
        self._owns_upstream = upstream is None
        self._text_outputs = TextOutputs()

    def body(self, request: Request) -> bytes:
        """
        The JSON body that `stream` would send.
        """
        return encode_body(request, self._text_outputs.settings_for(request, self._settings))

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """
        Answer *request*.

        Raises:
            UpstreamError: the call failed.
        """
        return ask_until_told(
            request, self._settings, self._text_outputs, lambda settings: self._ask(request, settings)
        )

    async def aclose(self) -> None:
        """
        Close the connections.
        """
        if self._owns_upstream:
            await self._upstream.aclose()

    async def _ask(self, request: Request, settings: ProviderSettings) -> "ChatAnswer":
        body = encode_body(request, settings)
        limit = output_limit(request, self._settings)
        return ChatAnswer(await self._upstream.open(PATH, body, request.session_id), limit)


class ChatAnswer:
    """
    One answer: an `agent_harness.llm.upstream_retries.Attempt`.

    Args:
        stream: its events.
        limit: the bound on output tokens that was asked for.
    """

    __slots__ = ("_over", "_reader", "_stream")

    def __init__(self, stream: AnswerStream, limit: int | None) -> None:
        self._stream, self._reader = stream, AnswerReader(limit)
        self._over = False

    async def next(self) -> Sequence[Delta] | None:
        """
        The next deltas, `Ended` last.

        Raises:
            UpstreamError: the answer failed, or stopped before its end.
        """
        if self._over:
            return None
        events = await self._read_events()
        if events is None:
            self._over = True
            await self._stream.aclose()
            return self._reader.end()
        return [delta for _, chunk in events for delta in self._reader.feed(chunk)]

    async def aclose(self) -> None:
        """
        Let go of the stream.
        """
        await self._stream.aclose()

    async def _read_events(self) -> list[Event] | None:
        """
        The next events, None when no more come: behind ``finish_reason`` they are waited for a short time only.
        """
        reader = self._reader
        if not reader.finished:
            return await self._stream.next()
        if reader.failure is not None:
            return None
        try:
            async with asyncio.timeout(END_WAIT_S if reader.has_usage else USAGE_WAIT_S):
                return await self._stream.next()
        except TimeoutError:
            return None
        except UpstreamError as error:
            if error.code in ("upstream_disconnected", "upstream_idle", "upstream_invalid"):
                return None
            raise
