"""
The contract between the journal and whatever keeps its changes.

A `Store` takes lists of changes and gives back, at the next start, what they made. In words:

1. `Store.apply` keeps all changes of a list, or none: after it has returned they survive the end of the process and of
   the machine; if it raises, or the process dies in it, none of them is there.
2. Changes take effect in the order of the list, and of the calls. A change with the key of an earlier one replaces it.
3. `Store.load` gives back every session that was begun and not dropped, oldest first, its parts equal to what was put:
   hidden parts, empty parts, every character.
4. Turns and waiting messages come back in the order in which each was first put, items by position.
5. `DropSession` takes everything of its session, its answers too, and nothing of any other.
6. Values are kept as they were when they were put; they are frozen, so a store may encode them late, in its thread.
7. All calls block, and come one at a time, from one thread.
8. `Store.load` is called once, first. It raises `ConfigError` if what it finds is not a store's, or in use.
9. `Store.close` keeps everything, and may be called twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import attrs

from agent_harness.protocol.stored import Head, Offer, StoredAgent, StoredItem
from agent_harness.protocol.transcript import Waiting
from agent_harness.protocol.turns import Turn

__all__ = [
    "Change", "DropAnswer", "DropSession", "DropWaiting", "PutAgent", "PutAnswer", "PutHead", "PutItem", "PutOffer",
    "PutTurn", "PutWaiting", "Reserve", "Store", "StoredSession",
]  # fmt: skip

Key = tuple[Any, ...]


@attrs.frozen
class PutAgent:
    """
    A session begins, or its agent or metadata changed.
    """

    session_id: str
    agent: StoredAgent

    @property
    def key(self) -> Key:
        """
        What it replaces.
        """
        return ("agent", self.session_id)


@attrs.frozen
class PutHead:
    """
    Where the session stands now.
    """

    session_id: str
    head: Head

    @property
    def key(self) -> Key:
        """
        What it replaces.
        """
        return ("head", self.session_id)


@attrs.frozen
class PutOffer:
    """
    What the running turn offers.
    """

    session_id: str
    offer: Offer

    @property
    def key(self) -> Key:
        """
        What it replaces.
        """
        return ("offer", self.session_id)


@attrs.frozen
class Reserve:
    """
    Event numbers up to and including ``up_to`` may be given away.
    """

    session_id: str
    up_to: int

    @property
    def key(self) -> Key:
        """
        What it replaces.
        """
        return ("reserve", self.session_id)


@attrs.frozen
class PutItem:
    """
    The item at a position (from 0) of the transcript.
    """

    session_id: str
    position: int
    item: StoredItem

    @property
    def key(self) -> Key:
        """
        What it replaces.
        """
        return ("item", self.session_id, self.position)


@attrs.frozen
class PutTurn:
    """
    A turn's record.
    """

    session_id: str
    turn: Turn

    @property
    def key(self) -> Key:
        """
        What it replaces.
        """
        return ("turn", self.session_id, self.turn.id)


@attrs.frozen
class PutWaiting:
    """
    A message waits.
    """

    session_id: str
    waiting: Waiting

    @property
    def key(self) -> Key:
        """
        What it replaces.
        """
        return ("waiting", self.session_id, self.waiting.message.id)


@attrs.frozen
class DropWaiting:
    """
    A message waits no longer.
    """

    session_id: str
    item_id: str

    @property
    def key(self) -> Key:
        """
        What it replaces.
        """
        return ("waiting", self.session_id, self.item_id)


@attrs.frozen(kw_only=True)
class PutAnswer:
    """
    The answer to a request with an idempotency key. ``session_id`` is "" for answers that belong to no session;
    ``name`` is what the request is known by; ``sent`` is set instead of ``body`` for a message that was streamed.
    """

    session_id: str
    name: tuple[str, ...]
    digest: bytes
    at: float
    status: int = 0
    body: bytes = b""
    sent: Mapping[str, Any] | None = None

    @property
    def key(self) -> Key:
        """
        What it replaces.
        """
        return ("answer", self.session_id, self.name)


@attrs.frozen
class DropAnswer:
    """
    An answer is kept no longer.
    """

    session_id: str
    name: tuple[str, ...]

    @property
    def key(self) -> Key:
        """
        What it replaces.
        """
        return ("answer", self.session_id, self.name)


@attrs.frozen
class DropSession:
    """
    A session is gone.
    """

    session_id: str

    @property
    def key(self) -> Key:
        """
        What it replaces.
        """
        return ("drop", self.session_id)


Change = (
    PutAgent
    | PutHead
    | PutOffer
    | PutItem
    | PutTurn
    | PutWaiting
    | DropWaiting
    | PutAnswer
    | DropAnswer
    | Reserve
    | DropSession
)


@attrs.define(kw_only=True)
class StoredSession:
    """
    A session as it was kept. ``reserved`` is the newest event number that may have been given away.
    """

    id: str
    agent: StoredAgent
    head: Head
    offer: Offer = Offer()
    reserved: int = 0
    items: list[StoredItem] = attrs.field(factory=list)
    turns: list[Turn] = attrs.field(factory=list)
    waiting: list[Waiting] = attrs.field(factory=list)


class Store(Protocol):
    """
    Something that keeps changes. The contract is this module's docstring.
    """

    def load(self) -> Iterable[StoredSession]:
        """
        Open it, and give back what it holds.

        Raises:
            ConfigError: it cannot be used; the message says why and what to do.
        """
        ...

    def load_answers(self) -> Iterable[PutAnswer]:
        """
        The answers to requests with an idempotency key, oldest first.
        """
        ...

    def apply(self, changes: Sequence[Change]) -> None:
        """
        Keep *changes*, all or none, before returning.
        """
        ...

    def close(self) -> None:
        """
        Let go of it.
        """
        ...
