"""
What a session is and what can be seen of it, and the one way in which a change of it is finished.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Literal

from agent_harness.engine.feed import Feed, Follower
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

HELD_MAX = 500
"""How many events of a session may be held before its turn waits for the disk."""


class SessionState:
    """
    One agent, one transcript, one feed, at most one running turn. `agent_harness.engine.session.Session`
    adds what changes it.
    """

    __slots__ = (
        "__weakref__",
        "_pending", "_suspended", "_task", "_told", "agent", "cache", "created_at", "feed", "host", "id", "last_error",
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
        self.cache = base.RequestCache()
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
        if self.response_id is not None:
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
        return self.transcript.count >= limits.items or self.transcript.size >= limits.session_bytes

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
        return said.SessionStatus(
            status=self.status,
            response_id=response_id or self.response_id,
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
        if self.feed.followers >= self.host.limits.followers:
            message = f"{self.feed.followers} follow this session already, the most that may."
            raise RateLimited(message, code="too_many_followers")
        if sent is not None:
            opening = self.status_event(item_id=sent.item_id, response_id=sent.response_id)
            return self.feed.follow(opening, [], str(sent.seq), seq=sent.seq)
        open_calls = [self._announce_again(call_id) for call_id in self.transcript.open_calls]
        return self.feed.follow(self.status_event(), open_calls, after)

    def _announce_again(self, call_id: str) -> said.OutputItemDone:
        item, call = self.transcript.call_item(call_id), self.transcript.calls[call_id]
        return said.OutputItemDone(item.response_id or "", call.output_index, item, replayed=True)

    # The one writer.

    def keep(self, events: Sequence[said.Event]) -> None:
        """
        Finish a change that the transcript has just made: futures, numbers, followers, and the status if it changed;
        where sessions are written down, have it written.
        """
        self.updated_at = int(time.time())
        ended = calls = False
        for event in events:
            if isinstance(event, said.OutputItemDone) and isinstance(event.item, FunctionCall):
                calls = True
                if event.item.status == "action_required":
                    self._pending.open(event.item.call_id)
                else:
                    self._pending.resolve(event.item.call_id)
            ended = ended or isinstance(event, said.TERMINAL_EVENTS)
        for event in events:
            self.feed.publish(event)
        now = (self.status, self.response_id)
        if ended or now != self._told:
            self._told = now
            self.feed.publish(self.status_event())
        if ended or calls:
            self.host.watch.kept(self, events)
        if self.ledger is not None and self.host.journal is not None:
            self.host.journal.keep(self, events)

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
