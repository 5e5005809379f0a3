"""
Parts of a feed: what a reader is given of the batches a follower takes, and where it ends.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from agent_harness.engine.follower import Follower, Published
from agent_harness.engine.replies import Sent
from agent_harness.engine.state import SessionState
from agent_harness.protocol.events import TERMINAL_EVENTS, ResponseCreated, SessionStatus, event_response_id

__all__ = ["Everything", "OneResponse", "Part", "UntilIdle", "follow_message", "read_part"]


class Part(Protocol):
    """
    A choice of a feed's events. ``over`` says that nothing after what was chosen last belongs to it.
    """

    over: bool

    def choose(self, batch: list[Published]) -> list[Published]:
        """
        What of *batch* belongs to it. Called with every batch in order, until it is over.
        """
        ...


class Everything:
    """
    Everything, as it comes.
    """

    __slots__ = ("over",)

    def __init__(self) -> None:
        self.over = False

    def choose(self, batch: list[Published]) -> list[Published]:
        """
        All of it.
        """
        return batch


class UntilIdle:
    """
    Everything up to the first status idle or failed behind the first frame. What a replay holds does not count, but if
    the session was *resting* at its end, that is the end here too.
    """

    __slots__ = ("_begun", "_resting", "over")

    def __init__(self, resting: bool) -> None:
        self._resting = resting
        self.over = self._begun = False

    def choose(self, batch: list[Published]) -> list[Published]:
        """
        All of it, or its beginning.
        """
        if not self._begun:
            self._begun, self.over = True, self._resting
            return batch
        for index, published in enumerate(batch):
            if isinstance(published.event, SessionStatus) and published.event.status in ("idle", "failed"):
                self.over = True
                return batch[: index + 1]
        return batch


class OneResponse:
    """
    The first frame, the response's events, and the status that closes it. A response that was dropped before it had
    *begun* has no such status; of one whose end is *forgotten* there is what is kept.
    """

    __slots__ = ("_begun", "_ended", "_forgotten", "_response_id", "over")

    def __init__(self, response_id: str, begun: bool, forgotten: bool = False) -> None:
        self._response_id = response_id
        self._begun, self._forgotten = begun, forgotten
        self.over = self._ended = False

    def choose(self, batch: list[Published]) -> list[Published]:
        """
        What is the response's own.
        """
        chosen: list[Published] = []
        for published in batch:
            event = published.event
            mine = event_response_id(event) == self._response_id
            if mine or not published.numbered or (self._ended and isinstance(event, SessionStatus)):
                chosen.append(published)
            self._begun = self._begun or (mine and isinstance(event, ResponseCreated))
            self.over = self._ended and isinstance(event, SessionStatus)
            self._ended = self._ended or (mine and isinstance(event, TERMINAL_EVENTS))
            self.over = self.over or (self._ended and not self._begun)
            if self.over:
                return chosen
        self.over = self._forgotten
        return chosen


def follow_message(session: SessionState, sent: Sent) -> tuple[Follower, Part]:
    """
    Follow the response of a message that was just sent, or sent again, from before it took effect.

    Raises:
        NotFound: the session was deleted.
        RateLimited: too many follow it.
    """
    turn = session.transcript.turns[sent.response_id]
    # Since a restart, say.
    forgotten = turn.completed_at is not None and not _is_end_kept(session, turn.id)
    follower = session.follow(sent=sent)
    return follower, OneResponse(turn.id, turn.status == "in_progress", forgotten)


def _is_end_kept(session: SessionState, response_id: str) -> bool:
    return session.feed.has_kept(lambda event: isinstance(event, TERMINAL_EVENTS) and event.response.id == response_id)


async def read_part(follower: Follower, part: Part) -> AsyncIterator[list[Published]]:
    """
    The batches of a *part*, to its end.
    """
    while not part.over and (batch := await follower.take()):
        if chosen := part.choose(batch):
            yield chosen
