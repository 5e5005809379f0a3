"""
What the harness says in a transcript by itself, and which calls it answers without the client.
"""

from collections.abc import Mapping

from agent_harness.protocol.drafts import Draft
from agent_harness.protocol.items import FunctionCallOutput, InputText, Message, make_id
from agent_harness.protocol.tools import Tool

__all__ = ["FAILED_CALL", "INTERRUPTED_CALL", "LATE_CALL", "harness_output", "interrupt_marker", "refusal_text"]

INTERRUPTED_CALL = "The user interrupted the turn before this call was answered. Its effect, if any, is unknown."

LATE_CALL = "The call timed out: the client did not answer it in time. Its effect, if any, is unknown."

FAILED_CALL = "The turn failed before this call was answered. Its effect, if any, is unknown."

_MARKER = "The user interrupted the previous turn. Work that it began may be unfinished."


def harness_output(call_id: str, text: str, response_id: str, now: int) -> FunctionCallOutput:
    """
    An output that the harness gives itself; the model reads *text* behind ``Error: ``.
    """
    return FunctionCallOutput(
        id=make_id("fco"),
        call_id=call_id,
        output=text,
        is_error=True,
        origin="harness",
        response_id=response_id,
        created_at=now,
    )


def interrupt_marker(response_id: str, now: int) -> Message:
    """
    The message by which later turns know that this one was interrupted.
    """
    return Message(
        id=make_id("msg"),
        role="user",
        content=(InputText(_MARKER),),
        origin="harness",
        response_id=response_id,
        created_at=now,
    )


def refusal_text(draft: Draft, offered: Mapping[str, Tool], has_room: bool) -> str | None:
    """
    Why a call cannot be given to the client, in words the model can act on; None if it can. *has_room*: fewer calls are
    open than may be.
    """
    if draft.raw_name not in offered:
        names = ", ".join(offered) or "none"
        return f"There is no tool named {draft.raw_name[:64]!r}. Tools that can be called: {names}."
    if draft.problem is not None:
        return f"The call was not run: arguments must be a JSON object, but {draft.problem}. Call again with one."
    if not has_room:
        return "The call was not run: too many were made at once. Make it again when the others are answered."
    return None
