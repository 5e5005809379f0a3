"""
What lists and single sessions look like when they are read.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import attrs

from agent_harness.errors import InvalidRequest
from agent_harness.protocol.agents import Agent
from agent_harness.protocol.items import Item, Usage
from agent_harness.protocol.requests import Page
from agent_harness.protocol.turns import LastError, RequiredAction

__all__ = ["Snapshot", "make_page"]

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Snapshot:
    """
    A session as it is after event number ``seq``; ``items`` None leaves them out.
    """

    id: str
    object: Literal["session"] = "session"
    status: Literal["idle", "running", "waiting", "failed"]
    created_at: int
    updated_at: int
    agent: Agent
    metadata: Mapping[str, str]
    response_id: str | None
    required_actions: tuple[RequiredAction, ...]
    queued: tuple[str, ...]
    seq: int
    usage: Usage | None
    last_error: LastError | None
    items: tuple[Item, ...] | None = None


def make_page(page: Page, rows: Sequence[T], write: Callable[[T], Any], id_of: Callable[[T], str]) -> dict[str, Any]:
    """
    The part of *rows* (oldest first) that *page* asks for, in the wire's shape.

    Raises:
        InvalidRequest: no row has the id in ``after``.
    """
    ordered = rows[::-1] if page.descending else rows
    start = 0
    if page.after is not None:
        start = 1 + next((index for index, row in enumerate(ordered) if id_of(row) == page.after), -1)
        if start == 0:
            raise InvalidRequest("after is the id of an element of this list.", param="after")
    part = ordered[start : start + page.limit]
    return {
        "object": "list",
        "data": [write(row) for row in part],
        "first_id": id_of(part[0]) if part else None,
        "last_id": id_of(part[-1]) if part else None,
        "has_more": start + page.limit < len(ordered),
    }
