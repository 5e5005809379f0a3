"""
What a person types: lines for a coroutine to wait for, and Ctrl-C as something it hears instead of dying of it.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from agent_harness.cli.terminal import Screen, is_plain

if TYPE_CHECKING:
    from agent_harness.cli.editor import LineEditor

__all__ = ["Interrupts", "Keyboard", "Stopped"]


class Stopped(Exception):
    """
    Ctrl-C, where a line was waited for.
    """


class Interrupts:
    """
    Who hears Ctrl-C. While nobody listens, it is forgotten. For the main thread's event loop.
    """

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = [lambda: None]
        self._is_put_off = False

    def __enter__(self) -> "Interrupts":
        # Where loops know no signals, Ctrl-C ends the program.
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: self._listeners[-1]())
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    def put_off(self) -> None:
        """
        Keep one that came too late for who listens, for who listens next.
        """
        self._is_put_off = True

    @contextlib.contextmanager
    def heard_by(self, listener: Callable[[], None]) -> Iterator[None]:
        """
        Let *listener* hear it, and nobody else; one that was put off at once.
        """
        self._listeners.append(listener)
        try:
            if self._is_put_off:
                self._is_put_off = False
                listener()
            yield
        finally:
            self._listeners.remove(listener)


class Keyboard:
    """
    Lines from standard input. Questions are asked on *screen*; what was typed before them does not answer them.
    """

    def __init__(self, screen: Screen, interrupts: Interrupts) -> None:
        self._screen = screen
        self._interrupts = interrupts
        self._fd = sys.stdin.fileno()
        self._typed = bytearray()
        self._ended = False
        self._question: asyncio.Task[str | None] | None = None
        # Two readers of one terminal would take each other's input.
        self._reading = asyncio.Lock()
        self.is_terminal = sys.stdin.isatty()
        fancy = self.is_terminal and not is_plain(sys.stdout)
        self._editor = _make_editor(interrupts) if fancy else None

    async def read_message(self, prompt: str) -> str | None:
        """
        What a person says next; None at the end of input. The prompt is shown on a terminal only.

        Raises:
            Stopped: Ctrl-C.
        """
        await self._drop_question()
        async with self._reading:
            if self._editor is None:
                return await self._read_heard(prompt if self.is_terminal else "")
            try:
                return await self._editor.read(prompt)
            except KeyboardInterrupt:
                raise Stopped from None

    async def ask(self, question: str) -> str:
        """
        The answer to a question; empty at the end of input. Who hears Ctrl-C stays as it is.
        """
        self._question = asyncio.create_task(self._read_answer(question))
        return await self._question or ""

    async def _read_answer(self, question: str) -> str | None:
        async with self._reading:
            if self.is_terminal:
                self._forget()
            return await self._read_line(question)

    async def _drop_question(self) -> None:
        """
        End a question that nobody waits for any more, its call being closed.
        """
        if self._question is not None:
            self._question.cancel()
            await asyncio.wait((self._question,))
            self._question = None

    async def _read_heard(self, prompt: str) -> str | None:
        task = asyncio.ensure_future(self._read_line(prompt))
        stopped = False

        def stop() -> None:
            nonlocal stopped
            if task.done():
                self._interrupts.put_off()
                return
            stopped = True
            task.cancel()

        with self._interrupts.heard_by(stop):
            try:
                return await task
            except asyncio.CancelledError:
                if stopped:
                    self._screen.line()
                    raise Stopped from None
                task.cancel()
                raise

    async def _read_line(self, prompt: str) -> str | None:
        self._screen.write(prompt)
        while b"\n" not in self._typed and not self._ended:
            await self._wait_for_input()
            data = os.read(self._fd, 65536)
            self._typed += data
            self._ended = not data
        if self.is_terminal and not self._ended:
            self._screen.at_start = True  # the terminal has shown the line's end
        line, end, rest = self._typed.partition(b"\n")
        self._typed = rest
        if not end:
            # A terminal can go on after Ctrl-D; anything else stays at its end.
            self._ended = self._ended and not self.is_terminal
            if not line:
                return None
        return line.decode(errors="replace").rstrip("\r")

    async def _wait_for_input(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            loop.add_reader(self._fd, ready.set)
        except (PermissionError, NotImplementedError):
            return  # a file, which is always ready; or a loop that cannot wait for input
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._fd)

    def _forget(self) -> None:
        self._typed.clear()
        try:
            import termios

            termios.tcflush(self._fd, termios.TCIFLUSH)
        except (ImportError, OSError):
            pass


def _make_editor(interrupts: Interrupts) -> "LineEditor | None":
    """
    A `LineEditor`, or None if prompt_toolkit is not installed.
    """
    try:
        from agent_harness.cli.editor import LineEditor
    except ImportError:
        return None
    return LineEditor(interrupts)
