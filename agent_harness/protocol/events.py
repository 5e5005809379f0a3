"""
Events: what followers of a session hear. One frozen class a wire type; field names are the wire's.

``seq`` (the number) and ``at`` (Unix seconds) are added when an event is published; the classes here hold the rest.
Names that begin with ``response.`` are those of the OpenAI Responses API where it has such an event.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import attrs

from agent_harness.protocol.agents import Agent
from agent_harness.protocol.items import Item
from agent_harness.protocol.turns import LastError, RequiredAction, Turn

__all__ = [
    "TERMINAL_EVENTS",
    "ArgumentsDelta",
    "ArgumentsDone",
    "Event",
    "OutputItemAdded",
    "OutputItemDone",
    "Piece",
    "RefusalDelta",
    "RefusalDone",
    "ResponseCancelled",
    "ResponseCompleted",
    "ResponseCreated",
    "ResponseFailed",
    "ResponseIncomplete",
    "ResponseRetrying",
    "SessionDeleted",
    "SessionGap",
    "SessionItem",
    "SessionLagged",
    "SessionStatus",
    "SessionUpdated",
    "SummaryDelta",
    "SummaryDone",
    "TextDelta",
    "TextDone",
    "Unnumbered",
    "event_response_id",
]


@attrs.frozen(weakref_slot=False)
class SessionItem:
    """
    A message that the model did not write: entered, waiting (``queued``) or dropped (``cancelled``).
    """

    item: Item
    type: Literal["session.item"] = "session.item"


@attrs.frozen(kw_only=True, weakref_slot=False)
class SessionStatus:
    """
    What the session does now. ``item_id`` stands only in the first frame of a message's own stream.
    """

    status: Literal["idle", "running", "waiting", "failed"]
    response_id: str | None
    required_actions: tuple[RequiredAction, ...] = ()
    queued: tuple[str, ...] = ()
    last_error: LastError | None = None
    item_id: str | None = None
    type: Literal["session.status"] = "session.status"


@attrs.frozen(weakref_slot=False)
class SessionUpdated:
    """
    The agent or the metadata was changed; both are given whole.
    """

    agent: Agent
    metadata: Mapping[str, str]
    type: Literal["session.updated"] = "session.updated"


@attrs.frozen(weakref_slot=False)
class SessionDeleted:
    """
    The session is gone; the stream ends.
    """

    id: str
    type: Literal["session.deleted"] = "session.deleted"


@attrs.frozen(weakref_slot=False)
class SessionGap:
    """
    Not numbered: events after ``after`` (a number, or what was given for one) are missing; what follows begins with
    ``first_seq`` (None: none is kept).
    """

    after: int | str
    first_seq: int | None
    type: Literal["session.gap"] = "session.gap"


@attrs.frozen(weakref_slot=False)
class SessionLagged:
    """
    Not numbered: this follower fell too far behind and is cut; it resumes by number.
    """

    type: Literal["session.lagged"] = "session.lagged"


@attrs.frozen(weakref_slot=False)
class ResponseCreated:
    """
    A turn began.
    """

    response: Turn
    type: Literal["response.created"] = "response.created"


@attrs.frozen(weakref_slot=False)
class ResponseCompleted:
    """
    A turn ended well.
    """

    response: Turn
    type: Literal["response.completed"] = "response.completed"


@attrs.frozen(weakref_slot=False)
class ResponseFailed:
    """
    A turn ended by an error, which ``response.error`` tells.
    """

    response: Turn
    type: Literal["response.failed"] = "response.failed"


@attrs.frozen(weakref_slot=False)
class ResponseIncomplete:
    """
    A turn was cut short; ``response.incomplete_details.reason`` says by what.
    """

    response: Turn
    type: Literal["response.incomplete"] = "response.incomplete"


@attrs.frozen(weakref_slot=False)
class ResponseCancelled:
    """
    A turn was interrupted, or dropped before it began.
    """

    response: Turn
    type: Literal["response.cancelled"] = "response.cancelled"


@attrs.frozen(weakref_slot=False)
class ResponseRetrying:
    """
    The model server failed before any output; it is asked again after ``delay_s`` seconds.
    """

    response_id: str
    attempt: int
    delay_s: float
    reason: str
    type: Literal["response.retrying"] = "response.retrying"


@attrs.frozen(weakref_slot=False)
class OutputItemAdded:
    """
    An item of the model's answer began.
    """

    response_id: str
    output_index: int
    item: Item
    type: Literal["response.output_item.added"] = "response.output_item.added"


@attrs.frozen(weakref_slot=False)
class OutputItemDone:
    """
    An item reached a new status. ``replayed`` marks an open call told again to a follower that came later.
    """

    response_id: str
    output_index: int
    item: Item
    replayed: Literal[True] | None = None
    type: Literal["response.output_item.done"] = "response.output_item.done"


@attrs.frozen(weakref_slot=False)
class TextDelta:
    """
    More text of a message.
    """

    response_id: str
    item_id: str
    output_index: int
    content_index: int
    delta: str
    type: Literal["response.output_text.delta"] = "response.output_text.delta"


@attrs.frozen(weakref_slot=False)
class TextDone:
    """
    A text part is whole.
    """

    response_id: str
    item_id: str
    output_index: int
    content_index: int
    text: str
    type: Literal["response.output_text.done"] = "response.output_text.done"


@attrs.frozen(weakref_slot=False)
class RefusalDelta:
    """
    More of a refusal.
    """

    response_id: str
    item_id: str
    output_index: int
    content_index: int
    delta: str
    type: Literal["response.refusal.delta"] = "response.refusal.delta"


@attrs.frozen(weakref_slot=False)
class RefusalDone:
    """
    A refusal is whole.
    """

    response_id: str
    item_id: str
    output_index: int
    content_index: int
    refusal: str
    type: Literal["response.refusal.done"] = "response.refusal.done"


@attrs.frozen(weakref_slot=False)
class ArgumentsDelta:
    """
    More of a call's arguments, as the model writes them.
    """

    response_id: str
    item_id: str
    output_index: int
    delta: str
    type: Literal["response.function_call_arguments.delta"] = "response.function_call_arguments.delta"


@attrs.frozen(weakref_slot=False)
class ArgumentsDone:
    """
    A call's arguments are whole, in the form they are kept in.
    """

    response_id: str
    item_id: str
    output_index: int
    arguments: str
    type: Literal["response.function_call_arguments.done"] = "response.function_call_arguments.done"


@attrs.frozen(weakref_slot=False)
class SummaryDelta:
    """
    More of a reasoning summary.
    """

    response_id: str
    item_id: str
    output_index: int
    summary_index: int
    delta: str
    type: Literal["response.reasoning_summary_text.delta"] = "response.reasoning_summary_text.delta"


@attrs.frozen(weakref_slot=False)
class SummaryDone:
    """
    A part of a reasoning summary is whole.
    """

    response_id: str
    item_id: str
    output_index: int
    summary_index: int
    text: str
    type: Literal["response.reasoning_summary_text.done"] = "response.reasoning_summary_text.done"


Terminal = ResponseCompleted | ResponseFailed | ResponseIncomplete | ResponseCancelled

TERMINAL_EVENTS = (ResponseCompleted, ResponseFailed, ResponseIncomplete, ResponseCancelled)
"""A turn ends with exactly one of these."""

Unnumbered = SessionGap | SessionLagged

Piece = TextDelta | RefusalDelta | ArgumentsDelta | SummaryDelta
"""A piece of an item that the model writes: nothing of the session changes by it but the item."""

Event = (
    SessionItem
    | SessionStatus
    | SessionUpdated
    | SessionDeleted
    | SessionGap
    | SessionLagged
    | ResponseCreated
    | Terminal
    | ResponseRetrying
    | OutputItemAdded
    | OutputItemDone
    | TextDelta
    | TextDone
    | RefusalDelta
    | RefusalDone
    | ArgumentsDelta
    | ArgumentsDone
    | SummaryDelta
    | SummaryDone
)


def event_response_id(event: Event) -> str | None:
    """
    The turn that *event* belongs to, or None.
    """
    find = _RESPONSES.get(type(event))
    # All others have it as a field.
    return event.response_id if find is None else find(event)  # type: ignore[union-attr]


def _response_of_item(event: SessionItem) -> str | None:
    return event.item.response_id


def _response_of_turn(event: ResponseCreated | Terminal) -> str:
    return event.response.id


def _no_response(event: Event) -> None:
    return None


_RESPONSES: dict[type, Callable[[Any], str | None]] = {
    SessionItem: _response_of_item,
    ResponseCreated: _response_of_turn,
    ResponseCompleted: _response_of_turn,
    ResponseFailed: _response_of_turn,
    ResponseIncomplete: _response_of_turn,
    ResponseCancelled: _response_of_turn,
    SessionUpdated: _no_response,
    SessionDeleted: _no_response,
    SessionGap: _no_response,
    SessionLagged: _no_response,
}
