"""
Asking a model server again, while nobody has heard anything of its answer.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Callable

from agent_harness.config import ProviderSettings
from agent_harness.llm.base import Delta, ItemAdded, Retrying
from agent_harness.llm.upstream_errors import UpstreamError

__all__ = ["with_retries"]


async def with_retries(
    settings: ProviderSettings, attempt: Callable[[], AsyncGenerator[Delta, None]]
) -> AsyncGenerator[Delta, None]:
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


def _find_delay(settings: ProviderSettings, retry: int, retry_after_s: float | None) -> float:
    """
    The wait before retry number *retry*, in seconds: what the provider asked for, else doubling from the base, with up
    to a quarter taken off so that sessions that failed together do not come back together. Never over the cap.
    """
    if retry_after_s is None:
        retry_after_s = settings.retry_base_s * 2 ** (retry - 1) * random.uniform(0.75, 1.0)
    return min(retry_after_s, settings.retry_cap_s)
