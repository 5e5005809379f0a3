"""
The servers that several measurements share: mock model, bare proxy and harness, warm.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import attrs
from bench_client import Target
from bench_processes import FOLDER, Cores, Server, start
from bench_speak import BenchError
from bench_targets import HarnessTarget, ProxyTarget

__all__ = ["QUICK", "SMALLEST", "Plan", "Rig", "start_baseline", "start_harness", "start_rig"]

SETTINGS = """
default_provider = "frames"

[server]
port = 0

[limits]
sessions = 100000
{limits}

[providers.frames]
api = "responses"
base_url = "{mock}/v1"
model = "bench"
needs_key = false

[providers.burst]
api = "responses"
base_url = "{mock}/burst/v1"
model = "bench"
needs_key = false

[providers.step]
api = "responses"
base_url = "{mock}/step/v1"
model = "bench"
needs_key = false
"""


EXIT_S = 0.3
"""How long a process that closed its connections may take to be gone, in seconds."""


@attrs.frozen
class Plan:
    """
    How much is measured: rounds, and what one round consists of.

    Args:
        rounds: how often each figure is taken, the servers by turns.
        latency_turns: turns one after the other.
        turns: by the number of sessions at once, how many turns of them all.
        events: events in one stream with followers.
        followers: how many follow it.
        idle: idle sessions for memory.
        finished: sessions with a turn, and parked ones, for memory.
        replay_idle_s: how long idle sessions keep their events there; half of it is spent on making them.
        memory_rounds: rounds for memory, which hardly differs.
        growth: the turns of one session that are looked at.
        growth_rounds: rounds for those.
        uvloop: whether the servers run on uvloop.
        arrival: how the model's frames come in turns: ``frames``, each by itself, or ``burst``, all at once.
    """

    rounds: int = 5
    latency_turns: int = 200
    turns: dict[int, int] = attrs.field(factory=lambda: {1: 300, 32: 960, 256: 1536})
    events: int = 200
    followers: int = 100
    idle: int = 10_000
    finished: int = 2_000
    replay_idle_s: float = 12.0
    memory_rounds: int = 3
    growth: tuple[int, ...] = (1, 10, 100, 1_000)
    growth_rounds: int = 5
    uvloop: bool = False
    arrival: str = "frames"

    def describe(self) -> str:
        """
        What of it the reader of a table must know.
        """
        loop = "uvloop" if self.uvloop else "asyncio's own loop"
        arrival = "each by itself" if self.arrival == "frames" else "all at once"
        return f"{self.rounds} rounds ({self.memory_rounds} for memory); {loop}; frames of the model come {arrival}"


QUICK = Plan(
    rounds=3,
    latency_turns=80,
    turns={1: 60, 32: 192, 256: 288},
    events=60,
    idle=10_000,
    finished=800,
    replay_idle_s=5.0,
    memory_rounds=1,
    growth_rounds=1,
)
"""Under a minute on a machine of 2026 with two cores."""

SMALLEST = Plan(
    rounds=1,
    latency_turns=5,
    turns={1: 5, 4: 12},
    events=5,
    followers=3,
    idle=50,
    finished=20,
    replay_idle_s=6.0,
    memory_rounds=1,
    growth=(1, 3),
    growth_rounds=1,
)
"""Says whether everything works, and nothing about the harness."""


@attrs.define(eq=False)
class Rig:
    """
    The running servers, and a folder for what others need.
    """

    folder: Path
    mock: Server
    proxy: Server
    harness: Server
    cores: Cores
    to_proxy: ProxyTarget
    to_harness: HarnessTarget

    @property
    def sides(self) -> list[tuple[str, Server, Target]]:
        """
        What is driven, in turn.
        """
        return [("baseline", self.proxy, self.to_proxy), ("harness", self.harness, self.to_harness)]

    def explain(self, error: BenchError) -> BenchError:
        """
        *error*, with what the servers say to it: one that has ended, or what the harness logged last.
        """
        try:
            for server in (self.mock, self.proxy, self.harness):
                server.check(EXIT_S)
        except BenchError as cause:
            return cause
        return BenchError(self.harness.complain(str(error)))


def start_harness(
    folder: Path, mock: Server, core: int | None, plan: Plan, *, program: str = "", limits: str = ""
) -> Server:
    """
    ``agent-harness serve``, or *program*, which does the same with something changed; with more lines for ``[limits]``.
    """
    settings = folder / "bench.toml"
    settings.write_text(SETTINGS.format(mock=mock.url, limits=limits))
    command = [program] if program else ["-P", "-m", "agent_harness"]
    flags = ["--uvloop"] if plan.uvloop else []
    return start("the harness", *command, "serve", "--config", str(settings), *flags, core=core, cwd=folder)


def start_baseline(name: str, base_url: str, core: int | None, plan: Plan) -> Server:
    """
    What the harness is compared with: ``proxy`` or ``broadcaster``, in front of the model server at *base_url*.
    """
    flags = ["--uvloop"] if plan.uvloop else []
    return start(f"the {name}", str(FOLDER / f"bench_{name}.py"), base_url, *flags, core=core)


@contextlib.contextmanager
def start_rig(folder: Path, cores: Cores, plan: Plan) -> Iterator[Rig]:
    """
    Start the servers; they are gone at the end, whatever happens.
    """
    base_path = "/v1" if plan.arrival == "frames" else f"/{plan.arrival}/v1"
    with contextlib.ExitStack() as stack:
        mock = start("the mock model", str(FOLDER / "bench_mock.py"), core=cores.mock)
        stack.callback(mock.stop)
        proxy = start_baseline("proxy", f"{mock.url}{base_path}", cores.server, plan)
        stack.callback(proxy.stop)
        harness = start_harness(folder, mock, cores.server, plan)
        stack.callback(harness.stop)
        to_harness = HarnessTarget(harness.url, plan.arrival)
        yield Rig(folder, mock, proxy, harness, cores, ProxyTarget(proxy.url), to_harness)
