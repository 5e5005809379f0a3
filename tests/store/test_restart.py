"""
A process that stops or dies, and the next one: at every step of a turn, nothing that anybody heard is lost, and the
conversation ends as if nothing had happened.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from agent_harness.engine import journal, restoring
from agent_harness.engine.ledger import RESERVED
from agent_harness.engine.session import Session
from agent_harness.errors import Conflict, Unavailable
from agent_harness.llm.base import Request
from agent_harness.protocol.encode import to_wire
from agent_harness.protocol.events import OutputItemDone, SessionGap
from agent_harness.store.base import Change, PutItem, Store
from agent_harness.store.memory import MemoryStore
from agent_harness.store.sqlite import SqliteStore
from tests.engine.rig import ticks
from tests.store.scene import Responder, check_end, conversation, open_harness, play, replayed, send, until
from tests.store.stores import GatedStore, LoopExecutor

WAIT_S = 5.0


async def undisturbed(store: Store) -> tuple[list[Any], int]:
    """
    The conversation without a restart, and how many events it has.
    """
    async with open_harness(store) as harness:
        session = await harness.create_session({"instructions": "Be brief."}, metadata={"a": "b"})
        await play(session)
        check_end(session)
        return conversation(session), session.feed.seq


def only(sessions: Sequence[Session]) -> Session:
    (session,) = sessions
    return session


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_a_process_that_dies_after_any_write_is_taken_up_by_the_next_one(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The longer a write takes, in turns of the event loop, the more is written together.
    """
    monkeypatch.setattr(journal, "ThreadPoolExecutor", lambda *_: LoopExecutor(turns))
    store = GatedStore()
    wanted, _ = await undisturbed(store)
    assert len(store.lists) > 8
    for count in range(1, len(store.lists) + 1):
        model = Responder()
        async with open_harness(replayed(store.lists[:count]), model) as harness:
            session = only(harness.sessions())
            await play(session)
            assert conversation(session) == wanted, f"after {count} writes"
            check_end(session, model.requests)
            assert session.agent.instructions == "Be brief." and session.metadata == {"a": "b"}


@pytest.mark.parametrize("kind", [MemoryStore, SqliteStore])
async def test_a_process_that_stops_at_any_event_is_taken_up_by_the_next_one(kind: Any, tmp_path: Path) -> None:
    def make(name: str) -> Store:
        return SqliteStore(tmp_path / name) if kind is SqliteStore else MemoryStore()

    wanted, events = await undisturbed(make("first"))
    # Every event in memory; with the disk behind it, each third.
    for number in range(1, events, 1 if kind is MemoryStore else 3):
        store, requests = make(str(number)), list[Request]()
        async with open_harness(store, Responder(requests)) as harness:
            session = await harness.create_session({"instructions": "Be brief."}, metadata={"a": "b"})
            playing = asyncio.create_task(play(session))
            await _reach(session, number)
            playing.cancel()
            await asyncio.wait((playing,))
            before = to_wire(session.snapshot())
        async with open_harness(store, Responder(requests)) as harness:
            session = harness.get(before["id"])
            _check_kept(before, to_wire(session.snapshot()))
            await play(session)
            assert conversation(session) == wanted, f"after event {number}"
            check_end(session, requests)


