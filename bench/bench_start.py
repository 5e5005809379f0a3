"""
How long until a server answers, what it takes of memory by then, and what importing the package takes.
"""

import time

from bench_client import Connection, Crowd, Target, make_request
from bench_growth import Player
from bench_processes import Server, run_to_end
from bench_rig import Plan, Rig, start_baseline, start_harness
from bench_rows import Row
from bench_targets import HarnessTarget, ProxyTarget

__all__ = ["measure_import", "measure_start"]

MIB = 1 << 20
CODES = ("pass", "import agent_harness")
PAIRS = 3
"""How often each is run in a round; the fastest counts, since the difference is small."""


def measure_start(rig: Rig, plan: Plan) -> list[Row]:
    """
    From the start of the process to the end of the first answer of ``GET /health``, and on to the end of the first
    turn; what is imported behind the first answer is there by then. Memory is what is resident after that turn.
    """
    core = rig.cores.server
    rows = [
        Row("start", "start to the first answer", "s"),
        Row("first_turn", "start to the end of the first turn", "s"),
        Row("memory_started", "memory after the first turn", "MiB"),
    ]
    with_sdk = [
        Row("start_openai", "start to the first answer, over the openai SDK", "s"),
        Row("first_turn_openai", "start to the end of the first turn, over the openai SDK", "s"),
        Row("memory_started_openai", "memory after the first turn, over the openai SDK", "MiB"),
    ]
    for _ in range(plan.rounds):
        with start_baseline("proxy", f"{rig.mock.url}/v1", core, plan) as server:
            bare = measure_first(server, ProxyTarget(server.url))
        for transport, wanted in (("aiohttp", rows), ("openai", with_sdk)):
            with start_harness(rig.folder, rig.mock, core, plan, transport=transport) as server:
                figures = measure_first(server, HarnessTarget(server.url))
            for row, ours, theirs in zip(wanted, figures, bare, strict=True):
                row.harness.append(ours)
                row.baseline.append(theirs)
    return [*rows, *with_sdk]


def measure_first(server: Server, target: Target) -> tuple[float, float, float]:
    """
    Seconds from the process's start to its first answer and to the end of its first turn; MiB resident then.
    """
    ready = wait_for_health(server)
    with Crowd() as crowd:
        player = Player(target, crowd)
        player.play(player.open())
        return ready, time.perf_counter() - server.started, server.memory() / MIB


def wait_for_health(server: Server) -> float:
    """
    Seconds from the process's start to its first answer.
    """
    with Connection(server.url) as connection:
        connection.ask_json(make_request(server.url, "GET /health"))
    return time.perf_counter() - server.started


def measure_import(rig: Rig, plan: Plan) -> list[Row]:
    """
    ``python -c "import agent_harness"`` without what the bare interpreter takes.
    """
    row = Row("import", "import agent_harness", "ms")
    for _ in range(plan.rounds):
        pairs = [[run_to_end(code, rig.cores.server) for code in CODES] for _ in range(PAIRS)]
        bare, whole = map(min, zip(*pairs, strict=True))
        row.harness.append(1e3 * (whole - bare))
    return [row]
