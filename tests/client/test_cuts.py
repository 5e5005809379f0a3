"""
A proxy in the middle that cuts the connection at random: every turn completes, every call runs once, every event is
seen once.
"""

import asyncio
import os
from collections import Counter
from typing import Any

import pytest

from agent_harness.client import Client
from agent_harness.llm.scripted import call, say
from agent_harness.protocol.events import OutputItemDone
from agent_harness.protocol.items import FunctionCallOutput, Message
from agent_harness.protocol.tolerant import AnyEvent
from tests.client.proxy import Proxy

WAIT_S = 5.0

FULL = bool(os.environ.get("CLIENT_CUTS_FULL"))
TURNS, CUTS, SEEDS = (100, 300, range(10)) if FULL else (100, 300, range(1))
"""The full form plays the same with ten seeds, and in every third turn with an output of a megabyte."""


def make_script(turns: int) -> list[Any]:
    steps: list[Any] = []
    for turn in range(turns):
        calls = call("work", f'{{"turn": {turn}}}', f"c{turn}a") + call("work", f'{{"turn": {turn}}}', f"c{turn}b")
        steps += [calls, say(f"turn {turn}", " is ", "done")]
    return steps


async def play_turn(session: Any, turn: int, work: Any) -> dict[int, AnyEvent]:
    """
    One turn; its events by number.
    """
    events: dict[int, AnyEvent] = {}
    async with asyncio.timeout(WAIT_S):
        reply = session.send(f"turn {turn}", tools=[work])
        async for event in reply:
            assert reply.seq not in events
            events[reply.seq] = event
        result = await reply.result()
    assert (result.status, result.text) == ("completed", f"turn {turn} is done")
    return events


async def follow_to_the_end(session: Any, followed: list[tuple[int, AnyEvent]]) -> None:
    """
    Everything behind the first status, as it comes, with its number.
    """
    async with session.follow(after=0) as events:
        await anext(events)
        async for event in events:
            followed.append((events.seq, event))


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_turn_call_or_event_is_lost_or_repeated_by_three_hundred_cuts(
    serve: Any, connect: Any, seed: int
) -> None:
    served = await serve(*make_script(TURNS), replay_events=10_000)
    runs: Counter[int] = Counter()

    async def work(turn: int) -> str:
        runs[turn] += 1
        return f"{turn} " + "x" * (1_000_000 if FULL and turn % 3 == 0 else turn)

    async with Proxy(served.port, seed, mean=700) as proxy:
        client: Client = connect(proxy.url)
        session = await client.sessions.create()
        followed: list[tuple[int, AnyEvent]] = []
        follower = asyncio.ensure_future(follow_to_the_end(session, followed))
        replies: dict[int, AnyEvent] = {}
        for turn in range(TURNS):
            # What a turn left over, the next ones get.
            proxy.budget = CUTS * (turn + 1) // TURNS - proxy.cuts
            replies |= await play_turn(session, turn, work)
        assert proxy.cuts == CUTS
        await client.sessions.delete(session.id)
        async with asyncio.timeout(WAIT_S):
            await follower
    assert [number for number, _ in followed] == list(range(1, len(followed) + 1))
    assert {number: event for number, event in followed if number in replies} == replies
    rest = {event.type for number, event in followed if number not in replies}
    assert rest == {"session.status", "session.deleted"}
    assert runs == Counter(dict.fromkeys(range(TURNS), 2))
    outputs = [event for _, event in followed if isinstance(event, OutputItemDone)]
    assert sum(isinstance(event.item, FunctionCallOutput) for event in outputs) == 2 * TURNS
    assert len(served.model.requests) == 2 * TURNS


