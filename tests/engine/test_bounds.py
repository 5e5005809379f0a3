"""
The bounds of a session: what is over one is refused or ends the turn, and nothing is lost.
"""

import asyncio
import time
from typing import Any

import pytest

from agent_harness.config import Limits
from agent_harness.engine.harness import Harness
from agent_harness.engine.session import Session
from agent_harness.errors import NotFound, RateLimited, Unavailable
from agent_harness.llm.scripted import ScriptedModel, Step, call, say
from agent_harness.protocol.commands import ForkSession, Interrupt, OutputData, SendMessage
from agent_harness.protocol.requests import read_events

WAIT_S = 5.0

TOOLS = [{"type": "function", "name": "look"}]


def message(text: str = "hi", **extra: Any) -> SendMessage:
    command = read_events({"type": "message", "data": {"content": text}, "tools": TOOLS, **extra})
    assert isinstance(command, SendMessage)
    return command


def open_harness(*steps: Any, **limits: Any) -> Harness:
    return Harness({"default": ScriptedModel(steps)}, limits=Limits(**limits))


async def wait_for(session: Session, *statuses: str) -> None:
    """
    Return when the session's status is one of those.
    """
    follower = session.follow()
    async with asyncio.timeout(WAIT_S):
        while session.status not in statuses:
            await follower.take()
    follower.close()


async def wait_until_draining(harness: Harness) -> None:
    """
    Give the task that drains its first step.
    """
    for _ in range(10):
        if harness.draining:
            return
        await asyncio.sleep(0)
    raise AssertionError("the harness does not drain")


def last_turn(session: Session) -> tuple[str, str | None]:
    turn = list(session.transcript.turns.values())[-1]
    return turn.status, turn.incomplete_reason


async def test_a_full_session_refuses_messages_and_still_takes_results_reads_forks_and_delete() -> None:
    async with open_harness(call("look", call_id="c1"), items=3) as harness:
        session = await harness.create_session()
        session.send(message())
        await wait_for(session, "waiting")
        session.send(message("waits"))
        with pytest.raises(RateLimited) as refused:
            session.send(message("is one too many"))
        assert refused.value.code == "session_full"
        assert session.submit("c1", "found").duplicate is False
        await wait_for(session, "idle")
        assert last_turn(session) == ("incomplete", "session_full")
        assert session.transcript.outputs["c1"].output == "found"
        fork = harness.fork(session, _fork())
        assert len(fork.transcript.settled()) == 4
        await harness.delete(session)


def _fork() -> ForkSession:
    return ForkSession()


async def test_an_answer_without_end_is_cut_when_the_session_is_full_and_its_text_kept() -> None:
    class Endless(ScriptedModel):
        async def stream(self, request: Any) -> Any:
            yield say("x").parts[0]
            while True:
                await asyncio.sleep(0)
                yield say("x" * 1000).parts[1]

    async with Harness({"default": Endless()}, limits=Limits(session_bytes=50_000)) as harness:
        session = await harness.create_session()
        session.send(message())
        await wait_for(session, "idle")
        assert last_turn(session) == ("incomplete", "session_full")
        kept = session.transcript.settled()[-1]
        assert kept.status == "incomplete" and 48_000 < session.transcript.size < 54_000


async def test_a_turn_over_its_time_ends_incomplete_and_closes_its_calls_as_by_a_deadline() -> None:
    async with open_harness(call("look", call_id="c1"), say("next"), turn_s=0.05) as harness:
        session = await harness.create_session()
        session.send(message())
        await wait_for(session, "idle")
        assert last_turn(session) == ("incomplete", "max_turn_time")
        assert session.transcript.calls["c1"].closed_by == "deadline"
        session.send(message())
        await wait_for(session, "idle")
        assert last_turn(session) == ("completed", None)


