"""
The turns of a session: how each begins, goes on and ends. What `agent_harness.engine.turn` and the commands call.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from agent_harness.engine.notes import FAILED_CALL, INTERRUPTED_CALL, LATE_CALL, harness_output, interrupt_marker
from agent_harness.engine.state import SessionState
from agent_harness.engine.turn import TurnOver, run_turn
from agent_harness.errors import ModelError
from agent_harness.protocol import events as said
from agent_harness.protocol.commands import SendMessage
from agent_harness.protocol.items import Message, Usage
from agent_harness.protocol.tools import clean_text
from agent_harness.protocol.transcript import ClosedBy, Step
from agent_harness.protocol.turns import IncompleteReason, LastError, Turn

__all__ = ["SessionTurns", "has_passed"]

log = logging.getLogger(__name__)


class SessionTurns(SessionState):
    """
    A session as far as its turns go.
    """

    __slots__ = ()

    # The turn's side. Each method raises TurnOver when the turn is not the running one.

    def step_of(self, turn_id: str) -> Step:
        """
        What comes next for the turn.
        """
        self.check_turn(turn_id)
        return self.transcript.step

    def add_usage(self, usage: Usage) -> None:
        """
        Count one answer's tokens.
        """
        self.transcript.add_usage(usage)
        self.usage = usage if self.usage is None else self.usage + usage

    def fail(self, turn_id: str, error: ModelError) -> None:
        """
        End the turn ``response.failed``; what its answer held so far stays, incomplete. Nothing if it is over.
        """
        if self._runs(turn_id):
            reason = LastError(error.code, clean_text(error.message))
            self.end_turn(
                [*self.transcript.cut_answer(), *self._close_open("harness", FAILED_CALL)], "failed", error=reason
            )

    def cut_turn(self, turn_id: str, reason: IncompleteReason) -> None:
        """
        End the turn ``response.incomplete`` because a bound is reached; open calls are closed as by a deadline.
        """
        if self._runs(turn_id):
            told = [*self.transcript.cut_answer(), *self._close_open("deadline", LATE_CALL)]
            self.end_turn(told, "incomplete", reason=reason)

    async def wait_for_results(self, turn_id: str) -> None:
        """
        Return when no call is open any more, or when a deadline has passed; close the calls it was of.
        """
        self.check_turn(turn_id)
        deadlines = [self.transcript.calls[call_id].expires_at for call_id in self.transcript.open_calls]
        earliest = min((deadline for deadline in deadlines if deadline is not None), default=None)
        if self.host.draining:
            self.host.parked.set()
        await self._pending.wait(None if earliest is None else max(0.0, earliest - time.time()))
        self.check_turn(turn_id)
        late = self._close_open("deadline", LATE_CALL, has_passed)
        if late:
            self.keep(late)

    # How it is done.

    def check_turn(self, turn_id: str) -> None:
        """
        Raise TurnOver unless *turn_id* is the running turn.
        """
        if self.transcript.current != turn_id or self._suspended:
            raise TurnOver(turn_id)

    def _runs(self, turn_id: str) -> bool:
        return self.transcript.current == turn_id and not self._suspended

    def _begin(self, message: Message, command: SendMessage) -> None:
        self.last_error = None
        turn = Turn(
            id=message.response_id or "", status="in_progress", model=self._model_name(), created_at=int(time.time())
        )
        self.keep(self.transcript.open_turn(turn, message, command.tools or (), command.tool_choice))
        self._start_turn()

    def _begin_next(self) -> None:
        # What is written down can wait for the next start.
        stays = self.ledger is not None and self.host.draining
        if self.transcript.next_waiting() is not None and not self.feed.closed and not stays:
            self.last_error = None
            self.keep(self.transcript.open_next_turn(self._model_name()))
            self._start_turn()

    def _start_turn(self) -> None:
        self.host.watch.turn_began(self.transcript.running.id)
        self.keep([said.ResponseCreated(self.transcript.running)])
        self._run_turn()

    def _run_turn(self) -> None:
        turn_id = self.transcript.running.id
        self._task = self.host.spawn(run_turn(self, turn_id), partial(self._turn_left, turn_id))

    def _turn_left(self, turn_id: str, task: asyncio.Task[None]) -> None:
        """
        The turn's task is over. If its turn is not (a model cancelled it, say), the turn fails: a session is never
        stuck.
        """
        if self._task is task:
            self._task = None
        if not task.cancelled() and task.exception() is not None:
            log.error("the task of turn %s died", turn_id, exc_info=task.exception())
        self.fail(turn_id, ModelError("The turn's task was stopped from outside.", code="internal_error"))

    def _cancel(self, *, clear_queue: bool) -> None:
        """
        End the running turn as interrupted, and its task.
        """
        turn_id, now = self.transcript.running.id, int(time.time())
        told = self.transcript.drop_waiting(now) if clear_queue else []
        told += [*self.transcript.cut_answer(), *self._close_open("interrupt", INTERRUPTED_CALL)]
        if self._task is not None:
            self._task.cancel()
        self.end_turn(told, "cancelled", marker=interrupt_marker(turn_id, now))

    def _close_open(
        self, by: ClosedBy, text: str, which: Callable[[float | None], bool] = lambda expires_at: True
    ) -> list[said.Event]:
        told: list[said.Event] = []
        for call_id in list(self.transcript.open_calls):
            if which(self.transcript.calls[call_id].expires_at):
                output = harness_output(call_id, text, self.transcript.current or "", int(time.time()))
                told += self.transcript.close_call(output, "incomplete", by)
        return told

    def end_turn(
        self,
        told: Sequence[said.Event],
        status: Literal["completed", "failed", "cancelled", "incomplete"],
        *,
        error: LastError | None = None,
        reason: Any = None,
        marker: Message | None = None,
    ) -> None:
        """
        End the running turn in one step with what was *told* before, and begin the next.
        """
        transcript = self.transcript
        rest = [*transcript.enter_steered(), *(transcript.add_message(marker) if marker else ())]
        terminal = transcript.end_turn(status, int(time.time()), error=error, reason=reason)
        # The next message clears it, and one that waits already is the next.
        self.last_error = error if transcript.next_waiting() is None else None
        self.keep([*told, *rest, *terminal])
        self._begin_next()

    def _model_name(self) -> str | None:
        if self.agent.model is not None:
            return self.agent.model
        try:
            return self.host.find_model(self.provider).default_model
        except ModelError:
            return None


def has_passed(expires_at: float | None) -> bool:
    """
    Whether a call's time is over; None is no bound.
    """
    return expires_at is not None and expires_at <= time.time()
