"""
Stores that tests hold up or break.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from agent_harness.store.base import Change
from agent_harness.store.memory import MemoryStore

__all__ = ["GatedStore", "LoopExecutor"]

WAIT_S = 5.0


class GatedStore(MemoryStore):
    """
    Writes when it is let: `shut` holds each write from now on, `open` lets all go on; `broken` fails them. ``lists`` is
    what it was given, list by list.
    """

    def __init__(self) -> None:
        super().__init__()
        self._gate = threading.Event()
        self._gate.set()
        self.broken = False
        self.lists: list[list[Change]] = []

    def shut(self) -> None:
        self._gate.clear()

    def open(self) -> None:
        self._gate.set()

    def apply(self, changes: Sequence[Change]) -> None:
        assert self._gate.wait(WAIT_S), "nobody opened the gate"
        if self.broken:
            raise OSError(28, "No space left on device")
        self.lists.append(list(changes))
        super().apply(changes)


class LoopExecutor(Executor):
    """
    In the place of a store's thread: does what it is handed in the event loop, *turns* turns later. What is written
    together is then the same on every machine, however busy.
    """

    def __init__(self, turns: int) -> None:
        self._turns = turns
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        task = asyncio.get_running_loop().create_task(self._run(future, lambda: function(*args, **options)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return future

    async def _run(self, future: Future[Any], function: Callable[[], Any]) -> None:
        for _ in range(self._turns):
            await asyncio.sleep(0)
        try:
            future.set_result(function())
        except Exception as error:
            future.set_exception(error)
