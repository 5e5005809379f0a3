"""
Asking a model server again, while nobody has heard anything of its answer.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Callable, Sequence

import attrs

from agent_harness.config import ProviderSettings
from agent_harness.llm.base import Delta, ItemAdded, Request, Retrying
from agent_harness.llm.upstream_errors import REJECTED, UpstreamError
from agent_harness.protocol.blocks import Block

__all__ = ["Batches", "TextOutputs", "one_by_one", "with_retries"]

Batches = AsyncGenerator[Sequence[Delta], None]
"""Deltas as they come: what one piece of the stream brought, together."""

REMEMBERED = 10_000
"""Most sessions of one provider of which it is remembered whether their tools' outputs may be more than text."""


async def one_by_one(batches: Batches) -> AsyncGenerator[Delta, None]:
    """
    The deltas of *batches*, which are closed with this.
    """
    try:
        async for batch in batches:
            for delta in batch:
                yield delta
    finally:
        await batches.aclose()


async def with_retries(settings: ProviderSettings, attempt: Callable[[], Batches]) -> Batches:
    """
    Yield what *attempt* yields, and begin anew where it fails before its first `ItemAdded` in a way that may pass: each
    time one `Retrying`, then the wait. After output began nothing is retried, since its reader has seen it.

    Raises:
        UpstreamError: of the last attempt.
    """
    retries = 0
    while True:
        has_output = False
        try:
            async with contextlib.aclosing(attempt()) as batches:
                async for batch in batches:
                    has_output = has_output or any(isinstance(delta, ItemAdded) for delta in batch)
                    yield batch
            return
        except UpstreamError as error:
            if has_output or not error.retryable or retries >= settings.max_retries:
                raise
            failure = error
        retries += 1
        delay_s = _find_delay(settings, retries, failure.retry_after_s)
        yield [Retrying(retries, delay_s, failure.message)]
        await asyncio.sleep(delay_s)


@attrs.define(eq=False)
class TextOutputs:
    """
    Which sessions' tool outputs go out as text, because the server refused what a tool had shown and read on when it
    got text in its place. An image that a server cannot take must not be what every later request fails for.

    ``_taken`` holds how many outputs that are more than strings a session's last good request had, None for text only.
    """

    _taken: dict[tuple[str, str | None], int | None] = attrs.field(factory=dict)

    def settings_for(self, request: Request, settings: ProviderSettings) -> ProviderSettings:
        """
        The *settings* to encode *request* with.
        """
        if self._taken.get(_key(request), 0) is None:
            return attrs.evolve(settings, tool_output_parts=False)
        return settings

    async def ask(
        self, request: Request, settings: ProviderSettings, ask: Callable[[ProviderSettings], Batches]
    ) -> Batches:
        """
        Yield what *ask* yields, and where the server refuses a request that shows something new, ask once more with
        text in its place. With no retries allowed, this one is not made either.

        Raises:
            UpstreamError: of the first request, or of the second if that is not refused too.
        """
        chosen, parts = self.settings_for(request, settings), _count_parts(request)
        begun = False
        try:
            async with contextlib.aclosing(ask(chosen)) as batches:
                async for batch in batches:
                    if not begun and _has_begun(batch):
                        begun = True
                        self._note(request, parts if chosen.tool_output_parts else None)
                    yield batch
            return
        except UpstreamError as error:
            is_new = chosen.tool_output_parts and parts > (self._taken.get(_key(request)) or 0)
            if begun or error.code != REJECTED.code or not is_new or not settings.max_retries:
                raise
            refusal = error
        yield [Retrying(1, 0.0, f"{refusal.message} Asked again with the tools' outputs as text only.")]
        try:
            async with contextlib.aclosing(ask(attrs.evolve(settings, tool_output_parts=False))) as batches:
                async for batch in batches:
                    if not begun and _has_begun(batch):
                        begun = True
                        self._note(request, None)
                    yield batch
        except UpstreamError as error:
            if error.code == REJECTED.code:
                # The first one tells more of what the client did.
                raise refusal from None
            raise

    def _note(self, request: Request, parts: int | None) -> None:
        if parts != 0:
            self._taken[_key(request)] = parts
            if len(self._taken) > REMEMBERED:
                del self._taken[next(iter(self._taken))]


def _has_begun(batch: Sequence[Delta]) -> bool:
    return any(not isinstance(delta, Retrying) for delta in batch)


def _key(request: Request) -> tuple[str, str | None]:
    return request.session_id, request.model


def _count_parts(request: Request) -> int:
    """
    How many outputs of *request* are more than text. Of what was counted before, nothing is looked at again.
    """
    cache = request.cache
    if cache.parts_count > request.closed:
        cache.parts = cache.parts_count = 0
    cache.parts += _count_in(request.blocks[cache.parts_count : request.closed])
    cache.parts_count = request.closed
    return cache.parts + _count_in(request.blocks[request.closed :])


def _count_in(blocks: Sequence[Block]) -> int:
    return sum(not isinstance(output.output, str) for block in blocks for output in block.outputs)


def _find_delay(settings: ProviderSettings, retry: int, retry_after_s: float | None) -> float:
    """
    The wait before retry number *retry*, in seconds: what the provider asked for, else doubling from the base, with up
    to a quarter taken off so that sessions that failed together do not come back together. Never over the cap.
    """
    if retry_after_s is None:
        retry_after_s = settings.retry_base_s * 2 ** (retry - 1) * random.uniform(0.75, 1.0)
    return min(retry_after_s, settings.retry_cap_s)
