"""
How long until a server answers, and what importing the package takes.
"""

import time

from bench_client import Connection, make_request
from bench_processes import Server, run_to_end
from bench_rig import Plan, Rig, start_baseline, start_harness
from bench_rows import Row

__all__ = ["measure_import", "measure_start"]


CODES = ("pass", "import agent_harness")
PAIRS = 3
"""How often each is run in a round; the fastest counts, since the difference is small."""


def measure_start(rig: Rig, plan: Plan) -> list[Row]:
    """
    From the start of the process to the end of the first answer of ``GET /health``.
    """
    row = Row("start", "start to the first answer", "s")
    for _ in range(plan.rounds):
        with start_baseline("proxy", f"{rig.mock.url}/v1", rig.cores.server, plan) as server:
            row.baseline.append(wait_for_health(server))
        with start_harness(rig.folder, rig.mock, rig.cores.server, plan) as server:
            row.harness.append(wait_for_health(server))
    return [row]


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
