"""
Group commit: what sessions keep is written down by one thread, many keeps at a time, and told only then.

A keep stays one step in memory. Its events are numbered at once, but released to followers only when the commit that
holds what they tell has returned; answers to requests wait for the same (`Journal.committed`). So whatever anybody has
heard is on the disk, whenever the process dies. The next model call of a turn waits for it, too; pieces of an answer do
not.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from agent_harness.engine.ledger import Ledger
from agent_harness.errors import InternalError
from agent_harness.protocol.events import Event
from agent_harness.store.base import Change, PutAnswer, Store, StoredSession

if TYPE_CHECKING:
    from agent_harness.engine.feed import Feed
    from agent_harness.engine.state import SessionState

__all__ = ["Journal"]

log = logging.getLogger(__name__)

T = TypeVar("T")


@attrs.define(eq=False)
class _Batch:
    """
    What is written together: changes by key, of which the last stands at the place of the first, and up to which number
    each feed may be released afterwards.
    """

    changes: dict[Any, Change] = attrs.field(factory=dict)
    feeds: dict["Feed", int] = attrs.field(factory=dict)
    written: asyncio.Future[None] = attrs.field(factory=lambda: asyncio.get_running_loop().create_future())


class Journal:
    """
    Args:
        store: where changes go; used by one thread.
        on_failure: called once, when it could not be written. Nothing is written, released or answered afterwards.
    """

    def __init__(self, store: Store, on_failure: Callable[[], None]) -> None:
        self.failed = self._closed = False
        self._store = store
        self._on_failure = on_failure
        self._thread = ThreadPoolExecutor(1, "agent-harness-store")
        self._batch: _Batch | None = None
        self._writing: _Batch | None = None
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Journal of {self._store!r}{' failed' if self.failed else ''}>"

    async def load(self) -> tuple[list[StoredSession], list[PutAnswer]]:
        """
        What the store holds: sessions and kept answers.

        Raises:
            ConfigError: it cannot be used.
        """
        return await self._call(lambda: (list(self._store.load()), list(self._store.load_answers())))

    def begin(self, session: "SessionState") -> None:
        """
        Write down a new session.
        """
        session.ledger = Ledger(session)
        session.feed.held = True
        self.add(session.ledger.begin())

    def keep(self, session: "SessionState", events: Sequence[Event]) -> None:
        """
        Write down what *events* tell, which were just published, and release them afterwards. Pieces of text are
        released at once, unless something of the session before them is not written yet.
        """
        assert session.ledger is not None
        feed, changes = session.feed, session.ledger.changes(events)
        if changes:
            self.add(changes).feeds[feed] = feed.seq
        elif not any(feed in batch.feeds for batch in (self._batch, self._writing) if batch is not None):
            feed.release(feed.seq)

    def add(self, changes: Iterable[Change]) -> _Batch:
        """
        Have *changes* written in the next commit.
        """
        if self.failed or self._closed:
            return _Batch()
        if self._batch is None:
            self._batch = _Batch()
        self._batch.changes.update((change.key, change) for change in changes)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write_all())
        return self._batch

    async def committed(self) -> None:
        """
        Return when everything that was kept so far is written.

        Raises:
            InternalError: it cannot be.
        """
        newest = self._batch or self._writing
        if newest is not None and not self.failed:
            # Not by itself: a waiter that is cancelled would cancel it for all.
            await asyncio.wait((newest.written,))
        if self.failed:
            raise InternalError("The server cannot write its state any more; its log says why. Nothing is taken.")

    async def aclose(self) -> None:
        """
        Write what is left and let go of the store; idempotent.
        """
        if self._closed:
            return
        if self._task is not None:
            await asyncio.wait((self._task,))
        self._closed = True
        try:
            await self._call(self._store.close)
        finally:
            self._thread.shutdown(wait=False)

    async def _call(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def _write_all(self) -> None:
        try:
            while self._batch is not None:
                self._writing, self._batch = self._batch, None
                changes = list(self._writing.changes.values())
                await self._call(lambda changes=changes: self._store.apply(changes))  # type: ignore[misc]
                done, self._writing = self._writing, None
                self._release(done)
        except Exception as error:
            log.critical("the state cannot be written; nothing is taken any more, restart the server", exc_info=error)
            self._fail()
        finally:
            self._task = None

    def _release(self, done: _Batch) -> None:
        coming = {} if self._batch is None else self._batch.feeds
        for feed, seq in done.feeds.items():
            feed.release(seq if feed in coming else feed.seq)
        done.written.set_result(None)

    def _fail(self) -> None:
        self.failed = True
        for batch in (self._writing, self._batch):
            if batch is not None:
                batch.written.set_result(None)
        self._writing = self._batch = None
        self._on_failure()
