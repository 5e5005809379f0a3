"""
Parts of a feed: ways to read a follower that end by themselves.
"""

from collections.abc import AsyncIterator

from agent_harness.engine.feed import Follower, Published
from agent_harness.protocol.events import TERMINAL_EVENTS, ResponseCreated, SessionStatus, event_response_id

__all__ = ["Batches", "read_all", "read_response", "read_until_idle"]

Batches = AsyncIterator[list[Published]]


async def read_all(follower: Follower) -> Batches:
    """
    Everything, as it comes.
    """
    while batch := await follower.take():
        yield batch


async def read_until_idle(follower: Follower, resting: bool) -> Batches:
    """
    Everything up to the first status idle or failed behind the first frame. What a replay holds does not count, but if
    the session was *resting* at its end, that is the end here too.
    """
    yield await follower.take()
    if resting:
        return
    while batch := await follower.take():
        for index, published in enumerate(batch):
            if isinstance(published.event, SessionStatus) and published.event.status in ("idle", "failed"):
                yield batch[: index + 1]
                return
        yield batch


async def read_response(follower: Follower, response_id: str, begun: bool, forgotten: bool = False) -> Batches:
    """
    The first frame, the response's events, and the status that closes it. A response that was dropped before it had
    *begun* has no such status; of one whose end is *forgotten* there is what is kept.
    """
    ended = False
    while batch := await follower.take():
        chosen: list[Published] = []
        for published in batch:
            event = published.event
            mine = event_response_id(event) == response_id
            if mine or not published.numbered or (ended and isinstance(event, SessionStatus)):
                chosen.append(published)
            begun = begun or (mine and isinstance(event, ResponseCreated))
            over = ended and isinstance(event, SessionStatus)
            ended = ended or (mine and isinstance(event, TERMINAL_EVENTS))
            if over or (ended and not begun):
                yield chosen
                return
        if chosen:
            yield chosen
        if forgotten:
            return
