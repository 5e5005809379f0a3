"""
Load with faults, for as long as you like: nothing gets lost, nothing gets stuck, memory stays flat.

A real server (``agent-harness serve``), a model server in a process of its own that is strict and fails on demand, and
clients in this process, which hold the server to its word; `soak_client` says how::

    scripts/soak --minutes 10 --sessions 200 --seed 1

Exits with 1 on any loss, anything stuck, any request that STRICT refuses, any 500, any answer that the contract does
not lead to, any ERROR in the server's log, and if memory grows by 5 % or more from minute 2 to the end (in runs of 4
minutes and more; each figure is the median of a minute, the first from 1:30 to 2:30). Ctrl-C ends the run early, with
its figures.
"""

import argparse
import asyncio
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
from soak_client import Client, Doors
from soak_follower import Tally

REPORT_S = 30.0
GROWTH_MAX = 0.05
WARM_S = 150.0
JUDGED_S = 240.0
"""Shortest run in which memory is judged."""

WINDOW_S = 60.0
"""Over how much memory is looked at: it goes up and down as garbage comes and is collected."""

STOP_S = 20.0
"""Longest time the server may take to stop."""

SHOWN = 10

SETTINGS = """
[server]
port = 0

[limits]
ping_s = 2.0
grace_s = 2.0
replay_bytes = 4000000

[providers.soak]
api = "responses"
base_url = "http://127.0.0.1:{port}/v1"
model = "soak"
needs_key = false
idle_timeout_s = 5.0
max_retries = 2
retry_base_s = 0.05
retry_cap_s = 0.3
"""

BAD_LOG = re.compile(r"^(?:\S+ )?(?:ERROR|CRITICAL)\b|\"level\": ?\"(?:error|critical)\"|^Traceback|never retrieved")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Processes:
    """
    The two servers. Both are out of Ctrl-C's reach: this process ends them.
    """

    def __init__(self, upstream: "subprocess.Popen[str]", server: "subprocess.Popen[str]", log: Path) -> None:
        self.upstream, self.server, self.log = upstream, server, log
        self.upstream_url = self.server_url = ""

    def read_memory(self) -> float:
        """
        Resident memory of the server, in MB; 0 where it cannot be told.
        """
        try:
            status = Path(f"/proc/{self.server.pid}/status").read_text()
        except OSError:
            return 0.0
        found = re.search(r"VmRSS:\s+(\d+)", status)
        return int(found[1]) / 1000 if found else 0.0

    def stop_server(self) -> str:
        """
        End the server as a supervisor would; what is wrong with how it ended, or "".
        """
        self.server.terminate()
        try:
            code = self.server.wait(STOP_S)
        except subprocess.TimeoutExpired:
            return f"the server did not stop within {STOP_S:g} s"
        return f"the server exited with {code}" if code else ""

    def read_bad_lines(self) -> list[str]:
        """
        The lines of the server's log that tell of an error.
        """
        return [line for line in self.log.read_text(errors="replace").splitlines() if BAD_LOG.search(line)]


@contextmanager
def start_processes(folder: Path) -> Iterator[Processes]:
    """
    Start both servers; they are gone at the end, whatever happens.
    """
    log = folder / "server.log"
    upstream_command = [sys.executable, str(Path(__file__).parent / "soak_upstream.py")]
    settings = folder / "soak.toml"
    server_command = [sys.executable, "-P", "-m", "agent_harness", "serve", "--config", str(settings)]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True, "start_new_session": True}
    with log.open("w") as errors, subprocess.Popen(upstream_command, **options) as upstream:
        try:
            assert upstream.stdout is not None
            port = upstream.stdout.readline().strip()
            settings.write_text(SETTINGS.format(port=port))
            with subprocess.Popen(server_command, stderr=errors, cwd=folder, **options) as server:
                try:
                    assert server.stdout is not None
                    found = re.search(r"http://\S+", server.stdout.readline())
                    if found is None:
                        raise SystemExit(f"the server did not start: {log.read_text()}")
                    processes = Processes(upstream, server, log)
                    processes.upstream_url, processes.server_url = f"http://127.0.0.1:{port}", found[0]
                    yield processes
                finally:
                    server.kill()
        finally:
            upstream.kill()


