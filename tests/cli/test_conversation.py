"""
Ctrl-C during a turn, at moments that a test with a real terminal cannot choose.
"""

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest

from agent_harness.cli.conversation import Left, Turn
from agent_harness.cli.terminal import Screen
from agent_harness.cli.turns import TurnView
from agent_harness.protocol.events import ResponseCancelled, ResponseCreated, SessionItem
from agent_harness.protocol.items import Message
from agent_harness.protocol.turns import Turn as Record

WAITING = Message(id="msg_1", role="user", content=(), origin="client", status="queued", created_at=0)

TAKEN = attrs.evolve(WAITING, status="completed")


def record(status: Any) -> Record:
    return Record(id="resp_1", status=status, created_at=0)


class Partner:
    """
    A session whose turn ends when it is interrupted.
    """

    session_id = "sess_1"
    resumable = True

    def __init__(self, failure: Exception | None = None, first: Message = TAKEN) -> None:
        self._first = first
        self.interrupted: list[str | None] = []
        self.may_begin, self.ended, self.closed = asyncio.Event(), asyncio.Event(), False
        self._failure = failure

    async def events(self) -> AsyncIterator[Any]:
        try:
            yield SessionItem(self._first)
            await self.may_begin.wait()
            yield ResponseCreated(record("in_progress"))
            await self.ended.wait()
            yield ResponseCancelled(record("cancelled"))
        finally:
            self.closed = True

    async def interrupt(self, response_id: str | None) -> bool:
        self.interrupted.append(response_id)
        if self._failure is not None:
            raise self._failure
        self.ended.set()
        return True


class Signals:
    """
    Ctrl-C by call.
    """

    def press(self) -> None:
        self._listener()

    @contextmanager
    def heard_by(self, listener: Callable[[], None]) -> Iterator[None]:
        self._listener = listener
        yield


class Played:
    """
    A turn that plays, and what it noted.
    """

    def __init__(self, partner: Partner, end_wait_s: float | None = None) -> None:
        self.signals, self.notes, self.shown = Signals(), asyncio.Queue[str](), asyncio.Queue[Any]()
        screen = Screen(io.StringIO())
        self.view = TurnView(screen, screen, ())
        self.turn = Turn(partner, self.view, self.signals, self.notes.put_nowait, end_wait_s)  # type: ignore[arg-type]
        self.task = asyncio.create_task(self.turn.play(partner.events(), self._show))

    def _show(self, event: Any) -> None:
        self.view.show(event)
        self.shown.put_nowait(event)


async def test_ctrl_c_ends_the_turn_that_runs() -> None:
    partner = Partner()
    partner.may_begin.set()
    played = Played(partner)
    async with asyncio.timeout(5):
        while not isinstance(await played.shown.get(), ResponseCreated):
            pass
        played.signals.press()
        await played.task

    assert partner.interrupted == ["resp_1"] and partner.closed
    assert played.turn.stopped == 1 and played.view.turn == record("cancelled")


async def test_ctrl_c_before_the_turn_begins_ends_it_when_it_does_and_no_other_turn() -> None:
    partner = Partner()
    played = Played(partner)
    async with asyncio.timeout(5):
        await played.shown.get()
        played.signals.press()
        assert partner.interrupted == []
        partner.may_begin.set()
        await played.task

    assert partner.interrupted == ["resp_1"]


async def test_ctrl_c_while_the_message_waits_ends_the_wait_and_interrupts_nothing() -> None:
    partner = Partner(first=WAITING)
    played = Played(partner)
    async with asyncio.timeout(5):
        await played.shown.get()
        played.signals.press()
        await played.task

    assert partner.interrupted == [] and partner.closed and played.turn.stopped == 1
    assert "the message stays queued" in played.notes.get_nowait()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_ctrl_c_before_it_is_known_that_the_message_waits_ends_the_wait() -> None:
    partner = Partner(first=WAITING)
    played = Played(partner)
    async with asyncio.timeout(5):
        await asyncio.sleep(0)
        played.signals.press()
        await played.task

    assert partner.interrupted == [] and partner.closed


async def test_a_turn_that_does_not_end_in_time_is_left() -> None:
    partner = Partner()
    played = Played(partner, end_wait_s=0.05)
    async with asyncio.timeout(5):
        await played.shown.get()
        played.signals.press()
        with pytest.raises(Left):
            await played.task

    assert partner.closed and asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_second_ctrl_c_leaves_a_turn_that_does_not_end() -> None:
    partner = Partner()
    played = Played(partner)
    async with asyncio.timeout(5):
        await played.shown.get()
        played.signals.press()
        played.signals.press()
        with pytest.raises(Left):
            await played.task

    assert partner.closed and asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_interrupt_that_cannot_be_sent_is_told_and_ends_nothing() -> None:
    partner = Partner(ConnectionError("nobody there"))
    partner.may_begin.set()
    played = Played(partner)
    async with asyncio.timeout(5):
        while not isinstance(await played.shown.get(), ResponseCreated):
            pass
        played.signals.press()
        while await played.notes.get() != "nobody there":
            pass
        assert not played.task.done()
        partner.ended.set()
        await played.task
