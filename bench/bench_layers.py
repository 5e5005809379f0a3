"""
Where a turn's CPU goes: the harness with a profiler in it, 32 sessions at once, by layer.

The profiler costs CPU itself, so that the sum is a little more than a turn costs without it.
"""

import json
from collections import Counter

from bench_processes import FOLDER, Server
from bench_profiled_harness import LAYERS, OTHER
from bench_rig import Plan, Rig, start_harness
from bench_rows import Row
from bench_targets import HarnessTarget
from bench_turns import play_turns

__all__ = ["measure_layers"]

PLACES = 32
PROGRAM = str(FOLDER / "bench_profiled_harness.py")


def measure_layers(rig: Rig, plan: Plan) -> list[Row]:
    """
    CPU of a turn in each layer.
    """
    rows = {name: Row(f"layer: {name}", f"CPU of a turn: {name}", "µs") for name in (*LAYERS, OTHER)}
    whole = Row("layers", "CPU of a turn, 32 sessions at once, profiled", "µs")
    for _ in range(plan.rounds):
        with start_harness(rig.folder, rig.mock, rig.cores.server, plan, program=PROGRAM) as server:
            cost = play(server, plan)
        counts = Counter(json.loads((rig.folder / "layers.json").read_text()))
        whole.harness.append(cost)
        for name, row in rows.items():
            row.harness.append(cost * counts[name] / counts.total())
    return [whole, *rows.values()]


def play(server: Server, plan: Plan) -> float:
    """
    CPU time of one turn, in microseconds.
    """
    turns = plan.turns[PLACES] if PLACES in plan.turns else 2 * PLACES
    _, _, cpu = play_turns(server, HarnessTarget(server.url, plan.arrival), PLACES, turns)
    return 1e6 * cpu / turns