@pytest.mark.parametrize("kept", [1, 2, 3, 8] if FULL else [3])
async def test_turns_complete_and_calls_run_once_when_hardly_any_event_is_kept(
    serve: Any, connect: Any, kept: int
) -> None:
    served = await serve(*make_script(TURNS), replay_events=kept)
    runs: Counter[int] = Counter()
    gaps = 0

    async def work(turn: int) -> str:
        runs[turn] += 1
        return f"{turn} " + "x" * turn

    async with Proxy(served.port, kept, mean=500) as proxy:
        session = await connect(proxy.url).sessions.create()
        for turn in range(TURNS):
            proxy.budget = CUTS * (turn + 1) // TURNS - proxy.cuts
            async with asyncio.timeout(WAIT_S):
                reply = session.send(f"turn {turn}", tools=[work])
                told = [event.type async for event in reply]
                result = await reply.result()
            gaps += told.count("session.gap")
            assert told[-1] == "response.completed" and told.count("response.completed") == 1
            assert (result.status, result.text) == ("completed", f"turn {turn} is done")
            assert [item.type for item in result.items] == ["message"] + ["function_call"] * 2 + [
                "function_call_output"
            ] * 2 + ["message"]
        assert proxy.cuts > CUTS * 0.9
    assert gaps and runs == Counter(dict.fromkeys(range(TURNS), 2))


async def test_every_place_of_a_stream_can_be_the_cut(serve: Any, connect: Any) -> None:
    """
    One cut, after every 97th byte of a turn in turn.
    """
    count = 60
    served = await serve(*make_script(count))

    async def work(turn: int) -> int:
        return turn

    async with Proxy(served.port) as proxy:
        client = connect(proxy.url)
        session = await client.sessions.create()
        seen: set[int] = set()
        for turn in range(count):
            proxy.cut_after(1 + turn * 97)
            events = await play_turn(session, turn, work)
            assert [event.type for event in events.values()].count("response.completed") == 1
            texts = [event.delta for event in events.values() if event.type == "response.output_text.delta"]
            assert texts == [f"turn {turn}", " is ", "done"]
            seen.add(len(events))
        assert len(seen) == 1 and proxy.cuts == count


@pytest.mark.parametrize("lost", [1, 2, 5])
async def test_a_command_whose_answer_is_lost_takes_effect_once(serve: Any, connect: Any, lost: int) -> None:
    served = await serve(say("one"), say("two"))
    async with Proxy(served.port) as proxy:
        client = connect(proxy.url)
        async with asyncio.timeout(WAIT_S):
            proxy.answers_to_lose = lost
            session = await client.sessions.create(metadata={"a": "b"})
            proxy.answers_to_lose = lost
            result = await session.run("hi")
            proxy.answers_to_lose = lost
            fork = await client.sessions.fork(session.id)
            proxy.answers_to_lose = lost
            await client.sessions.delete(session.id)
            listed = [snapshot.id async for snapshot in client.sessions.list()]
        assert listed == [fork.id] and result.text == "one"
        said = [item for item in (await fork.snapshot()).items or () if isinstance(item, Message)]
        assert [message.role for message in said] == ["user", "assistant"]
        assert proxy.connections > 4 * lost


async def test_a_result_whose_answer_is_lost_is_taken_once(serve: Any, connect: Any) -> None:
    served = await serve(call("plain", "{}", "c1"), say("ok"))
    async with Proxy(served.port) as proxy:
        session = await connect(proxy.url).sessions.create()
        async with asyncio.timeout(WAIT_S):
            reply = session.send("go", tools=[{"type": "function", "name": "plain"}])
            async for event in reply:
                if isinstance(event, OutputItemDone) and event.item.status == "action_required":
                    proxy.answers_to_lose = 2
                    accepted = await session.submit("c1", "x" * 100_000)
                    assert accepted.call_id == "c1"
            result = await reply.result()
    assert len([item for item in result.items if isinstance(item, FunctionCallOutput)]) == 1


async def test_a_call_whose_announcement_was_replayed_after_its_end_is_not_begun(serve: Any, connect: Any) -> None:
    ran: list[int] = []

    async def work(turn: int) -> None:
        ran.append(turn)

    gate = asyncio.Event()

    async def answer_behind_the_back(session: Any) -> None:
        other = await served.client.sessions.get(session.id)
        async with other.follow(after=0) as events:
            async for event in events:
                if isinstance(event, OutputItemDone) and event.item.status == "action_required":
                    await other.submit(event.item.call_id, "by another")
                    if event.item.call_id == "c0b":
                        gate.set()
                        return

    served = await serve(*make_script(1))
    async with Proxy(served.port) as proxy, asyncio.timeout(WAIT_S):
        session = await connect(proxy.url).sessions.create()
        reply = session.send("go", tools=[work])
        back = asyncio.ensure_future(answer_behind_the_back(session))
        await reply._post()
        await gate.wait()
        await back
        result = await reply.result()
    assert result.status == "completed" and ran == []
