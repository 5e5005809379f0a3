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


def test_a_cycle_that_was_old_when_it_became_garbage_is_found() -> None:
    """
    A connection that was open at one look and is closed before the next leaves such cycles.
    """
    memory.spare_collections()
    rings = [Ring() for _ in range(100)]
    left = weakref.WeakSet(rings)
    new = make_new(2 * memory.NEW)
    assert memory.collect() > 0 and len(left) == 100
    assert gc.get_objects(2), "they are old now"
    rings.clear()
    new += make_new(2 * memory.NEW)
    assert memory.collect() > 0
    assert len(left) == 0


def test_nothing_is_looked_at_where_hardly_anything_is_new() -> None:
    memory.spare_collections()
    new = make_new(2 * memory.NEW)
    memory.collect()
    looks: list[str] = []
    gc.callbacks.append(note := lambda phase, info: looks.append(phase))
    try:
        new += make_new(10)
        assert memory.collect() == 0.0
        assert looks == []
        new += make_new(2 * memory.NEW)
        assert memory.collect() > 0
        assert looks == ["start", "stop"]
    finally:
        gc.callbacks.remove(note)


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


async def test_a_look_that_takes_long_is_followed_by_a_long_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    over = asyncio.Event()

    async def rest(seconds: float) -> None:
        rests.append(seconds)
        if len(rests) == 3:
            over.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(memory, "collect", iter((0.01, 2.0)).__next__)
    monkeypatch.setattr(memory.asyncio, "sleep", rest)
    caring = asyncio.get_running_loop().create_task(memory.care_for_memory(lambda: None))
    async with asyncio.timeout(10):
        await over.wait()
    caring.cancel()
    assert rests == [30.0, 30.0, 400.0]
