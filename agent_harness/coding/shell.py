"""
One command in a shell: bounded in time and output, and ended with all that it started.

What it started is its process group, and on Linux also what left the group (``setsid``, daemons): it is known by a
variable of its environment. A process that runs with another environment, or wrote over its own, is not found.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import time
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

MARK = "AGENT_HARNESS_COMMAND"
"""The variable by which the processes of a command are known: its mark, behind those of the commands it runs in."""

END_WAIT_S = 1.0
"""How long the end of what left the group is waited for, in seconds: it may go on starting more meanwhile."""


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
    leaves in the background is killed with it (see above what is found); so is all of it if this is cancelled.

    Raises:
        OSError: bash cannot be started.
    """
    output, mark = _Output(), secrets.token_hex(16)
    source, writing = _open_pipe()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: output, source)
    try:
        process = await _start(command, folder, writing, mark)
        return _tell(output, await _wait(process, output, timeout_s, mark), timeout_s)
    finally:
        transport.close()


def _open_pipe() -> tuple[IO[bytes], int]:
    """
    Both ends of a pipe: the one that is read as a file, which the transport then owns.
    """
    reading, writing = os.pipe()
    return open(reading, "rb", 0), writing


async def _start(command: str, folder: str, writing: int, mark: str) -> asyncio.subprocess.Process:
    marks = f"{os.environ[MARK]} {mark}" if MARK in os.environ else mark
    try:
        return await asyncio.create_subprocess_exec(
            "bash", "-c", command,
            cwd=folder, env={**os.environ, **QUIET, MARK: marks}, start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stdout=writing, stderr=writing,
        )  # fmt: skip
    except FileNotFoundError:
        raise FileNotFoundError("bash is not installed, or the root folder is gone") from None
    finally:
        os.close(writing)


async def _wait(process: asyncio.subprocess.Process, output: _Output, timeout_s: float, mark: str) -> int | None:
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
            _kill_marked(mark)
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


def _kill_marked(mark: str) -> None:
    """
    Kill what left the group, until nothing of it is found. It does not wait for anything else, so that no cancellation
    can end it halfway.
    """
    if sys.platform != "linux":
        return
    until = time.monotonic() + END_WAIT_S
    while _kill_found(mark.encode()) and time.monotonic() < until:
        time.sleep(0.002)


def _kill_found(mark: bytes) -> bool:
    """
    One look at all processes of this user; whether there was one to kill.
    """
    found = False
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        # Held before it is looked at: a number may be another's in a moment.
        with contextlib.suppress(OSError):
            held = os.pidfd_open(int(name))
            try:
                if mark in _read_environment(name):
                    signal.pidfd_send_signal(held, signal.SIGKILL)
                    found = True
            finally:
                os.close(held)
    return found


def _read_environment(number: str) -> bytes:
    with open(f"/proc/{number}/environ", "rb") as file:
        return file.read()


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
