"""
How much work a turn is from socket to socket, counted and not timed: calls of the package's own functions in the
process that serves. A number here may be lowered at any time; to raise one, say why in the commit. The engine alone is
counted in tests/engine/test_work.py.

The model's answers come in one piece each, so that a count is the same each time, whatever else the machine does.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import pytest

import agent_harness
from agent_harness.testing.strict import Dialect
from tests.load.rig import CALL, DIALECTS, open_site, record, say

PACKAGE = str(Path(agent_harness.__file__).parent)

TURN_CALLS: dict[Dialect, int] = {"responses": 1_850, "chat": 1_900}
"""Most calls of ours in one tool turn: two model calls, 20 pieces of text, one follower, the client's two requests."""

PIECE_CALLS: dict[Dialect, int] = {"responses": 27, "chat": 30}
"""Most calls of ours from the bytes of one more piece of text to the bytes of its event."""

LATE_TURN = 1.1
"""How much more work turn 200 of a session may be than turn 10."""


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """
    Counts the calls of each of the package's functions, by name.
    """
    calls: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            calls[frame.f_code] += 1

    named: Counter[str] = Counter()
    sys.setprofile(note)
    try:
        yield named
    finally:
        sys.setprofile(None)
        for code, count in calls.items():
            named[f"{Path(code.co_filename).name}:{code.co_name}"] += count


def worst(calls: Counter[str], times: int = 1) -> str:
    """
    Who was called most, for whoever has to look.
    """
    return ", ".join(f"{name} {count / times:g}" for name, count in calls.most_common(25))


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_tool_turn_is_no_more_work_than_it_was(dialect: Dialect) -> None:
    turns = [record(dialect, CALL), say(dialect, 20)]
    async with open_site(dialect, *turns * 7) as site:
        await site.play()
        await site.play()
        with counting() as calls:
            for _ in range(5):
                await site.play()
    count = calls.total() / 5
    assert count <= TURN_CALLS[dialect], worst(calls, 5)


async def count_text(dialect: Dialect, pieces: int) -> Counter[str]:
    async with open_site(dialect, say(dialect, 5), say(dialect, pieces)) as site:
        await site.say()
        with counting() as calls:
            await site.say()
    return calls


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_piece_of_text_is_no_more_work_than_it_was(dialect: Dialect) -> None:
    few, many = await count_text(dialect, 20), await count_text(dialect, 220)
    each = (many.total() - few.total()) / 200
    assert each <= PIECE_CALLS[dialect], worst(many - few, 200)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_late_turn_is_as_little_work_as_an_early_one(dialect: Dialect) -> None:
    counts = []
    async with open_site(dialect, *[record(dialect, CALL), say(dialect, 2)] * 201) as site:
        for number in range(1, 202):
            if number in (10, 200):
                with counting() as calls:
                    await site.play()
                counts.append(calls.total())
            else:
                await site.play()
    early, late = counts
    assert late <= LATE_TURN * early, f"turn 10: {early} calls, turn 200: {late}"
