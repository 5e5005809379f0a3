"""
Turns with a call of the client's: how long one takes, how many a second, what one costs.
"""

import gc
import time
from collections.abc import Iterator, Sequence
from statistics import median

from bench_client import Crowd, Place, Target, Timing
from bench_processes import Server
from bench_rig import Plan, Rig
from bench_rows import Row

__all__ = ["measure_latency", "measure_throughput", "play_turns"]

TURNS_A_SESSION = 10
"""A session is replaced after so many turns, so that requests stay short; it is made and deleted outside the time."""


def measure_latency(rig: Rig, plan: Plan) -> list[Row]:
    """
    One session, one turn after the other: the median of a round.
    """
    turn = Row("turn_latency", "tool turn, one at a time", "ms")
    delta = Row("result_to_delta", "result to the next delta", "ms")
    for _ in range(plan.rounds):
        for side, server, target in rig.sides:
            timings, _, _ = play_turns(server, target, 1, plan.latency_turns)
            getattr(turn, side).append(1e3 * median(timing.turn for timing in timings))
            getattr(delta, side).append(1e3 * median(timing.result_to_delta for timing in timings))
    return [turn, delta]


def measure_throughput(rig: Rig, plan: Plan) -> list[Row]:
    """
    Many sessions at once, each with one turn after the other: turns a second, CPU time of the server for one, and which
    share of the time the server computed. Much less than all of it with many sessions says that the machine had other
    work, and that the rates mean little.
    """
    rates = {places: Row(f"turns_per_s_{places}", f"turns, {describe(places)}", "1/s") for places in plan.turns}
    costs = {places: Row(f"cpu_per_turn_{places}", f"CPU of a turn, {describe(places)}", "µs") for places in plan.turns}
    busy = {places: Row(f"busy_{places}", f"share of a core used, {describe(places)}", "%") for places in plan.turns}
    for _ in range(plan.rounds):
        for places, turns in plan.turns.items():
            for side, server, target in rig.sides:
                _, taken, cpu = play_turns(server, target, places, turns)
                getattr(rates[places], side).append(turns / taken)
                getattr(costs[places], side).append(1e6 * cpu / turns)
                getattr(busy[places], side).append(100 * cpu / taken)
    return [*rates.values(), *costs.values(), *busy.values()]


def describe(places: int) -> str:
    return "1 session" if places == 1 else f"{places} sessions at once"


def play_turns(server: Server, target: Target, places: int, turns: int) -> tuple[list[Timing], float, float]:
    """
    Play *turns* turns at so many *places* at once: their timings, the seconds they took, and the server's CPU seconds.
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
