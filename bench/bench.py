"""
The harness beside a bare proxy, a bare broadcaster and its own bounds, in one run.

A mock model that costs next to nothing, the proxy and the harness are processes of their own. One client drives both
servers in turn, round by round; a ratio is harness to baseline in one round, and the table has its minimum, median and
maximum. The server that is driven has a core to itself, the other one idles. Where there are two cores, client and mock
share the other one::

    scripts/bench --quick
    scripts/bench --only latency,throughput --rounds 7 --check

What is measured, and how, is said where it is done:

- ``latency``, ``throughput``: `bench_turns`
- ``followers``: `bench_followers`
- ``growth``: `bench_growth`
- ``start``, ``import``: `bench_start`
- ``memory``: `bench_memory`
- ``adapters``: `bench_adapters`
- ``layers``: `bench_layers`

The bounds stand in `bench_limits`. Processes are read in ways that Linux has.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import attrs
from bench_adapters import measure_adapters
from bench_followers import measure_followers
from bench_growth import measure_growth
from bench_layers import measure_layers
from bench_limits import judge
from bench_machine import describe_machine
from bench_memory import measure_memory
from bench_processes import Cores, find_cores, pin
from bench_rig import ARRIVALS, QUICK, SMALLEST, Plan, Rig, start_rig
from bench_rows import Row
from bench_speak import BenchError, say
from bench_start import measure_import, measure_start
from bench_table import format_table
from bench_turns import measure_latency, measure_throughput, play_turns

MEASUREMENTS: dict[str, Callable[[Rig, Plan], list[Row]]] = {
    "latency": measure_latency,
    "throughput": measure_throughput,
    "followers": measure_followers,
    "growth": measure_growth,
    "start": measure_start,
    "import": measure_import,
    "memory": measure_memory,
    "adapters": measure_adapters,
    "layers": measure_layers,
}

WARM_TURNS, WARM_PLACES = 32, 8


def read_options() -> argparse.Namespace:
    names = ", ".join(MEASUREMENTS)
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="under a minute: fewer rounds, and fewer of everything")
    parser.add_argument("--smallest", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, help="how often each figure is taken; 5, or 3 with --quick")
    parser.add_argument("--only", metavar="NAME,…", help=f"what to measure: {names}")
    parser.add_argument(
        "--uvloop", action="store_true", help="run harness and baselines on uvloop; bounds are not judged"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document, and nothing else")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound does not hold")
    options = parser.parse_args()
    options.names = options.only.split(",") if options.only else list(MEASUREMENTS)
    for name in options.names:
        if name not in MEASUREMENTS:
            parser.error(f"there is no measurement {name!r}; there are {names}")
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


def make_plan(options: argparse.Namespace) -> Plan:
    plan = SMALLEST if options.smallest else QUICK if options.quick else Plan()
    rounds = options.rounds or plan.rounds
    return attrs.evolve(
        plan,
        rounds=rounds,
        memory_rounds=min(rounds, plan.memory_rounds),
        growth_rounds=min(rounds, plan.growth_rounds),
        layer_rounds=min(rounds, plan.layer_rounds),
        uvloop=options.uvloop,
    )


def measure(names: list[str], plan: Plan, cores: Cores) -> list[Row]:
    """
    Start the servers and take every figure, saying on standard error how it goes on.
    """
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="agent-harness-bench-") as folder,
        start_rig(Path(folder), cores, plan) as rig,
    ):
        try:
            for arrival in ARRIVALS:
                for _, server, target in rig.sides(arrival):
                    play_turns(server, target, WARM_PLACES, WARM_TURNS)
            for name in names:
                start = time.perf_counter()
                rows += MEASUREMENTS[name](rig, plan)
                sys.stderr.write(f"{name}: {time.perf_counter() - start:.1f} s\n")
        except BenchError as error:
            raise rig.explain(error) from error
    return rows


def main() -> int:
    """
    The exit code.
    """
    options = read_options()
    plan, cores = make_plan(options), find_cores()
    pin(os.getpid(), cores.client)
    # As Ctrl-C: the servers are to be ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        rows = measure(options.names, plan, cores)
    except BenchError as error:
        sys.stderr.write(f"scripts/bench: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    # The bounds are those of asyncio's own loop.
    machine, verdicts = describe_machine(), {} if plan.uvloop else judge(rows)
    if options.json:
        told = [
            {**row.to_json(), "bound": attrs.asdict(bound) if (bound := verdicts.get(row.name)) else None}
            for row in rows
        ]
        document = {"machine": machine, "pinned": attrs.asdict(cores), "plan": attrs.asdict(plan), "rows": told}
        say(json.dumps(document, indent=1))
    else:
        say(f"{machine['line']}; {cores.describe()}")
        say(f"{plan.describe()}\n")
        say(format_table(rows, verdicts))
    return 1 if options.check and not all(verdict.holds for verdict in verdicts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
