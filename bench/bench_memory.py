"""
What a session takes of memory: idle, after a turn, and parked.

Each figure is from a process of its own, since memory that was given up once would hide what is taken later. It is the
growth of the process's resident memory, from when everything was loaded and warm, shared out over the sessions. Free
memory has been given back to the system by then; the server does that by itself, here more often than otherwise (see
`bench_hasty_harness`).

What sessions forget at once stays resident for the most part: the interpreter gives back whole arenas only, and each
still holds something of a session that lives on. The next sessions take it. So the figure that plans capacity is what
each further session adds where sessions come all the time and their events are forgotten soon: they come in small waves
here, the next one when the events of the one before are gone, and the figure is the slope of a line through the memory
after each. (Of two large waves the second would only fill what the first left free.) That takes 40 s, and is left out
with ``--quick``. The other figure is shown beside it.
"""

import time
from collections.abc import Sequence
from statistics import linear_regression

from bench_client import Connection, Crowd, Place, make_request
from bench_hasty_harness import PERIOD_S
from bench_processes import FOLDER, Server
from bench_rig import Plan, Rig, start_harness
from bench_rows import Row
from bench_speak import BenchError
from bench_targets import HarnessTarget
from bench_turns import Game

__all__ = ["measure_memory"]

PLACES = 8
WARM_TURNS = 200
SETTLE_S = 0.7
"""Long enough for free memory to be given back more than twice."""

LIMITS = "grace_s = 0.0\nreplay_idle_s = {}"
FORGET_S = 60.0
"""Longest wait for events to be forgotten, in seconds."""

SOON_S = 1.2
"""
How long idle sessions keep their events where they are to be forgotten soon, in seconds. It counts from the whole
second before, so it must be more than one: what a turn's reader had no time to read would be forgotten, too.
"""

WAVE = 100
"""Sessions that come together."""

FILLING = 0.5
"""
The share of the waves at the beginning that are not looked at: memory grows faster until what one wave forgets is taken
by the next. With 20 waves the growth is steady by then; with half as many it is not.
"""

POLL_S = 0.05

PARK_S = 30.0
"""Longest wait for a session to park, in seconds."""

KIB, MIB = 1 << 10, 1 << 20


def measure_memory(rig: Rig, plan: Plan) -> list[Row]:
    """
    Resident memory for a session of each kind.
    """
    idle = Row("memory_idle", "memory of an idle session", "KiB")
    total = Row("memory_idle_total", f"memory in all with {plan.idle:,} idle sessions", "MiB")
    kept = Row("memory_finished", "memory of a session with one tool turn, replay kept", "KiB")
    at_once = Row("memory_dropped_at_once", "the same, when all replays had been dropped at once", "KiB")
    dropped = Row("memory_dropped", "each further session with one tool turn, replay dropped", "KiB")
    parked = Row("memory_parked", "memory of a parked session", "KiB")
    for _ in range(plan.memory_rounds):
        grown, resident = measure_idle(rig, plan)
        idle.harness.append(grown / KIB)
        total.harness.append(resident / MIB)
        with_replay, without = measure_finished(rig, plan)
        kept.harness.append(with_replay / KIB)
        at_once.harness.append(without / KIB)
        if plan.waves:
            dropped.harness.append(measure_further(rig, plan) / KIB)
        parked.harness.append(measure_parked(rig, plan) / KIB)
    return [idle, total, kept, at_once, *([dropped] if plan.waves else []), parked]


def start(rig: Rig, plan: Plan, replay_idle_s: float) -> Server:
    program = str(FOLDER / "bench_hasty_harness.py")
    limits = LIMITS.format(replay_idle_s)
    return start_harness(rig.folder, rig.mock, rig.cores.server, plan, program=program, limits=limits)


def warm_up(server: Server, target: HarnessTarget, crowd: Crowd) -> list[Place]:
    """
    Play turns, delete their sessions, let memory settle; the places, with connections that go on.
    """
    seats = [Place(target, crowd) for _ in range(PLACES)]
    with Connection(target.url) as control:
        sessions = target.open(control, PLACES + WARM_TURNS)
        Game(crowd, seats, iter(sessions), WARM_TURNS).run()
        target.close(control, sessions)
    time.sleep(SETTLE_S)
    server.check()
    return seats


def measure_idle(rig: Rig, plan: Plan) -> tuple[float, float]:
    """
    Bytes for an idle session, and of the whole process.
    """
    with start(rig, plan, 600.0) as server, Crowd() as crowd:
        target = HarnessTarget(server.url)
        warm_up(server, target, crowd)
        before = server.memory()
        with Connection(target.url) as control:
            target.open(control, plan.idle)
        time.sleep(SETTLE_S)
        after = server.memory()
        server.check()
    return (after - before) / plan.idle, after


