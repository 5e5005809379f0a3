"""
What an adapter makes of a model's stream, and what that costs: CPU for one event of the upstream's, beside the bare
aiohttp client that reads the same bytes.

By dialect, by transport and by how the events come. All of it runs in one process (`bench_adapter_reader`), where the
two read the same stream in turn.
"""

import json
from itertools import product

from bench_processes import FOLDER, ask
from bench_rig import ARRIVALS, Plan, Rig
from bench_rows import Row

__all__ = ["FIGURES", "measure_adapters"]

FIGURES = list(product(("responses", "chat"), ("aiohttp", "openai"), ("burst", "paced")))
"""Dialect, transport and arrival of what is measured."""

PROGRAM = str(FOLDER / "bench_adapter_reader.py")


def measure_adapters(rig: Rig, plan: Plan) -> list[Row]:
    """
    CPU time for an event in each adapter.
    """
    told = ask(PROGRAM, rig.mock.url, str(plan.rounds), str(plan.streams), core=rig.cores.server)
    rows: list[Row] = []
    for (dialect, transport, arrival), (bare, adapted) in zip(FIGURES, json.loads(told), strict=True):
        title = f"CPU of an upstream event, {dialect} over {transport}, {ARRIVALS[arrival]}"
        name = f"adapter_{dialect}_{transport}_{arrival}"
        rows.append(Row(name, title, "µs", adapted, bare, "bare aiohttp client"))
    return rows
