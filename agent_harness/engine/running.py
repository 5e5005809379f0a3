"""
A message run in process: its events as they come, and Python functions that answer its calls.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from agent_harness.engine.following import follow_message, read_part
from agent_harness.errors import Conflict, NotFound, Unavailable
from agent_harness.functions import Functions
from agent_harness.protocol.commands import Delivery, SendMessage
from agent_harness.protocol.events import Event, OutputItemDone
from agent_harness.protocol.items import FunctionCall
from agent_harness.protocol.requests import read_events
from agent_harness.protocol.tools import Tool

if TYPE_CHECKING:
    from agent_harness.engine.session import Session

__all__ = ["ToolLike", "run_message"]

ToolLike = Callable[..., Any] | Tool | Mapping[str, Any]
"""A Python function, or a definition whose calls somebody else answers with ``session.submit``."""


async def run_message(
    session: "Session",
    content: str | list[dict[str, Any]],
    tools: Iterable[ToolLike] = (),
    tool_choice: str | Mapping[str, Any] | None = None,
    delivery: Delivery = "queue",
) -> AsyncIterator[Event]:
    """
    See `agent_harness.engine.session.Session.run`.
    """
    functions = Functions(tools)
    body = {"type": "message", "data": {"content": content}, "tool_choice": tool_choice, "delivery": delivery}
    # A steered message without tools leaves the turn those it has.
    command = read_events(body | {"tools": functions.definitions} if functions.definitions else body)
    assert isinstance(command, SendMessage)
    sent = session.send(command, follow=True)
    follower, part = follow_message(session, sent)
    answering: set[asyncio.Task[None]] = set()
    try:
        async for batch in read_part(follower, part):
            for published in batch:
                if published.seq <= sent.seq:
                    continue
                _attend(session, functions, published.event, answering)
                yield published.event
    finally:
        follower.close()
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)


def _attend(session: "Session", functions: Functions, event: Event, answering: set[asyncio.Task[None]]) -> None:
    """
    Run a call that was announced; cancel one that was closed before it was done.
    """
    if not isinstance(event, OutputItemDone) or not isinstance(event.item, FunctionCall):
        return
    call = event.item
    if call.status != "action_required":
        functions.cancel(call.call_id)
    elif call.name in functions:
        task = asyncio.get_running_loop().create_task(_answer(session, functions, call))
        answering.add(task)
        task.add_done_callback(answering.discard)


async def _answer(session: "Session", functions: Functions, call: FunctionCall) -> None:
    output = await functions.run(call.call_id, call.name, call.arguments)
    try:
        session.submit_all([output], ["call_id"])
    except (Conflict, NotFound, Unavailable):
        # Somebody else answered it, or it was closed meanwhile, and what was kept first stands; or the session is left
        # for the next start, which asks for the result again.
        pass
