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

__all__ = ["ARRIVALS", "QUICK", "SMALLEST", "Plan", "Rig", "Side", "start_baseline", "start_harness", "start_rig"]

ARRIVALS = {"frames": "frames back to back", "burst": "all at once", "paced": "each frame by itself"}
"""How the model's frames come in turns, in words; `bench_mock` says more."""

PATHS = {"frames": "/v1", "burst": "/burst/v1", "paced": "/paced/v1", "step": "/step/v1"}
"""Where the mock model has what; the harness has a provider of each name."""

SETTINGS = """
default_provider = "frames"

[server]
port = 0

[limits]
sessions = 100000
{limits}
"""

PROVIDER = """
[providers.{name}]
api = "responses"
transport = "{transport}"
base_url = "{mock}{path}"
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
        turns: by the name of the load (see `bench_turns`), how many turns; others are left out.
        warm_turns: turns that are played before and do not count.
        layer_turns: turns for a profile.
        streams: long streams that an adapter reads.
        events: events in one stream with followers.
        followers: how many follow it.
        idle: idle sessions for memory.
        finished: sessions with a turn, and parked ones, for memory.
        replay_idle_s: how long idle sessions keep their events there; half of it is spent on making them.
        waves: groups of sessions that come one after the other, for memory; 0 leaves that figure out.
        memory_rounds: rounds for memory, which hardly differs.
        growth: the turns of one session that are looked at.
        growth_rounds: rounds for those.
        layer_rounds: rounds for profiles.
        uvloop: whether the servers run on uvloop.
    """

    rounds: int = 5
    latency_turns: int = 200
    turns: dict[str, int] = attrs.field(
        factory=lambda: {"1": 300, "1_paced": 60, "32": 1920, "32_burst": 960, "256": 1920}
    )
    warm_turns: int = 1_920
    layer_turns: int = 1_600
    streams: int = 3
    events: int = 200
    followers: int = 100
    idle: int = 10_000
    finished: int = 2_000
    replay_idle_s: float = 12.0
    waves: int = 20
    memory_rounds: int = 2
    growth: tuple[int, ...] = (1, 10, 100, 1_000)
    growth_rounds: int = 5
    layer_rounds: int = 3
    uvloop: bool = False

    def describe(self) -> str:
        """
        What of it the reader of a table must know.
        """
        loop = "uvloop" if self.uvloop else "asyncio's own loop"
        return f"{self.rounds} rounds ({self.memory_rounds} for memory); {loop}"


QUICK = Plan(
    rounds=3,
    latency_turns=80,
    turns={"1": 60, "1_paced": 8, "32": 768, "32_burst": 192, "256": 768},
    layer_turns=400,
    streams=1,
    events=60,
    idle=10_000,
    finished=600,
    replay_idle_s=5.0,
    waves=0,
    memory_rounds=1,
    growth_rounds=1,
    layer_rounds=1,
)
"""Under a minute on a machine of 2026 with two cores."""

SMALLEST = Plan(
    rounds=1,
    latency_turns=5,
    turns={"1": 5, "1_paced": 2, "32": 32, "32_burst": 32},
    warm_turns=32,
    layer_turns=64,
    streams=1,
    events=5,
    followers=3,
    idle=50,
    finished=20,
    replay_idle_s=6.0,
    waves=4,
    memory_rounds=1,
    growth=(1, 3),
    growth_rounds=1,
    layer_rounds=1,
)
"""Says whether everything works, and nothing about the harness."""


Side = tuple[str, Server, Target]
"""Which list of a row the figures go to, the server, and what the client must know of it."""


@attrs.define(eq=False)
class Rig:
    """
    The running servers, a proxy for each arrival of frames, and a folder for what others need.
    """

    folder: Path
    mock: Server
    proxies: dict[str, Server]
    harness: Server
    cores: Cores

    def sides(self, arrival: str) -> list[Side]:
        """
        What is driven, in turn; the frames of the model come as *arrival* says.
        """
        proxy = self.proxies[arrival]
        return [
            ("baseline", proxy, ProxyTarget(proxy.url)),
            ("harness", self.harness, HarnessTarget(self.harness.url, arrival)),
        ]

    def explain(self, error: BenchError) -> BenchError:
        """
        *error*, with what the servers say to it: one that has ended, or what the harness logged last.
        """
        try:
            for server in (self.mock, *self.proxies.values(), self.harness):
                server.check(EXIT_S)
        except BenchError as cause:
            return cause
        return BenchError(self.harness.complain(str(error)))


def start_harness(
    folder: Path,
    mock: Server,
    core: int | None,
    plan: Plan,
    *,
    program: str = "",
    limits: str = "",
    transport: str = "aiohttp",
) -> Server:
    """
    ``agent-harness serve``, or *program*, which does the same with something changed; with more lines for ``[limits]``,
    and with that *transport* to the model server.
    """
    settings = folder / "bench.toml"
    providers = [
        PROVIDER.format(name=name, transport=transport, mock=mock.url, path=path) for name, path in PATHS.items()
    ]
    settings.write_text(SETTINGS.format(limits=limits) + "".join(providers))
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
    with contextlib.ExitStack() as stack:
        mock = start("the mock model", str(FOLDER / "bench_mock.py"), core=cores.mock)
        stack.callback(mock.stop)
        proxies: dict[str, Server] = {}
        for arrival in ARRIVALS:
            proxies[arrival] = start_baseline("proxy", f"{mock.url}{PATHS[arrival]}", cores.server, plan)
            stack.callback(proxies[arrival].stop)
        harness = start_harness(folder, mock, cores.server, plan)
        stack.callback(harness.stop)
        yield Rig(folder, mock, proxies, harness, cores)