async def _reach(session: Session, number: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while session.feed.seq < number:
            await ticks(1)


def _check_kept(before: dict[str, Any], after: dict[str, Any]) -> None:
    """
    What was settled is there, the queue too (what was steered may have entered); what was in progress is incomplete.
    """
    same = ("id", "created_at", "agent", "metadata", "response_id", "required_actions", "usage", "status")
    assert {key: after[key] for key in same} == {key: before[key] for key in same}
    assert after["seq"] >= before["seq"]
    kept = {item["id"]: item for item in after["items"]}
    for old in before["items"]:
        new = kept[old["id"]]
        if old["status"] == "in_progress":
            assert new["status"] == "incomplete"
        elif old["status"] == "queued":
            assert new == old or new == old | {"status": "completed"}
        else:
            assert new == old


async def test_open_calls_can_be_answered_after_a_restart_and_results_stay_known() -> None:
    """
    B011: a call that was open is open again, and its result goes to the model with it.
    """
    store = MemoryStore()
    async with open_harness(store) as harness:
        session = await harness.create_session()
        send(session, "two")
        await until(session, "waiting")
        first, second = session.transcript.open_calls
        session.submit(first, "x")
    async with open_harness(store) as harness:
        session = only(harness.sessions())
        assert session.status == "waiting" and session.transcript.open_calls == [second]
        again = session.submit(first, "x")
        assert again.duplicate
        with pytest.raises(Conflict):
            session.submit(first, "other")
        session.submit(second, "y")
        await until(session, "idle")
        check_end(session)


async def test_numbers_never_go_back_and_one_from_before_is_a_gap() -> None:
    store = MemoryStore()
    async with open_harness(store) as harness:
        session = await harness.create_session()
        send(session, "hello")
        await until(session, "idle")
        before = session.feed.seq
    async with open_harness(store) as harness:
        session = only(harness.sessions())
        assert before < session.feed.seq <= before + RESERVED
        follower = session.follow(str(before))
        told = [published.event for published in await follower.take()]
        assert isinstance(told[1], SessionGap) and told[1].after == before and told[1].first_seq is None
        top = session.feed.seq
        send(session, "more")
        assert (await follower.take())[0].seq == top + 1


async def test_a_deadline_that_passed_meanwhile_closes_its_call_at_start() -> None:
    store = GatedStore()
    async with open_harness(store) as harness:
        session = await harness.create_session()
        send(session, "two")
        await until(session, "waiting")
        first, second = session.transcript.open_calls

    def late(change: Change) -> Change:
        if isinstance(change, PutItem) and getattr(change.item.item, "call_id", "") == first:
            return attrs.evolve(change, item=attrs.evolve(change.item, expires_at=time.time() - 1))
        return change

    async with open_harness(replayed([late(change) for change in changes] for changes in store.lists)) as harness:
        session = only(harness.sessions())
        assert session.transcript.open_calls == [second]
        with pytest.raises(Conflict) as refused:
            session.submit(first, "x")
        assert refused.value.extra == {"closed_by": "deadline"}
        session.submit(second, "y")
        await until(session, "idle")


async def test_what_an_unfinished_answer_held_is_told_incomplete_and_never_sent() -> None:
    gate = asyncio.Event()

    class Stuck(Responder):
        async def stream(self, request: Request) -> Any:
            async for delta in super().stream(request):
                yield delta
                if type(delta).__name__ == "ArgumentsDelta":
                    await gate.wait()

    store, requests = MemoryStore(), list[Request]()
    async with open_harness(store, Stuck(requests)) as harness:
        session = await harness.create_session()
        send(session, "two", tool_choice="required")
        async with asyncio.timeout(WAIT_S):
            while not session.transcript.drafts or "c1" not in session.transcript.calls:
                await ticks(1)
        await harness.committed()
    async with open_harness(store, Responder(requests)) as harness:
        session = only(harness.sessions())
        told = [published.event for published in session.feed.kept()]
        assert [event.item.status for event in told if isinstance(event, OutputItemDone)] == ["incomplete"] * 3
        await play(session)
        check_end(session, requests)
        # The call that was cut was the first of its turn, and so is the one made again.
        assert requests[0].blocks == requests[1].blocks and requests[0].tool_choice == requests[1].tool_choice


async def test_queued_messages_stay_queued_and_run_after_the_restart() -> None:
    store = MemoryStore()
    async with open_harness(store, grace_s=WAIT_S) as harness:
        session = await harness.create_session()
        send(session, "two")
        await until(session, "waiting")
        waiting = [send(session, text).item_id for text in ("b", "c")]
        for call_id in list(session.transcript.open_calls):
            session.submit(call_id, "x")
        async with asyncio.timeout(WAIT_S):
            await harness.drain()
        assert list(session.transcript.waiting) == waiting and session.transcript.current is None
        with pytest.raises(Unavailable):
            send(session, "d")
    async with open_harness(store) as harness:
        session = only(harness.sessions())
        await until(session, "idle")
        check_end(session)
        assert [line[0] for line in conversation(session)][-4:] == [
            "user:b", "assistant:I heard user:b", "user:c", "assistant:I heard user:c",
        ]  # fmt: skip


async def test_draining_waits_for_a_model_and_not_for_a_client() -> None:
    async with open_harness(MemoryStore(), grace_s=60.0) as harness:
        parked, running = await harness.create_session(), await harness.create_session()
        send(parked, "two")
        await until(parked, "waiting")
        send(running, "two")
        async with asyncio.timeout(WAIT_S):
            await harness.drain()
        assert (parked.status, running.status) == ("waiting", "waiting")


@pytest.mark.parametrize("step", ["make_session", "Session.resume"])
async def test_a_start_that_fails_at_one_session_leaves_none_running(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    async with open_harness(store) as harness:
        for session in [await harness.create_session() for _ in range(2)]:
            send(session, "two")
            await until(session, "waiting")
    real: Any = getattr(restoring, step) if step == "make_session" else Session.resume
    count = 0

    def fail_at_the_second(*given: Any) -> Any:
        nonlocal count
        count += 1
        if count == 2:
            raise ZeroDivisionError
        return real(*given)

    monkeypatch.setattr(f"agent_harness.engine.harness.{step}", fail_at_the_second)
    harness = open_harness(store)
    with pytest.raises(ZeroDivisionError):
        await harness.restore()
    assert (harness.closed, len(harness), harness.running_turns) == (True, 0, 0)
    monkeypatch.undo()
    async with open_harness(store) as harness:
        assert [session.status for session in harness.sessions()] == ["waiting"] * 2


async def test_deleted_sessions_stay_away_and_dropped_messages_too() -> None:
    from agent_harness.protocol.requests import read_events

    store = MemoryStore()
    async with open_harness(store) as harness:
        gone, session = await harness.create_session(), await harness.create_session()
        send(session, "two")
        await until(session, "waiting")
        send(session, "waits")
        await session.interrupt(read_events({"type": "interrupt", "data": {"clear_queue": True}}))
        await harness.delete(gone)
        before = to_wire(session.snapshot())
    async with open_harness(store) as harness:
        session = only(harness.sessions())
        after = to_wire(session.snapshot())
        assert after["items"] == before["items"] and after["status"] == "idle"
        assert [turn.status for turn in session.transcript.turns.values()] == ["cancelled", "cancelled"]


async def test_forks_and_sessions_with_a_past_are_written_whole() -> None:
    from agent_harness.protocol.commands import ForkSession

    store = MemoryStore()
    past = [{"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}]
    async with open_harness(store) as harness:
        session = await harness.create_session(items=past)
        fork = harness.fork(session, ForkSession())
        before = [to_wire(kept.snapshot()) for kept in (session, fork)]
    async with open_harness(store) as harness:
        after = [to_wire(kept.snapshot()) for kept in harness.sessions()]
    assert after == before
