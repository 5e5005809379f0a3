"""
Whether a posted result may be taken.
"""

from agent_harness.errors import Conflict, NotFound
from agent_harness.protocol.commands import OutputData
from agent_harness.protocol.items import FunctionCallOutput
from agent_harness.protocol.transcript import Transcript

__all__ = ["find_repeated"]


def find_repeated(transcript: Transcript, data: OutputData, param: str) -> FunctionCallOutput | None:
    """
    The output that *data* repeats, or None if its call is open and takes it. *param* is its path in the body.

    Raises:
        NotFound: no such call was announced (``unknown_call``).
        Conflict: another result was taken, or the call was closed without one.
    """
    if data.call_id in transcript.open_calls:
        return None
    existing = transcript.outputs.get(data.call_id)
    if existing is None:
        names = ", ".join(transcript.open_calls) or "none"
        message = f"No call {data.call_id[:80]!r} was announced in this session; open calls: {names}."
        raise NotFound(message, code="unknown_call", param=param)
    closed_by = transcript.calls[data.call_id].closed_by
    if closed_by != "client":
        raise Conflict(
            f"Call {data.call_id} was closed by the {closed_by} before this result came; the result was not taken.",
            code="call_closed",
            param=param,
            extra={"closed_by": closed_by},
        )
    if existing.output == (data.output or "") and existing.is_error == data.is_error:
        return existing
    message = f"Call {data.call_id} was answered already, by another result; the first one stands."
    raise Conflict(message, code="call_already_answered", param=param)
