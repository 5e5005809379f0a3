"""
The loop of one turn, driven by the transcript's step.

It decides nothing by itself: it asks the session what comes next, carries the model's deltas to the session's methods,
and ends when its turn is over, whoever ended it.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from agent_harness.engine.answer import Answer
from agent_harness.errors import ModelError
from agent_harness.llm.base import Ended
from agent_harness.protocol.transcript import Step

if TYPE_CHECKING:
    from agent_harness.engine.session_turns import SessionTurns

__all__ = ["TurnOver", "run_turn"]

log = logging.getLogger(__name__)


BREATH_EVENTS = 64
BREATH_BYTES = 1024 * 1024
"""After how much, in events or bytes, a turn gives way to the event loop."""


class TurnOver(Exception):
    """
    The turn that wants to write is no longer the running one.
    """


async def run_turn(session: "SessionTurns", turn_id: str) -> None:
    """
    Run the turn *turn_id* of *session* to its end.

    Model failures end the turn ``response.failed``. Returns quietly when the turn was ended from outside.
    """
    session.host.watch.enter_turn(session, turn_id)
    scope = asyncio.timeout(session.host.limits.turn_s)
    try:
        async with scope:
            await _run_steps(session, turn_id)
    except TimeoutError as error:
        if not scope.expired():
            _fail(session, turn_id, error)
        session.cut_turn(turn_id, "max_turn_time")
    except TurnOver:
        return
    except ModelError as error:
        session.fail(turn_id, error)
    except Exception as error:
        _fail(session, turn_id, error)
    finally:
        # A cancelled task holds this frame, and the scope holds the task: apart they go by themselves.
        del scope


def _fail(session: "SessionTurns", turn_id: str, error: Exception) -> None:
    text = "turn %s of session %s failed by a fault of the harness or its model"
    log.error(text, turn_id, session.id, exc_info=error)
    message = "The turn failed by an internal error; the server's log has the details."
    session.fail(turn_id, ModelError(message, code="internal_error"))


class Breath:
    """
    Gives way to the event loop when much was published at a stretch: an upstream may send thousands of deltas in one
    piece, and followers must get to read them before they are too many.
    """

    __slots__ = ("_feed", "_seq", "_size", "_transcript")

    def __init__(self, session: "SessionTurns") -> None:
        self._feed, self._transcript = session.feed, session.transcript
        self._seq, self._size = session.feed.seq, session.transcript.size

    def is_due(self) -> bool:
        """
        Whether it is time to give way.
        """
        return self._feed.seq - self._seq >= BREATH_EVENTS or self._transcript.size - self._size >= BREATH_BYTES

    async def take(self) -> None:
        """
        Give way.
        """
        self._seq, self._size = self._feed.seq, self._transcript.size
        await asyncio.sleep(0)


async def _run_steps(session: "SessionTurns", turn_id: str) -> None:
    while (step := session.step_of(turn_id)) is not Step.IDLE:
        if step is Step.AWAIT_RESULTS:
            await session.wait_for_results(turn_id)
        else:
            await call_model(session, turn_id)


async def call_model(session: "SessionTurns", turn_id: str) -> None:
    """
    One model call: request, deltas, end.

    Raises:
        ModelError: the call failed, or its stream stopped without an end.
        TurnOver: the turn was ended meanwhile.
    """
    await session.written()
    session.check_turn(turn_id)
    if session.transcript.running.model_calls >= session.agent.max_model_calls:
        # The bound was lowered while the turn was parked.
        session.end_turn([], "incomplete", reason="max_model_calls")
        return
    if session.is_full():
        session.cut_turn(turn_id, "session_full")
        return
    answer = Answer(session)
    stream: Any = answer.model.stream(answer.request)
    breath = Breath(session)
    with answer.clock:
        try:
            async for delta in stream:
                if breath.is_due():
                    await breath.take()
                if session.feed.held:
                    await session.catch_up()
                session.check_turn(turn_id)
                if isinstance(delta, Ended):
                    answer.end(delta)
                    return
                answer.take(delta)
                if session.is_full():
                    session.cut_turn(turn_id, "session_full")
                    return
        finally:
            await stream.aclose()
        raise ModelError("The model's answer stopped before its end.", code="upstream_disconnected")
