"""
Whether a posted result may be taken.
"""

from collections.abc import Sequence

from agent_harness.errors import Conflict, NotFound
from agent_harness.protocol.commands import OutputData
from agent_harness.protocol.items import FunctionCallOutput
from agent_harness.protocol.outputs import check_output
from agent_harness.protocol.transcript import Transcript

__all__ = ["find_repeated"]


def find_repeated(
    transcript: Transcript, results: Sequence[OutputData], params: Sequence[str]
) -> list[FunctionCallOutput | None]:
    """
    The outputs that *results* repeat, None for those whose call is open and takes it. *params* are their paths in the
    body.

    Raises:
        NotFound: no such call was announced (``unknown_call``).
        Conflict: another result was taken, or the call was closed without one.
        RequestTooLarge: it is over its limit; of bodies that is found when they are read.
    """
    for data, param in zip(results, params, strict=True):
        if data.call_id not in transcript.open_calls and data.call_id not in transcript.outputs:
            names = ", ".join(transcript.open_calls) or "none"
            message = f"No call {data.call_id[:80]!r} was announced in this session; open calls: {names}."
            raise NotFound(message, code="unknown_call", param=param)
    return [_find_repeated(transcript, data, param) for data, param in zip(results, params, strict=True)]


def _find_repeated(transcript: Transcript, data: OutputData, param: str) -> FunctionCallOutput | None:
    if data.call_id in transcript.open_calls:
        check_output(data.output, param.removesuffix("call_id") + "output")
        return None
    existing, closed_by = transcript.outputs[data.call_id], transcript.calls[data.call_id].closed_by
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