class Soak:
    """
    One run.
    """

    def __init__(self, options: argparse.Namespace, processes: Processes) -> None:
        self.options, self.processes = options, processes
        self.tally = Tally()
        self.stop = asyncio.Event()
        self.began = time.monotonic()
        self.memory: list[tuple[float, float]] = [(0.0, processes.read_memory())]
        self.stats: dict[str, Any] = {"counts": {}, "refusals": []}
        self.is_early = False
        self._made = 0

    async def run(self) -> None:
        """
        Keep all sessions going until the time is up, then let each come to its end.
        """
        minutes: float = self.options.minutes
        small = aiohttp.TCPConnector(limit=0, socket_factory=make_small_socket)
        timeout = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http,
            aiohttp.ClientSession(connector=small, timeout=timeout, read_bufsize=4096) as slow,
        ):
            doors = Doors(http, slow, self.processes.server_url, self.processes.upstream_url)
            places = [asyncio.create_task(self._keep_busy(doors, place)) for place in range(self.options.sessions)]
            reporter = asyncio.create_task(self._report(http))
            try:
                async with asyncio.timeout(minutes * 60):
                    await self.stop.wait()
                self.is_early = True
            except TimeoutError:
                self.stop.set()
            say("the time is up: every session comes to its end")
            _, left = await asyncio.wait(places, timeout=120)
            self.tally.stuck += [f"{place.get_name()} did not end" for place in left]
            reporter.cancel()
            for task in (reporter, *left):
                task.cancel()
            await asyncio.gather(reporter, *places, return_exceptions=True)
            await self._ask_servers(http)

    async def _keep_busy(self, doors: Doors, place: int) -> None:
        """
        One session after the other, all of one age when they are deleted. The first ones are younger, so that at any
        time sessions of all ages are there in equal numbers: what they hold together would go up and down otherwise.
        """
        life = self.options.life
        until = time.monotonic() + life * (1 + place) / self.options.sessions
        rng = random.Random(f"{self.options.seed} {place}")
        await asyncio.sleep(rng.random() * 2 * self.options.think)
        while not self.stop.is_set():
            self._made += 1
            client = Client(doors, self.tally, random.Random(f"{self.options.seed} {place} {self._made}"), place)
            await client.live(until, self.options.think, self.stop)
            while until <= time.monotonic():
                until += life

    async def _report(self, http: aiohttp.ClientSession) -> None:
        told = 0.0
        while True:
            await asyncio.sleep(1.0)
            past = time.monotonic() - self.began
            if not self.stop.is_set():
                self.memory.append((past, self.processes.read_memory()))
            if past - told >= REPORT_S:
                told = past
                async with http.get(f"{self.processes.upstream_url}/soak/stats") as response:
                    self.stats = await response.json()
                say(self.describe(past))

    async def _ask_servers(self, http: aiohttp.ClientSession) -> None:
        async with http.get(f"{self.processes.upstream_url}/soak/stats") as response:
            self.stats = await response.json()
        async with http.get(f"{self.processes.server_url}/health") as response:
            health = await response.json()
        if health["sessions"] or health["running_turns"]:
            self.tally.stuck.append(f"after the last session was deleted: {health}")

    def describe(self, past: float) -> str:
        """
        The figures in one line.
        """
        counts, tally = self.tally.counts, self.tally
        return (
            f"[{past:5.0f} s] sessions {counts['sessions']}  turns {counts['turns']}  results {counts['results']}  "
            f"losses {len(tally.losses)}  stuck {len(tally.stuck)}  "
            f"refused by STRICT {self.stats['counts'].get('refused', 0)}  other faults {len(tally.faults)}  "
            f"resident {self.memory[-1][1]:.1f} MB"
        )

    def measure(self, at: float) -> float:
        """
        The median of what was resident in the `WINDOW_S` seconds up to *at*.
        """
        return median(memory for when, memory in self.memory if at - WINDOW_S <= when <= at)

    def judge(self, past: float, ending: str) -> bool:
        """
        Print the figures and all that went wrong; whether nothing did.
        """
        say(self.describe(past))
        say(f"turns by outcome: {show(self.tally.outcomes)}")
        say(f"clients: {show(self.tally.counts)}")
        say(f"upstream: {show(self.stats['counts'])}")
        wrong = {
            "lost": self.tally.losses,
            "stuck": self.tally.stuck,
            "refused by STRICT": self.stats["refusals"],
            "wrong answers": self.tally.faults,
            "errors in the server's log": self.processes.read_bad_lines(),
            "end of the server": [ending] if ending else [],
        }
        end = self.memory[-1][0]
        line = f"resident memory: start {self.memory[0][1]:.1f} MB"
        if end >= WARM_S:
            warm, last = self.measure(WARM_S), self.measure(end)
            growth = last / warm - 1 if warm else 0.0
            line += f", minute 2 {warm:.1f} MB, end {last:.1f} MB ({growth:+.1%})"
            if end >= JUDGED_S - 2 and growth >= GROWTH_MAX:
                wrong["memory"] = [f"grew by {growth:.1%} from minute 2 to the end"]
        say(line)
        for what, told in wrong.items():
            for one in told[:SHOWN]:
                say(f"{what.upper()}: {one}")
            if len(told) > SHOWN:
                say(f"{what.upper()}: {len(told)} in all")
        return not any(wrong.values())


def show(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def make_small_socket(address: Any) -> socket.socket:
    """
    A socket that holds little, so that a slow reader is felt at the other end.
    """
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    return made


async def run(options: argparse.Namespace, processes: Processes) -> int:
    """
    Run, stop the server, judge; the exit code.
    """
    soak = Soak(options, processes)
    loop = asyncio.get_running_loop()

    def end() -> None:
        # A second signal ends the process at once; `start_processes` still ends the servers.
        loop.remove_signal_handler(signal.SIGINT)
        soak.stop.set()

    loop.add_signal_handler(signal.SIGINT, end)
    await soak.run()
    past = time.monotonic() - soak.began
    ending = await asyncio.to_thread(processes.stop_server)
    if not soak.judge(past, ending):
        return 1
    return 130 if soak.is_early else 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--sessions", type=int, default=200, help="sessions at once")
    parser.add_argument("--seed", default="1", help="what the clients do follows from it")
    parser.add_argument("--life", type=float, default=45.0, help="seconds until a session is deleted, about 20 turns")
    parser.add_argument("--think", type=float, default=2.0, help="seconds between two turns of a session, on average")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="agent-harness-soak-") as folder,
        start_processes(Path(folder)) as processes,
    ):
        code = asyncio.run(run(options, processes))
    sys.exit(code)


if __name__ == "__main__":
    main()
