"""
Asking a model server again, while nobody has heard anything of its answer.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Protocol

import attrs

from agent_harness.config import ProviderSettings
from agent_harness.errors import forget_frames
from agent_harness.llm.base import Delta, Request, Retrying
from agent_harness.llm.upstream_errors import REJECTED, UpstreamError
from agent_harness.protocol.blocks import Block

__all__ = ["Attempt", "TextOutputs", "ask_until_told"]

REMEMBERED = 10_000
"""Most sessions of one provider of which it is remembered whether their tools' outputs may be more than text."""


class Attempt(Protocol):
    """
    One request's answer, as a dialect reads it.
    """

    async def next(self) -> Sequence[Delta] | None:
        """
        The next deltas, as they come: what one piece of the stream brought, together; maybe none. None at the end.

        Raises:
            UpstreamError: the answer failed.
        """
        ...

    async def aclose(self) -> None:
        """
        Let go of the answer.
        """
        ...


async def ask_until_told(
    request: Request,
    settings: ProviderSettings,
    outputs: "TextOutputs",
    ask: Callable[[ProviderSettings], Awaitable[Attempt]],
) -> AsyncGenerator[Delta, None]:
    """
    Yield the deltas of the answer that *ask* gets, and ask again where it fails before its first delta: in a way that
    may pass, after a wait; and where the server refuses a request that shows something new, with text in its place.
    Each time one `Retrying` says so. After output began nothing is asked again, since its reader has seen it.

    With no retries allowed, neither is made.

    Raises:
        UpstreamError: of the last request, or the refusal if text in its place was refused too.
    """
    chosen = outputs.settings_for(request, settings)
    refusal: UpstreamError | None = None
    retries, begun = 0, False
    while True:
        attempt: Attempt | None = None
        try:
            attempt = await ask(chosen)
            while (deltas := await attempt.next()) is not None:
                if deltas and not begun:
                    begun = True
                    outputs.note(request, chosen)
                for delta in deltas:
                    yield delta
            return
        except UpstreamError as error:
            forget_frames(error)
            failure = error
        finally:
            if attempt is not None:
                await attempt.aclose()
        if not begun and failure.retryable and retries < settings.max_retries:
            retries += 1
            delay_s = _find_delay(settings, retries, failure.retry_after_s)
            yield Retrying(retries, delay_s, failure.message)
            await asyncio.sleep(delay_s)
        elif not begun and settings.max_retries and outputs.may_help(request, chosen, failure):
            refusal, retries, chosen = failure, 0, attrs.evolve(settings, tool_output_parts=False)
            yield Retrying(1, 0.0, f"{failure.message} Asked again with the tools' outputs as text only.")
        else:
            try:
                # The first refusal tells more of what the client did.
                raise refusal if refusal is not None and failure.code == REJECTED.code else failure
            finally:
                # It holds this frame, which must not hold it; the attempt does, too.
                del refusal, failure, attempt


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
        if self._taken and self._taken.get(_key(request), 0) is None:
            return attrs.evolve(settings, tool_output_parts=False)
        return settings

    def may_help(self, request: Request, settings: ProviderSettings, failure: UpstreamError) -> bool:
        """
        Whether the same request with text only is worth a try, after this *failure* of one with *settings*.
        """
        if failure.code != REJECTED.code or not settings.tool_output_parts:
            return False
        return _count_parts(request) > (self._taken.get(_key(request)) or 0)

    def note(self, request: Request, settings: ProviderSettings) -> None:
        """
        Note that the server answers *request* as it was encoded with *settings*.
        """
        parts = _count_parts(request) if settings.tool_output_parts else None
        if parts != 0:
            self._taken[_key(request)] = parts
            if len(self._taken) > REMEMBERED:
                del self._taken[next(iter(self._taken))]


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
