"""
Examples of bodies, answers and streams for the OpenAPI document, written by the codec itself where it can.
"""

from typing import Any

from agent_harness.engine.replies import Accepted, Interrupted, Sent
from agent_harness.protocol import events as said
from agent_harness.protocol.agents import Agent
from agent_harness.protocol.encode import encode_event, to_wire
from agent_harness.protocol.items import FunctionCall, InputText, Message, Usage
from agent_harness.protocol.pages import Snapshot
from agent_harness.protocol.sse import DONE
from agent_harness.protocol.turns import RequiredAction, Turn

__all__ = ["ANSWERS", "BODIES", "STREAMS"]

_AT = 1796044243
_CALL: dict[str, Any] = {"call_id": "call_9d02", "name": "lookup_widget", "arguments": '{"widget_id": 42}'}
_TOOL = {"type": "function", "name": "lookup_widget", "parameters": {"type": "object"}}
_QUESTION = "What color is widget 42?"


def _one(value: Any, name: str = "example") -> dict[str, Any]:
    return {name: {"value": value}}


def _result(output: str, call_id: str = "call_9d02") -> dict[str, Any]:
    return {"type": "function_call_output", "data": {"call_id": call_id, "output": output}}


BODIES: dict[str, dict[str, Any]] = {
    "create": _one({}, "default")
    | _one({"agent": {"instructions": "Answer in one sentence.", "tools": [_TOOL]}, "metadata": {"k": "v"}}, "agent")
    | _one({"items": [{"type": "message", "role": "user", "content": _QUESTION}]}, "past"),
    "update": _one({"agent": {"model": "gpt-5-mini", "temperature": None}, "metadata": {"topic": "widgets"}}),
    "fork": _one({}, "all"),
    "events": _one({"type": "message", "data": {"content": _QUESTION}, "tools": [_TOOL]}, "message")
    | _one(_result("teal"), "result")
    | _one({"type": "interrupt"}, "interrupt")
    | _one({"events": [_result("teal"), _result("grey", "call_5b7a")]}, "batch"),
}
"""By the names of `agent_harness.server.openapi`; each is an Examples object."""

_MESSAGE = Message(
    id="msg_0a6e",
    role="user",
    content=(InputText(_QUESTION),),
    origin="client",
    response_id="resp_81b0",
    created_at=_AT,
)
_OPEN = FunctionCall(id="fc_77e2", status="action_required", response_id="resp_81b0", created_at=_AT, **_CALL)
_ACTION = RequiredAction(response_id="resp_81b0", expires_at=_AT + 3600.0, **_CALL)
_SNAPSHOT = Snapshot(
    id="sess_4c1d",
    status="waiting",
    created_at=_AT,
    updated_at=_AT,
    agent=Agent(),
    metadata={},
    response_id="resp_81b0",
    required_actions=(_ACTION,),
    queued=(),
    seq=9,
    usage=Usage(58, 17, 75, 0, None),
    last_error=None,
    items=(_MESSAGE, _OPEN),
)
_TURN = Turn(id="resp_81b0", status="completed", model="gpt-5-mini", created_at=_AT, completed_at=_AT + 3)
_SENT = Sent(queued=False, item_id="msg_0a6e", response_id="resp_81b0", seq=0)
_ACCEPTED = Accepted(duplicate=False, item_id="fco_b31c", call_id="call_9d02", seq=9)

_sent = to_wire(_SENT)
del _sent["waiting_for"]

ANSWERS: dict[str, dict[str, Any]] = {
    "get_session": _one(to_wire(_SNAPSHOT)),
    "get_response": _one(to_wire(_TURN)),
    "post_events": _one(_sent, "message")
    | _one(to_wire(_ACCEPTED), "result")
    | _one(to_wire(Interrupted(interrupted=True, response_id="resp_81b0", dropped=(), seq=7)), "interrupt")
    | _one({"results": [to_wire(_ACCEPTED)]}, "batch"),
}
"""By handler."""

_waiting = said.SessionStatus(status="waiting", response_id="resp_81b0", required_actions=(_ACTION,))
_frames = (
    encode_event(_waiting, 9, _AT + 0.5, numbered=False, retry=1000),
    encode_event(said.OutputItemDone("resp_81b0", 0, _OPEN, replayed=True), 9, _AT + 0.5, numbered=False),
    encode_event(said.TextDelta("resp_81b0", "msg_91d8", 2, 0, "It is teal."), 14, _AT + 2.0),
    encode_event(said.ResponseCompleted(_TURN), 17, _AT + 3.0),
    DONE,
)

STREAMS: dict[str, Any] = _one(b"".join(_frames).decode())
"""Frames of a stream."""
