"""
Where a turn's CPU goes: the harness with a profiler in it, 32 sessions at once, each frame of the model by itself, by
layer.

The profiler costs CPU itself, so that the sum is a little more than a turn costs without it. Linux delivers samples
with the ticks of its clock, every 4 ms of CPU time at best (1 ms on some kernels), however often they are asked for: so
a round has turns for about 500 samples, and the share of a layer is right to about two percent of the whole.
"""

import contextlib
import json
import signal
from collections import Counter
from collections.abc import Iterator

from bench_processes import FOLDER, Server
from bench_profiled_harness import LAYERS, OTHER
from bench_rig import ARRIVALS, Plan, Rig, start_harness
from bench_rows import Row
from bench_targets import HarnessTarget
from bench_turns import play_turns

__all__ = ["measure_layers"]

PLACES, ARRIVAL = 32, "paced"
PROGRAM = str(FOLDER / "bench_profiled_harness.py")


def measure_layers(rig: Rig, plan: Plan) -> list[Row]:
    """
    CPU of a turn in each layer; the most expensive one comes first.
    """
    whole = Row("layers", f"CPU of a turn, profiled, {PLACES} sessions at once, {ARRIVALS[ARRIVAL]}", "µs")
    rows = {name: Row(f"layer_{name}", f"of it {title}", "µs") for name, (title, _) in LAYERS.items()}
    rows[OTHER] = Row(f"layer_{OTHER}", "of it anything else", "µs")
    for _ in range(plan.layer_rounds):
        with start_harness(rig.folder, rig.mock, rig.cores.server, plan, program=PROGRAM) as server:
            target = HarnessTarget(server.url, ARRIVAL)
            _, _, cpu = play_turns(server, target, PLACES, plan.layer_turns, sampling(server))
        counts = Counter(json.loads((rig.folder / "layers.json").read_text()))
        cost = 1e6 * cpu / plan.layer_turns
        whole.harness.append(cost)
        for name, row in rows.items():
            row.harness.append(cost * counts[name] / max(1, counts.total()))
    return [whole, *sorted(rows.values(), key=lambda row: row.value, reverse=True)]


@contextlib.contextmanager
def sampling(server: Server) -> Iterator[None]:
    """
    Have *server* take samples meanwhile.
    """
    server.process.send_signal(signal.SIGUSR1)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGUSR2)