def measure_finished(rig: Rig, plan: Plan) -> tuple[float, float]:
    """
    Bytes for a session with one finished tool turn, before and after all events were forgotten at once.
    """
    with start(rig, plan, plan.replay_idle_s) as server, Crowd() as crowd:
        target = HarnessTarget(server.url)
        seats = warm_up(server, target, crowd)
        before = server.memory()
        began = time.monotonic()
        sessions = play_once_each(target, crowd, seats, plan.finished, plan.replay_idle_s / 2)
        time.sleep(SETTLE_S)
        kept = server.memory()
        if is_forgotten(target, sessions[0]):
            raise BenchError(f"events were forgotten before they were measured, {time.monotonic() - began:.1f} s on")
        wait_for_forgetting(target, sessions)
        dropped = wait_for_rest(server)
        server.check()
    return (kept - before) / len(sessions), (dropped - before) / len(sessions)


def measure_further(rig: Rig, plan: Plan) -> float:
    """
    Bytes that each further session with one finished tool turn adds, where sessions come all the time and their events
    are forgotten soon.
    """
    with start(rig, plan, SOON_S) as server, Crowd() as crowd:
        target = HarnessTarget(server.url)
        seats = warm_up(server, target, crowd)
        resident: list[int] = []
        for _ in range(plan.waves):
            sessions = play_once_each(target, crowd, seats, WAVE, FORGET_S)
            wait_for_forgetting(target, sessions)
            resident.append(wait_for_rest(server))
        server.check()
    figures = resident[int(FILLING * plan.waves) :]
    return linear_regression(range(len(figures)), figures).slope / WAVE


def wait_for_rest(server: Server) -> int:
    """
    Watch resident memory for more than two periods of the house-keeping, in which free memory is given back; the
    smallest that was seen.
    """
    resident, end = server.memory(), time.monotonic() + 2.2 * PERIOD_S
    while time.monotonic() < end:
        time.sleep(POLL_S)
        resident = min(resident, server.memory())
    return resident


def wait_for_forgetting(target: HarnessTarget, sessions: Sequence[str]) -> None:
    """
    Wait until the events of all *sessions* were forgotten.
    """
    deadline = time.monotonic() + FORGET_S
    while not all(is_forgotten(target, session) for session in (sessions[0], sessions[-1])):
        if time.monotonic() > deadline:
            raise BenchError("the events of idle sessions were not forgotten")
        # Seldom, since a replay takes memory, too.
        time.sleep(0.2)


def play_once_each(target: HarnessTarget, crowd: Crowd, seats: Sequence[Place], count: int, most_s: float) -> list[str]:
    """
    Play one turn in each of *count* new sessions, or in as many as *most_s* seconds allow.
    """
    sessions: list[str] = []
    deadline = time.monotonic() + most_s
    with Connection(target.url) as control:
        while len(sessions) < count and time.monotonic() < deadline:
            fresh = target.open(control, min(len(seats), count - len(sessions)))
            Game(crowd, seats[: len(fresh)], iter(fresh), len(fresh)).run()
            sessions += fresh
    return sessions


def is_forgotten(target: HarnessTarget, session: str) -> bool:
    """
    Whether a follower from the beginning is told that events are missing.
    """
    with Connection(target.url) as connection:
        connection.send(make_request(target.url, f"GET /v1/sessions/{session}/stream?after=0"))
        seen = b""
        while b"event: session.item\n" not in seen:
            seen += connection.receive()
            if b"event: session.gap\n" in seen:
                return True
    return False


def measure_parked(rig: Rig, plan: Plan) -> float:
    """
    Bytes for a session that waits for a result, with nobody connected.
    """
    with start(rig, plan, 600.0) as server, Crowd() as crowd:
        target = HarnessTarget(server.url)
        warm_up(server, target, crowd)
        before = server.memory()
        with Connection(target.url) as control:
            sessions = target.open(control, plan.finished)
            for session in sessions:
                control.ask_json(target.send_message(session))
            for session in sessions:
                wait_for_park(control, make_request(target.url, f"GET /v1/sessions/{session}?include_items=false"))
        time.sleep(SETTLE_S)
        after = server.memory()
        server.check()
    return (after - before) / plan.finished


def wait_for_park(control: Connection, look: bytes) -> None:
    """
    Ask for a session's snapshot until it waits for a result.
    """
    deadline = time.monotonic() + PARK_S
    while (snapshot := control.ask_json(look))["status"] != "waiting":
        if snapshot["status"] != "running" or time.monotonic() > deadline:
            raise BenchError(f"a session did not park: {snapshot['status']}, {snapshot['last_error']}")
