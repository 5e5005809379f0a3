"""
What a session is and what can be seen of it, and the one way in which a change of it is finished.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Literal

from agent_harness.engine.feed import Feed
from agent_harness.engine.follower import Follower
from agent_harness.engine.ledger import Ledger
from agent_harness.engine.pending import Pending
from agent_harness.engine.replies import Sent, SessionHost
from agent_harness.errors import NotFound, RateLimited, Unavailable
from agent_harness.llm import base
from agent_harness.protocol import events as said
from agent_harness.protocol.agents import Agent
from agent_harness.protocol.items import (
    FunctionCall,
    Usage,
    make_id,
)
from agent_harness.protocol.pages import Snapshot
from agent_harness.protocol.transcript import Transcript
from agent_harness.protocol.turns import LastError

__all__ = ["SessionState", "Status"]

Status = Literal["idle", "running", "waiting", "failed"]

_TERMINAL = frozenset(said.TERMINAL_EVENTS)

HELD_MAX = 500
"""How many events of a session may be held before its turn waits for the disk."""


class SessionState:
    """
    One agent, one transcript, one feed, at most one running turn. `agent_harness.engine.session.Session`
    adds what changes it.
    """

    __slots__ = (
        "__weakref__",
        "_cache", "_pending", "_suspended", "_task", "_told", "agent", "created_at", "feed", "host", "id", "last_error",
        "ledger", "metadata", "transcript", "updated_at", "usage",
    )  # fmt: skip

    def __init__(
        self, host: SessionHost, agent: Agent, metadata: dict[str, str], transcript: Transcript, id: str | None = None
    ) -> None:
        self.id = id or make_id("sess")
        self.agent = agent
        self.metadata = metadata
        self.transcript = transcript
        self.created_at = self.updated_at = int(time.time())
        self.usage: Usage | None = None
        self.last_error: LastError | None = None
        self.feed = Feed(host.limits.replay_events, host.limits.replay_bytes, host.limits.backlog_events)
        self.host = host
        self._pending = Pending()
        self._task: asyncio.Task[None] | None = None
        self._told: tuple[Status, str | None] = ("idle", None)
        self._cache: base.RequestCache | None = None
        # Both only where sessions are written down.
        self.ledger: Ledger | None = None
        self._suspended = False

    def __repr__(self) -> str:
        return f"<Session {self.id} {self.status} seq={self.feed.seq}>"

    # What can be seen.

    @property
    def status(self) -> Status:
        """
        ``waiting`` while a call is open, ``running`` while a turn runs or is about to, ``failed`` after one that
        failed.
        """
        return self._status_of(self.response_id)

    def _status_of(self, response_id: str | None) -> Status:
        if response_id is not None:
            return "waiting" if self.transcript.open_calls else "running"
        return "failed" if self.last_error else "idle"

    @property
    def response_id(self) -> str | None:
        """
        The turn that runs; between two turns the one that comes next.
        """
        if self.transcript.current is not None:
            return self.transcript.current
        coming = self.transcript.next_waiting()
        return coming.message.response_id if coming else None

    def is_full(self) -> bool:
        """
        Whether the transcript has reached a bound: no message is taken, and no model is called.
        """
        limits = self.host.limits
        return self.transcript.reaches(limits.items, limits.session_bytes)

    @property
    def provider(self) -> str:
        """
        The name of the provider that the next model call goes to.
        """
        return self.agent.provider or self.host.default_provider

    def status_event(self, *, item_id: str | None = None, response_id: str | None = None) -> said.SessionStatus:
        """
        The present status as an event; *item_id* and *response_id* are those of a message whose own stream begins.
        """
        current = self.response_id
        return self._status_event(self._status_of(current), response_id or current, item_id)

    def _status_event(self, status: Status, response_id: str | None, item_id: str | None = None) -> said.SessionStatus:
        return said.SessionStatus(
            status=status,
            response_id=response_id,
            required_actions=self.transcript.required_actions(),
            queued=tuple(self.transcript.waiting),
            last_error=self.last_error,
            item_id=item_id,
        )

    def snapshot(self, *, include_items: bool = True) -> Snapshot:
        """
        The session as it is now.
        """
        return Snapshot(
            id=self.id,
            status=self.status,
            created_at=self.created_at,
            updated_at=self.updated_at,
            agent=self.agent,
            metadata=self.metadata,
            response_id=self.response_id,
            required_actions=self.transcript.required_actions(),
            queued=tuple(self.transcript.waiting),
            seq=self.feed.seq,
            usage=self.usage,
            last_error=self.last_error,
            items=tuple(self.transcript.items()) if include_items else None,
        )

    def follow(self, after: str | None = None, *, sent: Sent | None = None) -> Follower:
        """
        Follow the session from event number *after* (as the client gave it), or from now on; with *sent* from before
        that message took effect.

        Raises:
            NotFound: the session was deleted.
            RateLimited: too many follow it.
        """
        self.check_open()
        self.check_followers()
        if sent is not None:
            opening = self.status_event(item_id=sent.item_id, response_id=sent.response_id)
            return self.feed.follow(opening, [], str(sent.seq), seq=sent.seq)
        open_calls = [self._announce_again(call_id) for call_id in self.transcript.open_calls]
        return self.feed.follow(self.status_event(), open_calls, after)

    def check_followers(self) -> None:
        """
        Raise RateLimited if nobody more may follow.
        """
        if self.feed.followers >= self.host.limits.followers:
            message = f"{self.feed.followers} follow this session already, the most that may."
            raise RateLimited(message, code="too_many_followers")

    def _announce_again(self, call_id: str) -> said.OutputItemDone:
        item, call = self.transcript.call_item(call_id), self.transcript.calls[call_id]
        return said.OutputItemDone(item.response_id or "", call.output_index, item, replayed=True)

    def request_cache(self) -> base.RequestCache:
        """
        The session's past as request bytes.
        """
        if self._cache is None:
            self._cache = base.RequestCache()
        return self._cache

    def forget(self) -> None:
        """
        Keep only what cannot be made again; no turn may run. Followers that come back find a gap, and the next model
        call encodes the past anew, to the same bytes.
        """
        self.feed.forget()
        self.transcript.forget_blocks()
        self._cache = None

    # The one writer.

    def keep(self, events: Sequence[said.Event]) -> None:
        """
        Finish a change that the transcript has just made: the turn that waits is woken, numbers, followers, and the
        status if it changed; where sessions are written down, have it written.
        """
        at = time.time()
        self.updated_at = int(at)
        ended = calls = False
        for event in events:
            if isinstance(event, said.OutputItemDone):
                calls = calls or isinstance(event.item, FunctionCall)
            elif type(event) in _TERMINAL:
                ended = True
        if calls and not self.transcript.open_calls:
            self._pending.wake()
        for event in events:
            self.feed.publish(event, at)
        response_id = self.response_id
        now = (self._status_of(response_id), response_id)
        if ended or now != self._told:
            self._told = now
            self.feed.publish(self._status_event(*now), at)
        if ended or calls:
            self.host.watch.kept(self, events)
        if self.ledger is not None and self.host.journal is not None:
            self.host.journal.keep(self, events)

    def keep_piece(self, piece: said.Piece) -> None:
        """
        As `keep`, of a piece of an item: neither a call nor the status changes by it.
        """
        at = time.time()
        self.updated_at = int(at)
        self.feed.publish(piece, at)
        if self.ledger is not None and self.host.journal is not None:
            self.host.journal.keep(self, (piece,))

    async def written(self) -> None:
        """
        Wait until what the next model call is made of is written down: the model, too, hears of nothing before.
        """
        if self.feed.released < self.feed.seq and self.host.journal is not None:
            await self.host.journal.committed()

    async def catch_up(self) -> None:
        """
        Wait for the disk if it is far behind: what is held of a feed stays in memory.
        """
        if self.feed.seq - self.feed.released > HELD_MAX and self.host.journal is not None:
            await self.host.journal.committed()

    def check_open(self) -> None:
        """
        Raise NotFound if the session was deleted, Unavailable if it is left for the next start.
        """
        if self._suspended:
            raise Unavailable("The server is stopping; this session goes on when it is started again.")
        if self.feed.closed:
            raise NotFound(f"There is no session {self.id}; it was deleted.", code="unknown_session")
