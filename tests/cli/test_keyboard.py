"""
Ctrl-C, and who hears it.
"""

import asyncio
import io
import os
import sys
from collections.abc import Iterator

import pytest

from agent_harness.cli.keyboard import Interrupts, Keyboard, Stopped
from agent_harness.cli.terminal import Screen
from tests.engine.rig import ticks

WAIT_S = 5.0


class Pipe:
    """
    A standard input that is written to.
    """

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def fileno(self) -> int:
        return self.reader

    def isatty(self) -> bool:
        return False


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    pipe = Pipe()
    monkeypatch.setattr(sys, "stdin", pipe)
    yield pipe
    os.close(pipe.reader)
    os.close(pipe.writer)


class Pressed(Interrupts):
    """
    Ctrl-C is pressed by the test.
    """

    def press(self) -> None:
        self._listeners[-1]()


async def test_one_that_was_put_off_is_heard_by_the_next_listener_only() -> None:
    interrupts, heard = Pressed(), []
    with interrupts.heard_by(interrupts.put_off):
        interrupts.press()
    for name in ("next", "later"):
        with interrupts.heard_by(lambda name=name: heard.append(name)):  # type: ignore[misc]
            pass
    assert heard == ["next"]


async def test_ctrl_c_where_a_line_is_waited_for_ends_the_wait(typed: Pipe) -> None:
    interrupts = Pressed()
    reading = asyncio.create_task(Keyboard(Screen(io.StringIO()), interrupts).read_message("> "))
    await ticks(3)
    interrupts.press()
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(Stopped):
            await reading


async def test_ctrl_c_behind_a_line_that_was_read_is_for_what_comes_next(
    typed: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupts, heard = Pressed(), []
    keyboard = Keyboard(Screen(io.StringIO()), interrupts)
    read_line = keyboard._read_line

    async def read_and_press(prompt: str) -> str | None:
        line = await read_line(prompt)
        # Before whoever waits for the line goes on.
        asyncio.get_running_loop().call_soon(interrupts.press)
        return line

    monkeypatch.setattr(keyboard, "_read_line", read_and_press)
    os.write(typed.writer, b"think\n")
    async with asyncio.timeout(WAIT_S):
        said = await keyboard.read_message("> ")
    with interrupts.heard_by(lambda: heard.append(said)):
        pass
    assert heard == ["think"]
