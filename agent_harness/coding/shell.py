"""
One command in a shell: bounded in time and output, and ended with all that it started.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable
from typing import IO

__all__ = ["OUTPUT_HEAD", "OUTPUT_TAIL", "run_command"]

OUTPUT_HEAD = 15_000
OUTPUT_TAIL = 15_000
"""How much of the output is kept, from its beginning and from its end, in bytes."""

GRACE_S = 1.0
"""How long a command may take to end when it is told to, before it is killed, in seconds."""

QUIET = dict(pair.split("=") for pair in ["TERM=dumb", "PAGER=cat", "GIT_PAGER=cat", "GIT_TERMINAL_PROMPT=0"])
"""Set for the command: nobody is there to page for, or to ask."""


class _Output(asyncio.Protocol):
    """
    Keeps the beginning and the end of what comes; ``ended`` is set when nobody can write any more.
    """

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self._head, self._tail, self._lost = bytearray(), bytearray(), 0

    def data_received(self, data: bytes) -> None:
        room = OUTPUT_HEAD - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        excess = len(self._tail) - OUTPUT_TAIL
        if excess > 0:
            del self._tail[:excess]
            self._lost += excess

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set()

    def text(self) -> str:
        """
        What was kept, and how much was not.
        """
        if not self._lost:
            return (self._head + self._tail).decode(errors="replace")
        head, tail = self._head.decode(errors="replace"), self._tail.decode(errors="replace")
        return f"{head}\n[{self._lost:,} bytes left out]\n{tail}"


async def run_command(command: str, folder: str, timeout_s: float) -> str:
    """
    Run *command* with bash in *folder*; its output (both streams in one) and how it ended. It has no input. Whatever it
    leaves in the background is killed with it; so is all of it if this is cancelled.

    Raises:
        OSError: bash cannot be started.
    """
    output = _Output()
    source, writing = _open_pipe()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: output, source)
    try:
        process = await _start(command, folder, writing)
        return _tell(output, await _wait(process, output, timeout_s), timeout_s)
    finally:
        transport.close()


def _open_pipe() -> tuple[IO[bytes], int]:
    """
    Both ends of a pipe: the one that is read as a file, which the transport then owns.
    """
    reading, writing = os.pipe()
    return open(reading, "rb", 0), writing


async def _start(command: str, folder: str, writing: int) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            "bash", "-c", command,
            cwd=folder, env={**os.environ, **QUIET}, start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stdout=writing, stderr=writing,
        )  # fmt: skip
    except FileNotFoundError:
        raise FileNotFoundError("bash is not installed, or the root folder is gone") from None
    finally:
        os.close(writing)


async def _wait(process: asyncio.subprocess.Process, output: _Output, timeout_s: float) -> int | None:
    """
    The exit code; None if it took too long. Afterwards nothing of it runs.
    """
    try:
        async with asyncio.timeout(timeout_s):
            code = await process.wait()
        await _within(GRACE_S, output.ended.wait())
        return code
    except TimeoutError:
        return None
    finally:
        try:
            if process.returncode is None:
                _signal_group(process, signal.SIGTERM)
                await _within(GRACE_S, process.wait())
        finally:
            _signal_group(process, signal.SIGKILL)
        await _within(GRACE_S, process.wait())
        await _within(GRACE_S, output.ended.wait())


async def _within(seconds: float, awaited: Awaitable[object]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await awaited


def _signal_group(process: asyncio.subprocess.Process, number: int) -> None:
    # Of a process that leads a session of its own, the group has the same number.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _tell(output: _Output, code: int | None, timeout_s: float) -> str:
    if code is None:
        ending = f"[ended: it took over {timeout_s:g} s]"
    elif code < 0:
        ending = f"[ended by signal {-code}]"
    else:
        ending = f"[exit code {code}]"
    text = output.text()
    if code == 0:
        return text or "[no output]"
    return f"{text}{'' if text.endswith(chr(10)) or not text else chr(10)}{ending}"
