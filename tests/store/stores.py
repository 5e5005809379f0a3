"""
Stores that tests hold up or break.
"""

import threading
from collections.abc import Sequence

from agent_harness.store.base import Change
from agent_harness.store.memory import MemoryStore

__all__ = ["GatedStore"]

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
