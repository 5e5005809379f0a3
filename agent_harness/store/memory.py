"""
A store that lives as long as its object: for tests of what restarts, and as the shortest store that keeps the contract.
"""

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from agent_harness.protocol.stored import Head
from agent_harness.store.base import (
    Change,
    DropAnswer,
    DropSession,
    DropWaiting,
    PutAgent,
    PutAnswer,
    PutHead,
    PutItem,
    PutOffer,
    PutTurn,
    Reserve,
    StoredSession,
)

__all__ = ["MemoryStore"]


@attrs.define
class _Kept:
    parts: dict[str, Any] = attrs.field(factory=dict)
    items: dict[int, Any] = attrs.field(factory=dict)
    turns: dict[str, Any] = attrs.field(factory=dict)
    waiting: dict[str, Any] = attrs.field(factory=dict)


class MemoryStore:
    """
    Give the same one to the next harness, and it goes on where the last one stood.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, _Kept] = {}
        self._answers: dict[tuple[str, tuple[str, ...]], PutAnswer] = {}
        # Two threads never call at once, but may one after the other.
        self._lock = threading.Lock()

    def load(self) -> Iterable[StoredSession]:
        """
        What it holds.
        """
        with self._lock:
            return [_read(session_id, kept) for session_id, kept in self._sessions.items()]

    def load_answers(self) -> Iterable[PutAnswer]:
        """
        The answers to requests with an idempotency key, oldest first.
        """
        return list(self._answers.values())

    def apply(self, changes: Sequence[Change]) -> None:
        """
        Keep *changes*.
        """
        with self._lock:
            for change in changes:
                self._apply(change)

    def close(self) -> None:
        """
        Nothing.
        """

    def _apply(self, change: Change) -> None:
        if isinstance(change, PutAnswer | DropAnswer):
            self._answers.pop((change.session_id, change.name), None)
            if isinstance(change, PutAnswer):
                self._answers[change.session_id, change.name] = change
            return
        if isinstance(change, DropSession):
            self._sessions.pop(change.session_id, None)
            for key in [key for key in self._answers if key[0] == change.session_id]:
                del self._answers[key]
            return
        kept = self._sessions.setdefault(change.session_id, _Kept())
        match change:
            case PutAgent():
                kept.parts["agent"] = change.agent
            case PutHead():
                kept.parts["head"] = change.head
            case PutOffer():
                kept.parts["offer"] = change.offer
            case Reserve():
                kept.parts["reserved"] = change.up_to
            case PutItem():
                kept.items[change.position] = change.item
            case PutTurn():
                kept.turns[change.turn.id] = change.turn
            case DropWaiting():
                kept.waiting.pop(change.item_id, None)
            case _:
                kept.waiting[change.waiting.message.id] = change.waiting


def _read(session_id: str, kept: _Kept) -> StoredSession:
    return StoredSession(
        id=session_id,
        **{"head": Head(updated_at=0), **kept.parts},
        items=[kept.items[position] for position in sorted(kept.items)],
        turns=list(kept.turns.values()),
        waiting=list(kept.waiting.values()),
    )
