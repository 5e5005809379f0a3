"""
What a server process does for its memory.
"""

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Iterator

import pytest

from agent_harness import memory


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """
    Python's collector is as it was, when a test is over.
    """
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)
    gc.collect()


class Ring:
    """
    Holds itself, so that only the collector can free it.
    """

    def __init__(self) -> None:
        self.me = self


def make_new(count: int) -> list[list[int]]:
    return [[] for _ in range(count)]


def look(number: int) -> list[int]:
    """
    The generations that are looked at in that turn.
    """
    looks: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            looks.append(info["generation"])

    gc.callbacks.append(note)
    try:
        memory.collect(number)
    finally:
        gc.callbacks.remove(note)
    return looks


def test_what_is_new_is_looked_at_each_time_and_all_of_it_less_often() -> None:
    memory.spare_collections()
    new: list[list[int]] = []
    looks: dict[int, list[int]] = {}
    for number in range(1, 2 * memory.LOOK_AT_ALL + 1):
        new += make_new(2 * memory.NEW)
        looks[number] = look(number)
    at_all = [number for number, generations in looks.items() if generations == [2]]
    assert at_all == [memory.LOOK_AT_ALL, 2 * memory.LOOK_AT_ALL]
    assert all(generations == [0] for number, generations in looks.items() if number not in at_all)


def test_a_cycle_that_was_old_when_it_became_garbage_is_found() -> None:
    """
    A connection that was open at several looks and is closed then leaves such cycles.
    """
    memory.spare_collections()
    rings = [Ring() for _ in range(2 * memory.NEW)]
    left = weakref.WeakSet(rings)
    assert look(memory.LOOK_AT_ALL) == [2] and len(left) == len(rings)
    rings.clear()
    new = make_new(2 * memory.NEW)
    assert look(1) == [0] and len(left) == 2 * memory.NEW
    assert look(memory.LOOK_AT_ALL) == [2] and len(left) == 0
    assert len(new) == 2 * memory.NEW


def test_nothing_is_done_where_hardly_anything_is_new() -> None:
    memory.spare_collections()
    every = memory.LOOK_AT_ALL
    new = make_new(2 * memory.NEW)
    assert look(every) == [2]
    new += make_new(10)
    assert not memory.collect(1) and not memory.collect(every), "no memory is given back then, either"
    assert [look(1), look(every)] == [[], []]
    new += make_new(2 * memory.NEW)
    assert look(1) == [0]
    assert look(every) == [2], "some of it was looked at, but not among all"
    assert look(every) == []


async def test_it_goes_on_until_cancelled_and_survives_an_import_that_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory, "CARE_S", 0.001)
    monkeypatch.setattr(memory, "NEW", 0)

    def fail() -> None:
        raise ImportError("no such library")

    caring = asyncio.get_running_loop().create_task(memory.care_for_memory(fail))
    for _ in range(2):
        gone = asyncio.Event()
        left = weakref.ref(Ring(), lambda _, gone=gone: gone.set())
        async with asyncio.timeout(10):
            await gone.wait()
        assert left() is None
    assert gc.get_threshold() == memory.COLLECT
    assert "no such library" in caplog.text
    caring.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await caring
