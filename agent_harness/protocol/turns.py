"""
Turns: the record kept of each, on the wire a *response*, and the open calls a running one waits for.
"""

from typing import Literal

import attrs

from agent_harness.protocol.items import Usage

__all__ = ["IncompleteReason", "LastError", "RequiredAction", "Turn", "TurnStatus"]

TurnStatus = Literal["queued", "in_progress", "completed", "failed", "cancelled", "incomplete"]
IncompleteReason = Literal["max_output_tokens", "content_filter", "max_model_calls", "max_turn_time", "session_full"]


@attrs.frozen
class LastError:
    """
    Why a turn failed: a code of `agent_harness.errors.ModelError` and words for a person.
    """

    code: str
    message: str


@attrs.frozen(kw_only=True, weakref_slot=False)
class Turn:
    """
    One turn, from its message to its end. Times are Unix seconds; ``model_calls`` counts answers asked for, not
    retries.
    """

    id: str
    status: TurnStatus
    model: str | None = None
    model_calls: int = 0
    usage: Usage | None = None
    error: LastError | None = None
    incomplete_reason: IncompleteReason | None = None
    created_at: int
    completed_at: int | None = None


@attrs.frozen(kw_only=True, weakref_slot=False)
class RequiredAction:
    """
    An open call, as snapshots and status events list it. ``expires_at`` is Unix seconds, None without a deadline.
    """

    response_id: str
    call_id: str
    name: str
    arguments: str
    expires_at: float | None
    type: Literal["function_call"] = "function_call"
