"""
The adapter for Chat Completions (``/chat/completions``), OpenAI's and that of the many servers that imitate it.

What is sent stands in `chat_request`, what is read in `chat_reader`. After a ``finish_reason`` only the usage is waited
for, a short time, and what breaks then breaks nothing.
"""

import asyncio
from collections.abc import AsyncGenerator

from agent_harness.config import ProviderSettings
from agent_harness.llm.base import Delta, Request
from agent_harness.llm.chat_reader import AnswerReader
from agent_harness.llm.chat_request import encode_body, output_limit
from agent_harness.llm.upstream import AnswerStream, Event, Upstream, UpstreamError, with_retries
from agent_harness.llm.upstream_retries import Batches, TextOutputs, one_by_one

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
        return one_by_one(
            self._text_outputs.ask(request, self._settings, lambda settings: self._try(request, settings))
        )

    async def aclose(self) -> None:
        """
        Close the connections.
        """
        if self._owns_upstream:
            await self._upstream.aclose()

    def _try(self, request: Request, settings: ProviderSettings) -> Batches:
        body = encode_body(request, settings)
        return with_retries(settings, lambda: self._ask(request, body))

    async def _ask(self, request: Request, body: bytes) -> Batches:
        answer = AnswerReader(output_limit(request, self._settings))
        stream = await self._upstream.open(PATH, body, request.session_id)
        try:
            while (events := await _read_next(stream, answer)) is not None:
                yield [delta for _, chunk in events for delta in answer.feed(chunk)]
        finally:
            await stream.aclose()
        yield list(answer.end())


async def _read_next(stream: AnswerStream, answer: AnswerReader) -> list[Event] | None:
    """
    The next events, None when no more come: behind ``finish_reason`` they are waited for a short time only.
    """
    if not answer.finished:
        return await stream.next()
    if answer.failure is not None:
        return None
    try:
        async with asyncio.timeout(END_WAIT_S if answer.has_usage else USAGE_WAIT_S):
            return await stream.next()
    except TimeoutError:
        return None
    except UpstreamError as error:
        if error.code in ("upstream_disconnected", "upstream_idle", "upstream_invalid"):
            return None
        raise
