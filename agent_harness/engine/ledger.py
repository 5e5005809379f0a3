"""
What has to be written down of a session when something was kept: read off the events and the transcript.
"""

import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from agent_harness.protocol import events as said
from agent_harness.protocol.items import FunctionCallOutput
from agent_harness.protocol.stored import Head, Offer, StoredAgent, StoredItem
from agent_harness.protocol.turns import Turn
from agent_harness.store.base import (
    Change,
    DropSession,
    DropWaiting,
    PutAgent,
    PutHead,
    PutItem,
    PutOffer,
    PutTurn,
    PutWaiting,
    Reserve,
)

if TYPE_CHECKING:
    from agent_harness.engine.state import SessionState

__all__ = ["RESERVED", "Ledger"]

RESERVED = 1_000
"""How many event numbers are reserved at once."""

_TOLD = frozenset[type](
    (
        said.SessionItem,
        said.OutputItemAdded,
        said.OutputItemDone,
        said.SessionUpdated,
        said.SessionDeleted,
        said.ResponseCreated,
        *said.TERMINAL_EVENTS,
    )
)
"""Events that tell of something that is stored. Pieces of text are not: they come again, or are part of an item."""


class Ledger:
    """
    One session's: what of it is stored already. For a new one nothing is; for one that was stored, the event numbers
    that are *reserved*, the count of items that *entered*, the ids of those *waiting*, and the *offer*.
    """

    __slots__ = ("_entered", "_head", "_offer", "_running", "_session", "_waiting", "reserved")

    def __init__(
        self,
        session: "SessionState",
        *,
        reserved: int = 0,
        entered: int = 0,
        waiting: Iterable[str] = (),
        offer: Offer | None = None,
    ) -> None:
        # Not held: the session holds its ledger, and goes by itself when it is deleted.
        self._session: SessionState = weakref.proxy(session)
        self._entered = entered
        self._waiting = set(waiting)
        self._head: Head | None = None
        self._offer = offer or Offer()
        self._running: Turn | None = None
        self.reserved = reserved

    def begin(self) -> list[Change]:
        """
        A new session, whole.
        """
        return [self._agent(), *self._items(set()), *self._rest(), *self.reserve()]

    def changes(self, events: Sequence[said.Event]) -> list[Change]:
        """
        What *events*, which were just published, changed.
        """
        if _TOLD.isdisjoint(map(type, events)):
            return self.reserve()
        session, transcript = self._session, self._session.transcript
        found: list[Change] = []
        positions: set[int] = set()
        for event in events:
            match event:
                case said.SessionItem(item=item) if item.status == "queued":
                    found += self._wait(item.id)
                case said.SessionItem(item=item) if item.id in self._waiting:
                    self._waiting.discard(item.id)
                    found.append(DropWaiting(session.id, item.id))
                case said.OutputItemDone(item=item) if not isinstance(item, FunctionCallOutput):
                    positions.add(transcript.find_entry(item))
                case said.SessionUpdated():
                    found.append(self._agent())
                case said.SessionDeleted():
                    return [DropSession(session.id)]
                case said.ResponseCreated(response=turn) | said.ResponseCompleted(response=turn):
                    found.append(PutTurn(session.id, transcript.turns[turn.id]))
                case said.ResponseFailed(response=turn) | said.ResponseIncomplete(response=turn):
                    found.append(PutTurn(session.id, transcript.turns[turn.id]))
                case said.ResponseCancelled(response=turn):
                    found.append(PutTurn(session.id, transcript.turns[turn.id]))
        return [*found, *self._items(positions), *self._rest(), *self.reserve()]

    def reserve(self) -> list[Change]:
        """
        More event numbers, if the newest is not reserved.
        """
        if self._session.feed.seq <= self.reserved:
            return []
        self.reserved = self._session.feed.seq + RESERVED
        return [Reserve(self._session.id, self.reserved)]

    def _agent(self) -> Change:
        session = self._session
        agent = StoredAgent(agent=session.agent, metadata=dict(session.metadata), created_at=session.created_at)
        return PutAgent(session.id, agent)

    def _wait(self, item_id: str) -> list[Change]:
        session, transcript = self._session, self._session.transcript
        waiting = transcript.waiting[item_id]
        self._waiting.add(item_id)
        found: list[Change] = [PutWaiting(session.id, waiting)]
        if not waiting.steer and waiting.message.response_id is not None:
            found.append(PutTurn(session.id, transcript.turns[waiting.message.response_id]))
        return found

    def _items(self, positions: set[int]) -> list[Change]:
        """
        The items at *positions*, and those that were never stored.
        """
        transcript = self._session.transcript
        positions.update(range(self._entered, transcript.entered))
        self._entered = transcript.entered
        return [self._item(position) for position in sorted(positions)]

    def _item(self, position: int) -> Change:
        item, call = self._session.transcript.entry(position)
        stored = StoredItem(
            item=item, output_index=call.output_index, closed_by=call.closed_by, expires_at=call.expires_at
        )
        return PutItem(self._session.id, position, stored)

    def _rest(self) -> list[Change]:
        """
        The running turn's record and offer, and where the session stands, as far as they changed.
        """
        session, transcript = self._session, self._session.transcript
        found: list[Change] = []
        running = None if transcript.current is None else transcript.running
        if running is not None and running is not self._running:
            # Counting calls and tokens publishes nothing.
            found.append(PutTurn(session.id, running))
        self._running = running
        if (transcript.tools, transcript.tool_choice) != (self._offer.tools, self._offer.tool_choice):
            self._offer = Offer(tools=transcript.tools, tool_choice=transcript.tool_choice)
            found.append(PutOffer(session.id, self._offer))
        head = Head(
            current=transcript.current,
            next_index=transcript.next_index,
            answered=transcript.answered,
            usage=session.usage,
            last_error=session.last_error,
            updated_at=session.updated_at,
        )
        if head != self._head:
            self._head = head
            found.append(PutHead(session.id, head))
        return found
