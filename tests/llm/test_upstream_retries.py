"""
Asking a model server again: when, how often, and how long it is waited for. No server is asked.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import pytest

from agent_harness.config import ProviderSettings
from agent_harness.errors import ModelError
from agent_harness.llm import upstream_retries
from agent_harness.llm.base import Delta, Ended, ItemAdded, Request, Retrying, TextDelta
from agent_harness.llm.upstream import UpstreamError
from agent_harness.llm.upstream_retries import Attempt, TextOutputs, ask_until_told


class Attempts:
    """
    An attempt that fails with each of its errors in turn, then answers.
    """

    def __init__(self, *failures: Exception, head: tuple[Delta, ...] = ()) -> None:
        self.failures = list(failures)
        self.head = head
        self.count = self.closed = 0
        self.ended = False

    async def ask(self, settings: ProviderSettings) -> Attempt:
        self.count += 1
        self.said: list[Sequence[Delta]] = [[], self.head, []] if self.head else []
        return self

    async def next(self) -> Sequence[Delta] | None:
        if self.said:
            return self.said.pop(0)
        if self.failures:
            raise self.failures.pop(0)
        self.said = []
        ended, self.ended = self.ended, True
        return None if ended else [Ended()]

    async def aclose(self) -> None:
        self.closed += 1


def make_failure(retryable: bool = True, retry_after_s: float | None = None) -> UpstreamError:
    return UpstreamError("busy", code="rate_limited", retryable=retryable, retry_after_s=retry_after_s)


REQUEST = Request(session_id="s", provider="p", model="m", blocks=())
QUICK = ProviderSettings(max_retries=2, retry_base_s=0.001, retry_cap_s=0.003)


async def run(settings: ProviderSettings, attempts: Attempts) -> tuple[list[Delta], ModelError | None]:
    deltas: list[Delta] = []
    try:
        async with asyncio.timeout(5):
            async with aclosing(ask_until_told(REQUEST, settings, TextOutputs(), attempts.ask)) as stream:
                async for delta in stream:
                    deltas.append(delta)
    except ModelError as error:
        return deltas, error
    return deltas, None


async def test_a_failure_that_may_pass_is_announced_and_tried_again() -> None:
    deltas, error = await run(QUICK, Attempts(make_failure(), make_failure()))
    assert error is None
    assert deltas[2:] == [Ended()]
    first, second = deltas[:2]
    assert isinstance(first, Retrying)
    assert isinstance(second, Retrying)
    assert (first.attempt, second.attempt, first.reason) == (1, 2, "busy")
    assert 0.00075 <= first.delay_s <= 0.001
    assert 0.0015 <= second.delay_s <= 0.002


async def test_the_last_failure_stands_when_the_attempts_are_used_up() -> None:
    """
    B106.
    """
    attempts = Attempts(*(make_failure() for _ in range(9)))
    deltas, error = await run(QUICK, attempts)
    assert error is not None
    assert (error.code, attempts.count, attempts.closed, len(deltas)) == ("rate_limited", 3, 3, 2)


@pytest.mark.parametrize(
    "failure", [make_failure(retryable=False), ModelError("no", code="provider_rejected")], ids=["not to be", "of ours"]
)
async def test_a_failure_that_will_not_pass_is_not_tried_again(failure: ModelError) -> None:
    attempts = Attempts(failure)
    assert await run(QUICK, attempts) == ([], failure)
    assert attempts.count == 1


async def test_after_output_began_nothing_is_tried_again() -> None:
    """
    B104, B105.
    """
    attempts = Attempts(make_failure(), head=(ItemAdded(0, "message"), TextDelta(0, "Hel")))
    deltas, error = await run(QUICK, attempts)
    assert error is not None
    assert (len(deltas), attempts.count) == (2, 1)


@pytest.mark.parametrize("asked, waited", [(0.002, 0.002), (120.0, 0.003), (0.0, 0.0)])
async def test_the_wait_is_what_the_provider_asks_for_up_to_the_cap(asked: float, waited: float) -> None:
    deltas, _ = await run(QUICK, Attempts(make_failure(retry_after_s=asked)))
    assert deltas[0] == Retrying(1, waited, "busy")


async def test_a_wait_can_be_cancelled() -> None:
    settings = ProviderSettings(max_retries=1, retry_base_s=60, retry_cap_s=60)
    stream = ask_until_told(REQUEST, settings, TextOutputs(), Attempts(make_failure()).ask)
    async with asyncio.timeout(5):
        assert isinstance(await anext(stream), Retrying)
        task = asyncio.create_task(stream.__anext__())
        # One round of the loop brings it into its wait.
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await stream.aclose()


def test_waits_double_and_stay_under_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    settings = ProviderSettings(retry_base_s=0.5, retry_cap_s=3.0)
    delays = [upstream_retries._find_delay(settings, retry, None) for retry in (1, 2, 3, 4, 5)]
    assert delays == [0.5, 1.0, 2.0, 3.0, 3.0]
