"""
The adapter for Chat Completions (``/chat/completions``), OpenAI's and that of the many servers that imitate it.

What is sent stands in `chat_request`, what is read in `chat_reader`. After a ``finish_reason`` only the usage is waited
for, a short time, and what breaks then breaks nothing.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from agent_harness.config import ProviderSettings
from agent_harness.errors import ModelError
from agent_harness.llm.base import Delta, Request
from agent_harness.llm.chat_reader import AnswerReader
from agent_harness.llm.chat_request import encode_body, output_limit
from agent_harness.llm.upstream import Upstream, with_retries
from agent_harness.llm.upstream_retries import TextOutputs

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

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """
        Answer *request*.

        Raises:
            ModelError: the call failed.
        """
        answer = self._text_outputs.ask(request, self._settings, lambda settings: self._try(request, settings))
        async with contextlib.aclosing(answer) as deltas:
            async for delta in deltas:
                yield delta

    async def aclose(self) -> None:
        """
        Close the connections.
        """
        if self._owns_upstream:
            await self._upstream.aclose()

    def _try(self, request: Request, settings: ProviderSettings) -> AsyncGenerator[Delta, None]:
        body = encode_body(request, settings)
        return with_retries(settings, lambda: self._ask(request, body))

    async def _ask(self, request: Request, body: bytes) -> AsyncGenerator[Delta, None]:
        answer = AnswerReader(output_limit(request, self._settings))
        async with contextlib.aclosing(self._upstream.events(PATH, body, request.session_id)) as events:
            async for _, chunk in events:
                for delta in answer.feed(chunk):
                    yield delta
                if answer.finished:
                    break
            if answer.finished:
                async for chunk in _read_rest(events, answer):
                    for delta in answer.feed(chunk):
                        yield delta
        for delta in answer.end():
            yield delta


async def _read_rest(
    events: AsyncGenerator[tuple[str, dict[str, Any]], None], answer: AnswerReader
) -> AsyncGenerator[dict[str, Any], None]:
    """
    The chunks behind ``finish_reason``, as long as they come soon.
    """
    while answer.failure is None:
        try:
            async with asyncio.timeout(END_WAIT_S if answer.has_usage else USAGE_WAIT_S):
                _, chunk = await anext(events)
        except (StopAsyncIteration, TimeoutError):
            return
        except ModelError as error:
            if error.code in ("upstream_disconnected", "upstream_idle", "upstream_invalid"):
                return
            raise
        yield chunk
