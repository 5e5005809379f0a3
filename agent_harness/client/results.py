"""
What commands are answered, and what a turn came to.
"""

from typing import Any

import attrs

from agent_harness.protocol.items import FunctionCallOutput, Item, Message, OutputText, Usage
from agent_harness.protocol.turns import IncompleteReason, LastError, Turn, TurnStatus

__all__ = ["Accepted", "Interrupted", "Result", "make_result"]


@attrs.frozen(kw_only=True)
class Accepted:
    """
    The answer to a result. ``duplicate``: the same was taken before.
    """

    call_id: str
    item_id: str
    duplicate: bool
    seq: int


@attrs.frozen(kw_only=True)
class Interrupted:
    """
    The answer to an interrupt: whether a turn was stopped, which, and the item ids of the messages that were dropped.
    """

    interrupted: bool
    response_id: str | None
    dropped: tuple[str, ...]
    seq: int


@attrs.frozen(kw_only=True)
class Result:
    """
    A turn that has ended. One that did not end well raises nothing: ``status`` says so.

    Attributes:
        status: ``completed``, ``failed`` (see ``error``), ``incomplete`` (see ``incomplete_reason``) or ``cancelled``.
        text: what the model said last: the text behind the last tool result.
        items: everything of the turn, its message first, each as it was in the end.
        usage: tokens of all its model calls, None where the provider told none.
    """

    response_id: str
    status: TurnStatus
    text: str
    items: tuple[Item, ...] = attrs.field(repr=False)
    usage: Usage | None
    error: LastError | None
    incomplete_reason: IncompleteReason | None


def make_result(turn: Turn, items: tuple[Item, ...]) -> Result:
    """
    The result of *turn*, with its *items*.
    """
    last = max((index for index, item in enumerate(items) if isinstance(item, FunctionCallOutput)), default=-1)
    said: list[Any] = [item for item in items[last + 1 :] if isinstance(item, Message) and item.role == "assistant"]
    text = "".join(part.text for message in said for part in message.content if isinstance(part, OutputText))
    return Result(
        response_id=turn.id,
        status=turn.status,
        text=text,
        items=items,
        usage=turn.usage,
        error=turn.error,
        incomplete_reason=turn.incomplete_reason,
    )