async def test_calls_over_the_bound_are_answered_by_the_harness_and_the_others_by_the_client() -> None:
    three = call("look", call_id="a") + call("look", call_id="b") + call("look", call_id="c")
    async with open_harness(three, say("ok"), open_calls=2) as harness:
        session = await harness.create_session()
        session.send(message())
        await wait_for(session, "waiting")
        assert session.transcript.open_calls == ["a", "b"]
        assert session.transcript.calls["c"].closed_by == "harness"
        session.submit_all([OutputData(call_id=name, output="x") for name in ("a", "b")], ["", ""])
        await wait_for(session, "idle")
        assert last_turn(session) == ("completed", None)


async def test_more_followers_than_may_be_are_refused_until_one_leaves() -> None:
    async with open_harness(followers=2) as harness:
        session = await harness.create_session()
        first, _ = session.follow(), session.follow()
        with pytest.raises(RateLimited) as refused:
            session.follow()
        assert refused.value.code == "too_many_followers"
        first.close()
        session.follow()


async def test_a_run_that_nobody_may_follow_is_refused_whole() -> None:
    async with open_harness(say("ok"), followers=1) as harness:
        session = await harness.create_session()
        only = session.follow()
        before = session.snapshot()
        with pytest.raises(RateLimited) as refused:
            await anext(session.run("hi"))
        assert refused.value.code == "too_many_followers"
        assert session.snapshot() == before
        only.close()
        assert [event async for event in session.run("hi")][-1].type == "session.status"


async def test_events_are_kept_up_to_their_bytes_and_the_newest_always() -> None:
    big = ["y" * 10_000 for _ in range(8)]
    async with open_harness(say(*big), replay_bytes=30_000) as harness:
        session = await harness.create_session()
        session.send(message())
        await wait_for(session, "idle")
        kept = session.feed.kept()
        assert kept[-1].seq == session.feed.seq
        assert sum(len(published.frame) for published in kept) < 40_000


async def test_sessions_idle_for_long_are_retired_and_those_that_wait_are_not() -> None:
    """
    B156: finished sessions do not stay for ever.
    """
    async with open_harness(call("look", call_id="c1"), session_idle_s=0.5) as harness:
        idle, parked = await harness.create_session(), await harness.create_session()
        parked.send(message())
        await wait_for(parked, "waiting")
        follower = idle.follow()
        idle.updated_at = parked.updated_at = int(time.time()) - 10
        harness._sweep()
        assert harness.sessions() == [parked]
        told = [published.event.type for published in await follower.take() + await follower.take()]
        assert told == ["session.status", "session.deleted"] and await follower.take() == []
        with pytest.raises(NotFound):
            idle.send(message())


async def test_while_the_server_drains_results_and_interrupts_are_taken_and_nothing_new() -> None:
    steps: list[Step] = [call("look", call_id="c1"), call("look", call_id="c2"), say("done")]
    async with open_harness(*steps, grace_s=WAIT_S) as harness:
        one, two = await harness.create_session(), await harness.create_session()
        one.send(message())
        await wait_for(one, "waiting")
        two.send(message())
        await wait_for(two, "waiting")
        draining = asyncio.create_task(harness.drain())
        async with asyncio.timeout(WAIT_S):
            await wait_until_draining(harness)
        for refused in (lambda: one.send(message()), lambda: harness.fork(one, _fork())):
            with pytest.raises(Unavailable) as error:
                refused()
            assert error.value.code == "shutting_down"
        with pytest.raises(Unavailable):
            await harness.create_session()
        one.submit("c1", "x")
        await two.interrupt(Interrupt())
        async with asyncio.timeout(WAIT_S):
            await draining
        assert last_turn(one) == ("completed", None) and last_turn(two)[0] == "cancelled"


async def test_what_does_not_end_in_the_time_of_grace_is_interrupted() -> None:
    async with open_harness(call("look", call_id="c1"), grace_s=0.01) as harness:
        session = await harness.create_session()
        session.send(message())
        await wait_for(session, "waiting")
        async with asyncio.timeout(WAIT_S):
            await harness.drain()
        assert session.status == "waiting"
        await harness.aclose()
        assert last_turn(session)[0] == "cancelled" and not session.transcript.open_calls
