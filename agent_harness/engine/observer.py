"""
What the engine tells of itself to whoever counts.
"""

from typing import TYPE_CHECKING, Literal

from agent_harness.protocol.transcript import ClosedBy
from agent_harness.protocol.turns import Turn

if TYPE_CHECKING:
    from agent_harness.engine.state import SessionState

__all__ = ["CallOutcome", "Observer", "SessionEnd", "TurnOutcome"]

TurnOutcome = Literal["completed", "failed", "cancelled", "incomplete", "dropped"]
"""How a turn ended; ``dropped`` is one whose message never left the queue."""

CallOutcome = Literal["completed", "cut", "failed", "cancelled"]
"""
How a model call ended: by itself, at a bound (its own or ours), by a fault, or because the turn was ended from outside.
"""

SessionEnd = Literal["deleted", "idle", "closed"]
"""Why a session is gone: a client deleted it, it was idle for too long, or the harness closed."""


class Observer:
    """
    Base of those that count; each method does nothing here. Give them to `agent_harness.engine.harness.Harness`, or
    append them to its ``watch.observers``.

    The methods are called in the middle of the engine's steps, in its event loop: they return at once. What they raise
    is logged and goes no further. Text deltas and other single events are not told, so that their path stays short: a
    session's ``feed`` has their number (``seq``).
    """

    def session_opened(self, session: "SessionState") -> None:
        """
        A session is there.
        """

    def session_ended(self, session: "SessionState", why: SessionEnd) -> None:
        """
        A session is gone: it publishes nothing more.
        """

    def turn_ended(self, session: "SessionState", turn: Turn, outcome: TurnOutcome, duration_s: float | None) -> None:
        """
        A turn is over; *duration_s* counts from its beginning, None if nobody saw that.
        """

    def call_closed(self, session: "SessionState", closed_by: ClosedBy, duration_s: float | None) -> None:
        """
        A tool call has its output; *duration_s* counts from its announcement, None for one that the harness answered
        without announcing it.
        """

    def model_called(self, provider: str, outcome: CallOutcome, first_s: float | None, duration_s: float) -> None:
        """
        A model call is over. *first_s* is how long the attempt that was answered took to its first item, None if none
        was; *duration_s* is the whole, retries and their waits included.
        """

    def model_retried(self, provider: str) -> None:
        """
        A model server failed before any output, and will be asked again.
        """
