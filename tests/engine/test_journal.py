"""
The journal: what sessions keep is told when it is written, in order, and not before.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent_harness.config import Limits
from agent_harness.engine.follower import Follower, Published
from agent_harness.engine.harness import Harness
from agent_harness.engine.ledger import RESERVED
from agent_harness.errors import InternalError, Unavailable
from agent_harness.llm.scripted import ScriptedModel, Step, call, say
from agent_harness.protocol.events import SessionDeleted, TextDelta
from agent_harness.protocol.requests import read_events, read_update
from agent_harness.store.base import PutAgent, PutHead, PutItem, Reserve, Store
from tests.engine.rig import ticks
from tests.store.stores import GatedStore

WAIT_S = 5.0


def message(text: str = "hi", **extra: Any) -> Any:
    tools = [{"type": "function", "name": "look"}]
    return read_events({"type": "message", "data": {"content": text}, "tools": tools, **extra})


@asynccontextmanager
async def opened(store: Store, *steps: Any, **limits: Any) -> AsyncIterator[Harness]:
    async with Harness({"default": ScriptedModel(steps)}, limits=Limits(**limits), store=store) as harness:
        yield harness


async def take(follower: Follower) -> list[Published]:
    async with asyncio.timeout(WAIT_S):
        return await follower.take()


async def read_until(follower: Follower, status: str) -> list[Published]:
    seen: list[Published] = []
    while not seen or getattr(seen[-1].event, "status", None) != status:
        seen += await take(follower)
    return seen


async def commit(harness: Harness) -> None:
    async with asyncio.timeout(WAIT_S):
        await harness.committed()


async def test_followers_hear_of_a_keep_when_it_is_written_and_not_before() -> None:
    store = GatedStore()
    async with opened(store, call("look", call_id="c1")) as harness:
        session = await harness.create_session()
        await commit(harness)
        follower = session.follow()
        assert (await take(follower))[0].seq == 0
        store.shut()
        session.send(message())
        reading = asyncio.create_task(follower.take())
        await ticks(200)
        assert not reading.done() and session.feed.released == 0 < session.feed.seq
        # Nor has the model.
        assert session.transcript.running.model_calls == 0
        store.open()
        batch = await reading
        assert batch[0].seq == 1
        await commit(harness)
        assert session.feed.released == session.feed.seq


async def test_the_first_frame_waits_for_what_it_takes_in() -> None:
    store = GatedStore()
    async with opened(store, say("ok")) as harness:
        session = await harness.create_session()
        await commit(harness)
        store.shut()
        session.send(message())
        follower = session.follow()
        reading = asyncio.create_task(follower.take())
        await ticks(50)
        assert not reading.done()
        store.open()
        first = await reading
        assert first[0].numbered is False and first[0].seq <= session.feed.released


async def test_committed_returns_when_everything_kept_before_is_written() -> None:
    store = GatedStore()
    async with opened(store) as harness:
        await harness.create_session()
        await commit(harness)
        store.shut()
        await harness.create_session()
        waiting = asyncio.create_task(harness.committed())
        given_up = asyncio.create_task(harness.committed())
        await ticks(50)
        assert not waiting.done()
        # One that no longer waits takes nothing from the others.
        given_up.cancel()
        store.open()
        async with asyncio.timeout(WAIT_S):
            await waiting
        assert len([change for changes in store.lists for change in changes if isinstance(change, PutAgent)]) == 2


async def test_what_is_kept_while_the_disk_is_busy_is_written_together() -> None:
    store = GatedStore()
    async with opened(store) as harness:
        await harness.create_session()
        await commit(harness)
        store.shut()
        before = len(store.lists)
        sessions = []
        for _ in range(20):
            sessions.append(await harness.create_session())
            await ticks(1)
        store.open()
        await commit(harness)
        assert len(store.lists) - before <= 2


async def test_pieces_of_text_are_written_by_nobody_and_told_at_once() -> None:
    gate = asyncio.Event()
    pieces = say("a", *"bcdefgh")
    held = type(pieces)((*pieces.parts[:4], gate, *pieces.parts[4:]))
    store = GatedStore()
    async with opened(store, held) as harness:
        session = await harness.create_session()
        follower = session.follow()
        session.send(message())
        while not any(published.event.type.endswith("text.delta") for published in await take(follower)):
            pass
        await commit(harness)
        count = len(store.lists)
        gate.set()
        seen = await read_until(follower, "idle")
        assert [published.event.delta for published in seen if hasattr(published.event, "delta")][-1] == "h"
        await commit(harness)
        # The message's end, the turn's end and the status are one keep.
        assert len(store.lists) == count + 1


async def test_events_come_in_order_and_without_holes_whatever_the_disk_does() -> None:
    store = GatedStore()
    async with opened(store, call("look", call_id="c1"), say(*"abcdefgh")) as harness:
        session = await harness.create_session()
        follower = session.follow()
        seen: list[Published] = []
        session.send(message())
        answered = False
        while not seen or session.feed.seq > seen[-1].seq or session.status != "idle":
            store.shut()
            await ticks(3)
            store.open()
            seen += await take(follower)
            if session.status == "waiting" and not answered:
                answered = True
                session.submit("c1", "x")
        numbers = [published.seq for published in seen if published.numbered]
        assert numbers == list(range(1, session.feed.seq + 1))


async def test_event_numbers_are_reserved_before_they_are_told() -> None:
    store = GatedStore()
    async with opened(store, say("x", *["y"] * (2 * RESERVED)), replay_events=10_000) as harness:
        session = await harness.create_session()
        await commit(harness)
        follower = session.follow()
        session.send(message())
        newest = 0
        while session.status != "idle" or newest < session.feed.seq:
            for published in await take(follower):
                newest = published.seq
                (kept,) = store.load()
                assert newest <= kept.reserved
        reserved = [change for changes in store.lists for change in changes if isinstance(change, Reserve)]
        assert len(reserved) == 3


async def test_a_turn_waits_for_a_disk_that_is_far_behind() -> None:
    store = GatedStore()
    async with opened(store, say("x", *["y"] * 5000), replay_events=100) as harness:
        session = await harness.create_session()
        follower = session.follow()
        session.send(message())
        while not any(isinstance(published.event, TextDelta) for published in await take(follower)):
            pass
        follower.close()
        store.shut()
        session.update(read_update({"metadata": {"a": "b"}}))
        await ticks(3000)
        assert 500 < session.feed.seq - session.feed.released < 600
        store.open()
        await read_until(session.follow(), "idle")
        await commit(harness)
        assert 100 <= len(session.feed) < 1000


async def test_an_item_that_changes_twice_before_a_write_is_written_once() -> None:
    gate, store = asyncio.Event(), GatedStore()
    async with opened(store, Step((gate, *call("look", call_id="c1").parts))) as harness:
        session = await harness.create_session()
        session.send(message())
        await commit(harness)
        await ticks(10)
        store.shut()
        gate.set()
        await ticks(50)
        session.submit("c1", "x")
        store.open()
        await commit(harness)
        states = [
            change.item.item.status
            for changes in store.lists
            for change in changes
            if isinstance(change, PutItem) and change.position == 1
        ]
        assert states == ["in_progress", "completed"]


async def test_the_end_of_a_deleted_session_is_told_when_it_is_written() -> None:
    store = GatedStore()
    async with opened(store) as harness:
        session = await harness.create_session()
        await commit(harness)
        follower = session.follow()
        await take(follower)
        store.shut()
        await harness.delete(session)
        reading = asyncio.create_task(follower.take())
        await ticks(50)
        assert not reading.done()
        store.open()
        assert isinstance((await reading)[0].event, SessionDeleted)
        assert await take(follower) == []
        assert list(store.load()) == []


async def test_a_disk_that_fails_ends_everything_and_acknowledges_nothing(caplog: pytest.LogCaptureFixture) -> None:
    store = GatedStore()
    async with opened(store, call("look", call_id="c1"), call("look", call_id="c2")) as harness:
        session, other = await harness.create_session(), await harness.create_session()
        other.send(message())
        follower = session.follow()
        await take(follower)
        await commit(harness)
        told = session.feed.released
        store.broken = True
        session.send(message())
        with caplog.at_level(logging.CRITICAL):
            with pytest.raises(InternalError, match="log says why"):
                await commit(harness)
        assert "No space left" in caplog.text
        assert [published.event.type for published in await take(follower)] == ["session.lagged"]
        assert await take(follower) == [] and session.feed.released == told
        for refused in (lambda: session.send(message()), lambda: session.follow(), lambda: other.send(message())):
            with pytest.raises(Unavailable):
                refused()
        with pytest.raises(Unavailable):
            await harness.create_session()
        with pytest.raises(InternalError):
            await commit(harness)
        async with asyncio.timeout(WAIT_S):
            while harness.running_turns:
                await ticks(1)
    assert session.transcript.current is not None


async def test_without_a_store_nothing_is_held_and_committed_returns_at_once() -> None:
    async with Harness({"default": ScriptedModel([say("ok")])}) as harness:
        session = await harness.create_session()
        session.send(message())
        assert session.feed.released == session.feed.seq > 0 and session.ledger is None
        await commit(harness)


async def test_a_harness_with_a_store_must_be_opened_first() -> None:
    harness = Harness({}, store=GatedStore())
    with pytest.raises(RuntimeError, match="async with"):
        await harness.create_session()
    await harness.aclose()


async def test_where_a_session_stands_is_written_with_what_it_kept() -> None:
    """
    Each list holds everything its events tell: a process that dies between two lists leaves nothing half.
    """
    store = GatedStore()
    async with opened(store, call("look", call_id="c1"), say("done")) as harness:
        session = await harness.create_session()
        follower = session.follow()
        session.send(message())
        await read_until(follower, "waiting")
        session.submit("c1", "x")
        await read_until(follower, "idle")
    heads = [change.head.current for changes in store.lists for change in changes if isinstance(change, PutHead)]
    assert heads[-1] is None and any(heads)
