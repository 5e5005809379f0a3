"""
Asking a model server again, while nobody has heard anything of its answer.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Callable

from agent_harness.config import ProviderSettings
from agent_harness.llm.base import Delta, ItemAdded, Request, Retrying
from agent_harness.llm.upstream_errors import REJECTED, UpstreamError

__all__ = ["has_output_parts", "with_retries", "with_text_outputs"]

Attempt = Callable[[], AsyncGenerator[Delta, None]]


async def with_retries(settings: ProviderSettings, attempt: Attempt) -> AsyncGenerator[Delta, None]:
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
            async with contextlib.aclosing(attempt()) as deltas:
                async for delta in deltas:
                    has_output = has_output or isinstance(delta, ItemAdded)
                    yield delta
            return
        except UpstreamError as error:
            if has_output or not error.retryable or retries >= settings.max_retries:
                raise
            failure = error
        retries += 1
        delay_s = _find_delay(settings, retries, failure.retry_after_s)
        yield Retrying(retries, delay_s, failure.message)
        await asyncio.sleep(delay_s)


async def with_text_outputs(settings: ProviderSettings, attempt: Attempt, text: Attempt) -> AsyncGenerator[Delta, None]:
    """
    Yield what *attempt* yields, or where the server refuses its request, what *text* does: the same request with text
    in the place of what tools have shown. An image that a server cannot take must not be what every later request of
    its session fails for. Only for requests with such outputs; with no retries allowed, this one is not made.

    Raises:
        UpstreamError: of *attempt*, or of *text* if that is not refused too.
    """
    has_output = False
    try:
        async with contextlib.aclosing(attempt()) as deltas:
            async for delta in deltas:
                has_output = has_output or isinstance(delta, ItemAdded)
                yield delta
        return
    except UpstreamError as error:
        if has_output or error.code != REJECTED.code or not settings.max_retries:
            raise
        refusal = error
    yield Retrying(1, 0.0, f"{refusal.message} Asked again with the tools' outputs as text only.")
    try:
        async with contextlib.aclosing(text()) as deltas:
            async for delta in deltas:
                yield delta
    except UpstreamError as error:
        if error.code == REJECTED.code:
            # The first one tells more of what the client did.
            raise refusal from None
        raise


def has_output_parts(request: Request) -> bool:
    """
    Whether an output in *request* is more than a string.
    """
    return any(not isinstance(output.output, str) for block in request.blocks for output in block.outputs)


def _find_delay(settings: ProviderSettings, retry: int, retry_after_s: float | None) -> float:
    """
    The wait before retry number *retry*, in seconds: what the provider asked for, else doubling from the base, with up
    to a quarter taken off so that sessions that failed together do not come back together. Never over the cap.
    """
    if retry_after_s is None:
        retry_after_s = settings.retry_base_s * 2 ** (retry - 1) * random.uniform(0.75, 1.0)
    return min(retry_after_s, settings.retry_cap_s)
