"""
Where the engine says what happens: log lines, and calls of observers.

Called once for what ends or begins, never for single events. Nothing here can fail a step, whatever a model gave. The
lines are INFO at most: a program that set up no logging writes warnings to its standard error, and what a model
server or a client does is no fault of that program.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec

from agent_harness.engine.observer import CallOutcome, Observer, SessionEnd, TurnOutcome
from agent_harness.engine.turn import TurnOver
from agent_harness.llm.base import Ended, Retrying
from agent_harness.logs import REQUEST_ID, SESSION_ID, Line
from agent_harness.protocol import events as said
from agent_harness.protocol.items import FunctionCall
from agent_harness.protocol.turns import Turn

if TYPE_CHECKING:
    from agent_harness.engine.state import SessionState

__all__ = ["ModelCall", "Watch"]

log = logging.getLogger(__name__)

SESSIONS = logging.getLogger("agent_harness.sessions")
TURNS = logging.getLogger("agent_harness.turns")
CALLS = logging.getLogger("agent_harness.calls")
UPSTREAM = logging.getLogger("agent_harness.upstream")


P = ParamSpec("P")


def _harmless(tell: Callable[P, None]) -> Callable[P, None]:
    """
    *tell*, whose failure is logged and goes no further.
    """

    @wraps(tell)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            tell(*args, **kwargs)
        except Exception:
            log.exception("%s failed", tell.__name__)

    return wrapped


class Watch:
    """
    One for each harness. Remembers when turns and calls that are not over began.
    """

    __slots__ = ("_asked", "_began", "_opened", "observers")

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self.observers = list(observers)
        self._began: dict[str, float] = {}
        self._opened: dict[tuple[str, str], float] = {}
        self._asked: dict[str, str] = {}

    @_harmless
    def session_opened(self, session: "SessionState", *, restored: bool = False) -> None:
        """
        A session was made, or *restored*: then it is one of thousands.
        """
        if restored:
            _log(SESSIONS, logging.DEBUG, "session restored", session=session.id)
        else:
            _log(SESSIONS, logging.INFO, "session created", session=session.id)
        self._tell(lambda observer: observer.session_opened(session))

    @_harmless
    def session_ended(self, session: "SessionState", why: SessionEnd) -> None:
        """
        A session is gone.
        """
        # A harness that closes tells it of thousands at once.
        level = logging.DEBUG if why == "closed" else logging.INFO
        _log(SESSIONS, level, "session ended", session=session.id, why=why, events=session.feed.seq)
        self._tell(lambda observer: observer.session_ended(session, why))

    def turn_queued(self, turn_id: str) -> None:
        """
        A message waits: its turn will begin in a task of another turn, and shall bear this request's id.
        """
        self._asked[turn_id] = REQUEST_ID.get()

    def turn_began(self, turn_id: str) -> None:
        """
        A turn begins.
        """
        self._began[turn_id] = time.monotonic()

    def enter_turn(self, session: "SessionState", turn_id: str) -> None:
        """
        The task that runs is the turn's: what it logs bears the ids of the session and of the message's request.
        """
        SESSION_ID.set(session.id)
        if turn_id in self._asked:
            REQUEST_ID.set(self._asked.pop(turn_id))

    @_harmless
    def kept(self, session: "SessionState", events: Sequence[said.Event]) -> None:
        """
        A change was kept in which a turn ended, or a call was announced or settled.
        """
        for event in events:
            if isinstance(event, said.OutputItemDone):
                if isinstance(event.item, FunctionCall):
                    self._call_kept(session, event.item)
            elif isinstance(event, said.TERMINAL_EVENTS):
                self._turn_ended(session, event.response)

    def model_call(self, session: "SessionState", provider: str) -> "ModelCall":
        """
        The clock of a model call that begins now; enter it.
        """
        return ModelCall(self, session, provider)

    @_harmless
    def model_called(self, call: "ModelCall", outcome: CallOutcome, duration_s: float) -> None:
        """
        A model call is over.
        """
        _log(
            UPSTREAM,
            logging.DEBUG,
            "model call ended",
            session=call.session.id,
            provider=call.provider,
            outcome=outcome,
            first_s=call.first_s,
            duration_s=round(duration_s, 6),
        )
        self._tell(lambda observer: observer.model_called(call.provider, outcome, call.first_s, duration_s))

    @_harmless
    def model_retried(self, call: "ModelCall", retrying: Retrying) -> None:
        """
        A model server is asked again. What it said stands in the session's events, not in the log.
        """
        _log(
            UPSTREAM,
            logging.INFO,
            "model server asked again",
            session=call.session.id,
            response=call.session.transcript.current,
            provider=call.provider,
            attempt=retrying.attempt,
            delay_s=round(_seconds(retrying.delay_s), 3),
        )
        self._tell(lambda observer: observer.model_retried(call.provider))

    def _call_kept(self, session: "SessionState", item: FunctionCall) -> None:
        if item.status == "action_required":
            self._opened[session.id, item.call_id] = time.monotonic()
            return
        opened = self._opened.pop((session.id, item.call_id), None)
        by = session.transcript.calls[item.call_id].closed_by
        if by is None:
            # The answer that it was part of was cut: nobody was asked.
            return
        duration_s = None if opened is None else round(time.monotonic() - opened, 6)
        _log(
            CALLS,
            logging.INFO,
            "call closed",
            session=session.id,
            response=item.response_id,
            call_id=item.call_id,
            name=item.name,
            closed_by=by,
            status=item.status,
            duration_s=duration_s,
        )
        self._tell(lambda observer: observer.call_closed(session, by, duration_s))

    def _turn_ended(self, session: "SessionState", turn: Turn) -> None:
        began = self._began.pop(turn.id, None)
        self._asked.pop(turn.id, None)
        duration_s = None if began is None else round(time.monotonic() - began, 6)
        outcome = _outcome_of(turn, began is not None)
        usage = turn.usage
        _log(
            TURNS,
            logging.INFO,
            "turn ended",
            session=session.id,
            response=turn.id,
            outcome=outcome,
            reason=turn.error.code if turn.error else turn.incomplete_reason,
            model=turn.model,
            model_calls=turn.model_calls,
            input_tokens=usage and usage.input_tokens,
            output_tokens=usage and usage.output_tokens,
            duration_s=duration_s,
        )
        self._tell(lambda observer: observer.turn_ended(session, turn, outcome, duration_s))

    def _tell(self, tell: Callable[[Observer], None]) -> None:
        for observer in self.observers:
            try:
                tell(observer)
            except Exception:
                log.exception("an observer failed")


class ModelCall:
    """
    The clock of one model call, from its ``with`` to that block's end.
    """

    __slots__ = ("_asked_at", "_began", "_reason", "_watch", "first_s", "provider", "session")

    def __init__(self, watch: Watch, session: "SessionState", provider: str) -> None:
        self.session, self.provider = session, provider
        self.first_s: float | None = None
        self._watch = watch
        self._reason: str | None = None
        self._began = self._asked_at = time.monotonic()

    def __enter__(self) -> "ModelCall":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        outcome: CallOutcome = "completed" if self._reason == "completed" else "cut"
        if error is not None:
            # A turn that is over is left by TurnOver or a cancellation.
            is_fault = isinstance(error, Exception) and not isinstance(error, TurnOver)
            outcome = "failed" if is_fault else "cancelled"
        self._watch.model_called(self, outcome, time.monotonic() - self._began)

    def heard(self) -> None:
        """
        An item of the answer begins.
        """
        if self.first_s is None:
            self.first_s = round(time.monotonic() - self._asked_at, 6)

    def ended(self, ended: Ended) -> None:
        """
        The answer has its end.
        """
        self.heard()
        self._reason = ended.reason

    def retried(self, retrying: Retrying) -> None:
        """
        The attempt failed; the next begins after its wait.
        """
        self._watch.model_retried(self, retrying)
        self._asked_at = time.monotonic() + _seconds(retrying.delay_s)


def _seconds(value: object) -> float:
    """
    The *value* that a model gave as seconds; 0 for what is none.
    """
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e9 else 0.0


def _log(logger: logging.Logger, level: int, what: str, **fields: Any) -> None:
    if logger.isEnabledFor(level):
        logger.log(level, Line(what, **fields), stacklevel=2)


def _outcome_of(turn: Turn, was_seen: bool) -> TurnOutcome:
    if turn.status == "cancelled" and not was_seen and not turn.model_calls:
        return "dropped"
    assert turn.status != "queued" and turn.status != "in_progress"
    return turn.status
