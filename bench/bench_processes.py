"""
The processes of the benchmark: each on its core, with its CPU time and its memory to be read.
"""

import contextlib
import os
import re
import selectors
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import attrs
from bench_speak import BenchError

__all__ = ["Cores", "Server", "ask", "find_cores", "run_to_end", "start"]

START_S = 30.0
"""Longest wait for a server's first line, in seconds."""

STOP_S = 15.0
FOLDER = Path(__file__).parent
URL = re.compile(r"http://[^\s;]+")


@attrs.frozen
class Cores:
    """
    Which core each process is pinned to; None where this cannot be done.
    """

    client: int | None = None
    mock: int | None = None
    server: int | None = None

    def describe(self) -> str:
        if self.server is None:
            return "not pinned: this system cannot, or there is one core only"
        return f"client on core {self.client}, mock model on {self.mock}, the server that is measured on {self.server}"


def find_cores() -> Cores:
    """
    The server that is driven has a core to itself (the others idle then); client and mock share one if there are two.
    """
    if not hasattr(os, "sched_setaffinity"):
        return Cores()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return Cores()
    if len(cores) == 2:
        return Cores(cores[0], cores[0], cores[1])
    return Cores(*cores[:3])


def pin(pid: int, core: int | None) -> None:
    if core is not None:
        os.sched_setaffinity(pid, {core})


@attrs.define(eq=False)
class Server:
    """
    A process that listens at ``url``. ``started`` is the time just before its start, by `time.perf_counter`.
    """

    name: str
    process: "subprocess.Popen[str]"
    errors: IO[str]
    started: float
    url: str = ""

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def cpu(self) -> float:
        """
        CPU time of all its threads so far, in seconds.
        """
        if sys.platform != "linux":
            raise BenchError("CPU time of another process can be read on Linux only")
        # What clock_getcpuclockid(3) makes of a process id; to the nanosecond, while /proc counts hundredths.
        return time.clock_gettime((~self.process.pid << 3) | 2)

    def memory(self) -> int:
        """
        Resident memory in bytes.
        """
        try:
            found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())
        except OSError:
            found = None
        if found is None:
            raise BenchError("memory of another process can be read on Linux only")
        return int(found[1]) * 1024

    def check(self, within: float = 0.0) -> None:
        """
        Raises:
            BenchError: it has ended, or ends *within* so many seconds.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(within)
            raise BenchError(self.complain(f"{self.name} ended with {self.process.returncode}"))

    def complain(self, what: str) -> str:
        """
        *what* and the last line of its standard error, in one line.
        """
        self.errors.flush()
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines()
        return f"{what}: {lines[-1]}" if lines else what

    def stop(self) -> None:
        """
        End it, and wait for that.
        """
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.errors.close()


def start(name: str, *arguments: str, core: int | None, cwd: Path | None = None) -> Server:
    """
    Start the Python program that *arguments* name and wait for the line with its address.

    Raises:
        BenchError: there is none; one line says why.
    """
    errors = tempfile.TemporaryFile("w+", prefix="agent-harness-bench-")  # noqa: SIM115 (closed in Server.stop)
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True, cwd=cwd, env=environment(),
    )  # fmt: skip
    server = Server(name, process, errors, started)
    try:
        pin(process.pid, core)
        found = URL.search(read_line(process))
        if found is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
            raise BenchError(server.complain(f"{name} did not start"))
        server.url = found.group()
    except BaseException:
        server.stop()
        raise
    return server


def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        return process.stdout.readline() if selector.select(START_S) else ""


def environment() -> dict[str, str]:
    """
    This process's environment with this checkout first, and without what would tell the harness about keys and model
    servers, or Python to behave otherwise.
    """
    others = ("OPENAI_", "AGENT_HARNESS_", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return {**kept, "PYTHONPATH": str(FOLDER.parent)}


def run_to_end(code: str, core: int | None) -> float:
    """
    How long the interpreter takes for *code*, its start and end included, in seconds.
    """
    started = time.perf_counter()
    ask("-c", code, core=core)
    return time.perf_counter() - started


def ask(*arguments: str, core: int | None) -> str:
    """
    Run the Python program that *arguments* name to its end; what it prints.
    """
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, *arguments], env=environment(), **options) as process:
        pin(process.pid, core)
        told, errors = process.communicate()
    if process.returncode:
        raise BenchError(f"python {' '.join(arguments)} failed: {[*errors.strip().splitlines(), ''][-1]}")
    return told
