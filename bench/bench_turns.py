"""
Turns with a call of the client's: how long one takes, how many a second, what one costs.

How the frames of the model come decides what a turn costs, in the proxy as in the harness: what is read at once is
handled at once. For rates and costs each comes by itself, as models send them (``paced``), unless a row says otherwise:
at a rate that all streams share, so that it is the same with many streams and with few, and keeps each server busy.
Latency is taken with frames back to back, since that of a paced turn would be the pace.
"""

import contextlib
import gc
import time
from collections.abc import Iterator, Sequence
from statistics import median

import attrs
from bench_client import Crowd, Place, Target, Timing
from bench_processes import Server
from bench_rig import ARRIVALS, Plan, Rig, start_harness
from bench_rows import Row
from bench_targets import HarnessTarget

__all__ = ["measure_latency", "measure_throughput", "play_turns"]


@attrs.frozen
class Load:
    """
    So many sessions at once, and how the frames of the model come; ``name`` ends the names of its rows.
    """

    name: str
    places: int
    arrival: str

    @property
    def title(self) -> str:
        sessions = "1 session" if self.places == 1 else f"{self.places} sessions at once"
        return f"{sessions}, {ARRIVALS[self.arrival]}"


PACED = Load("32", 32, "paced")
MANY = (PACED, Load("32_burst", 32, "burst"), Load("256", 256, "paced"))
SINGLE = (Load("1", 1, "frames"), Load("1_paced", 1, "paced"))
TURNS_A_SESSION = 10
"""A session is replaced after so many turns, so that requests stay short; it is made and deleted outside the time."""


def measure_latency(rig: Rig, plan: Plan) -> list[Row]:
    """
    One session, one turn after the other: the median of a round.
    """
    turn = Row("turn_latency", f"tool turn, one at a time, {ARRIVALS['frames']}", "ms")
    delta = Row("result_to_delta", f"result to the next delta, {ARRIVALS['frames']}", "ms")
    for _ in range(plan.rounds):
        for side, server, target in rig.sides("frames"):
            timings, _, _ = play_turns(server, target, 1, plan.latency_turns)
            getattr(turn, side).append(1e3 * median(timing.turn for timing in timings))
            getattr(delta, side).append(1e3 * median(timing.result_to_delta for timing in timings))
    return [turn, delta]


def measure_throughput(rig: Rig, plan: Plan) -> list[Row]:
    """
    Many sessions at once, each with one turn after the other: turns a second, CPU time of the server for one, and which
    share of the time the server computed. Much less than all of it with many sessions says that the machine had other
    work, and that the rates mean little. The rate of a single paced session is the pace, and left out.
    """
    single, many = ([load for load in loads if load.name in plan.turns] for loads in (SINGLE, MANY))
    loads = [*single, *many]
    rates = {load: Row(f"turns_per_s_{load.name}", f"turns, {load.title}", "1/s") for load in loads}
    costs = {load: Row(f"cpu_per_turn_{load.name}", f"CPU of a turn, {load.title}", "µs") for load in loads}
    busy = {load: Row(f"busy_{load.name}", f"share of a core used, {load.title}", "%") for load in loads}
    other = Row("cpu_per_turn_32_openai", f"CPU of a turn over the openai SDK, {PACED.title}", "µs")

    def play(load: Load) -> None:
        for side, driven, target in rig.sides(load.arrival):
            rate, cost, share = play_load(driven, target, load, plan.turns[load.name])
            getattr(rates[load], side).append(rate)
            getattr(costs[load], side).append(cost)
            getattr(busy[load], side).append(share)

    with start_harness(rig.folder, rig.mock, rig.cores.server, plan, transport="openai") as server:
        # Imports the SDK, too.
        play_load(server, HarnessTarget(server.url, PACED.arrival), PACED, PACED.places)
        warm_up(rig, plan)
        for _ in range(plan.rounds):
            for load in many:
                play(load)
            _, cost, _ = play_load(server, HarnessTarget(server.url, PACED.arrival), PACED, plan.turns[PACED.name])
            other.harness.append(cost)
    for _ in range(plan.rounds):
        for load in single:
            play(load)
    other.baseline = costs[PACED].baseline
    shown = [rates[load] for load in loads if load.name != "1_paced"]
    return [*shown, *costs.values(), other, *(busy[load] for load in many)]


def warm_up(rig: Rig, plan: Plan) -> None:
    """
    Play what is not counted: a core that was idle takes a tenth more for the same, for seconds. For that reason, too,
    the loads that leave it idle come last.
    """
    for _, driven, target in rig.sides(PACED.arrival):
        play_load(driven, target, PACED, plan.warm_turns)


def play_load(server: Server, target: Target, load: Load, turns: int) -> tuple[float, float, float]:
    """
    Turns a second, microseconds of CPU time for one, and the percentage of a core that was used.
    """
    _, taken, cpu = play_turns(server, target, load.places, turns)
    return turns / taken, 1e6 * cpu / turns, 100 * cpu / taken


def play_turns(
    server: Server,
    target: Target,
    places: int,
    turns: int,
    during: contextlib.AbstractContextManager[None] | None = None,
) -> tuple[list[Timing], float, float]:
    """
    Play *turns* turns at so many *places* at once: their timings, the seconds they took, and the server's CPU seconds.
    *during* is entered for these turns alone, and not for what goes before them.
    """
    with Crowd() as crowd:
        seats = [Place(target, crowd) for _ in range(places)]
        sessions = target.open(seats[0].results, 2 * places + turns // TURNS_A_SESSION)
        # Connections to the model server are made here, and not in the time.
        Game(crowd, seats, iter(sessions[:places]), places).run()
        game = Game(crowd, seats, iter(sessions[places:]), turns)
        gc.collect()
        gc.disable()
        try:
            with during or contextlib.nullcontext():
                start, cpu = time.perf_counter(), server.cpu()
                game.run()
                taken, cpu = time.perf_counter() - start, server.cpu() - cpu
        finally:
            gc.enable()
        target.close(seats[0].results, sessions)
    server.check()
    return game.timings, taken, cpu


class Game:
    """
    So many *turns*, in all, at these *seats*; each takes the next of the *sessions* when it had its turns in one.
    """

    def __init__(self, crowd: Crowd, seats: Sequence[Place], sessions: Iterator[str], turns: int) -> None:
        self.crowd, self.seats, self.sessions, self.turns = crowd, seats, sessions, turns
        self.timings: list[Timing] = []
        self._begun = 0

    def run(self) -> None:
        """
        Play until the last turn has ended.
        """
        for seat in self.seats:
            self._sit_down(seat)
        self.crowd.listen(lambda: len(self.timings) >= self.turns)

    def _sit_down(self, seat: Place) -> None:
        session, played = "", TURNS_A_SESSION

        def go_on() -> None:
            nonlocal session, played
            if self._begun >= self.turns:
                return
            if played == TURNS_A_SESSION:
                session, played = next(self.sessions), 0
            self._begun += 1
            played += 1
            seat.play(session)

        def end(timing: Timing) -> None:
            self.timings.append(timing)
            go_on()

        seat.on_end = end
        go_on()
