"""
What a turn and a session cost, counted: calls and bytes, which are the same on every machine, and never seconds.

The bounds are recorded figures with some room. One that is broken asks for a look at what was added to the path of each
delta, turn or session.
"""

import asyncio
import gc
import sys
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from agent_harness.config import Limits
from agent_harness.engine.harness import Harness
from agent_harness.engine.session import Session
from agent_harness.llm.base import ArgumentsDelta, Delta, Ended, ItemAdded, ItemDone, Request, TextDelta
from agent_harness.protocol.items import Usage
from agent_harness.protocol.requests import read_events
from agent_harness.protocol.transcript import Step
from tests.engine.rig import ticks

AGENT = {"tools": [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]}
MESSAGE = read_events({"type": "message", "data": {"content": "What is the weather in Paris?"}})


class Answers:
    """
    A call, then a text in *pieces*.
    """

    default_model = "m"

    def __init__(self, pieces: int = 20) -> None:
        self.pieces, self.calls = pieces, 0

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        """
        See the class.
        """
        if request.blocks[-1].outputs:
            yield ItemAdded(0, "message")
            for number in range(self.pieces):
                yield TextDelta(0, f"word {number} ")
            yield ItemDone(0)
        else:
            self.calls += 1
            yield ItemAdded(0, "function_call", f"call_{self.calls:024}", "look")
            yield ArgumentsDelta(0, '{"city":')
            yield ArgumentsDelta(0, '"Paris"}')
            yield ItemDone(0, arguments='{"city":"Paris"}')
        yield Ended(usage=Usage(100, 20, 120, 0, 0))

    def body(self, request: Request) -> bytes:
        """
        None.
        """
        return b""


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """
    What other tests left behind is collected before the counting, not in the middle of it.
    """
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def park(session: Session) -> None:
    session.send(MESSAGE)
    async with asyncio.timeout(5):
        while session.transcript.step is not Step.AWAIT_RESULTS:
            await ticks(1)
    await ticks(2)


async def finish(session: Session) -> None:
    session.submit(session.transcript.open_calls[0], "sunny, 21 degrees")
    async with asyncio.timeout(5):
        while session.transcript.step is not Step.IDLE:
            await ticks(1)
    await ticks(2)


async def count_calls(session: Session, followers: int) -> int:
    """
    How many Python functions one turn of *session* calls or resumes, with *followers* that read every frame.
    """
    reading = [asyncio.create_task(read(session)) for _ in range(followers)]
    await ticks(2)
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        await park(session)
        await finish(session)
    finally:
        sys.setprofile(None)
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    return count


async def read(session: Session) -> None:
    follower = session.follow()
    while taken := await follower.take():
        for published in taken:
            assert published.frame


@pytest.mark.parametrize("followers, bound", [(0, 18), (1, 24), (10, 36)])
async def test_a_delta_costs_few_calls(followers: int, bound: int) -> None:
    counts = []
    for pieces in (20, 120):
        async with Harness({"default": Answers(pieces)}, limits=Limits()) as harness:
            session = await harness.create_session(AGENT)
            turns = [await count_calls(session, followers) for _ in range(3)]
            # The first ones make what the codec needs.
            counts.append(turns[-1])
    assert (counts[1] - counts[0]) / 100 <= bound


async def test_a_turn_costs_few_calls_and_the_hundredth_no_more_than_the_third() -> None:
    """
    Nothing goes through what is there already.
    """
    async with Harness({"default": Answers(1)}, limits=Limits(replay_events=10)) as harness:
        session = await harness.create_session(AGENT)
        counts = [await count_calls(session, 0) for _ in range(100)]
    assert counts[2] <= 1_000
    assert counts[99] <= counts[2] * 1.02


async def test_a_session_takes_little_memory_new_parked_at_rest_and_forgotten() -> None:
    """
    Bytes a session, of a hundred that were made alike.
    """
    model = Answers()
    async with Harness({"default": model}, limits=Limits()) as harness:
        warm = await harness.create_session(AGENT)
        await park(warm)
        await finish(warm)
        tracemalloc.start()
        try:
            sizes, before = {}, take_size()
            sessions = [await harness.create_session(AGENT) for _ in range(100)]
            sizes["new"] = take_size() - before
            for session in sessions:
                await park(session)
            sizes["parked"] = take_size() - before
            for session in sessions:
                await finish(session)
            sizes["at rest"] = take_size() - before
            for session in sessions:
                session.forget()
            sizes["forgotten"] = take_size() - before
        finally:
            tracemalloc.stop()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        timers = [timer for timer in asyncio.get_running_loop()._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        assert not tasks and harness.running_turns == 0
        assert timers == [harness._sweeper]
    bounds = {"new": 1_800, "parked": 10_000, "at rest": 15_000, "forgotten": 5_000}
    assert {name: size for name, size in sizes.items() if size / 100 > bounds[name]} == {}


def take_size() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
