"""
What a turn takes by how many its session had before.

Every request holds the whole transcript, so a later turn sends more. The proxy, which keeps no transcript, is made to
send as many bytes: what it takes longer for those is what must be sent, and no server can save.
"""

from statistics import median

from bench_client import Connection, Crowd, Place, Target, Timing, make_request
from bench_rig import ARRIVALS, Plan, Rig
from bench_rows import Row
from bench_targets import HarnessTarget, ProxyTarget

__all__ = ["Player", "measure_growth"]

SAMPLES = 20
"""How many turns each figure of a round is the median of; of turns 100 and later, those around them in one session."""

WINDOW_FROM = 100
ARRIVAL = ARRIVALS["frames"]


def measure_growth(rig: Rig, plan: Plan) -> list[Row]:
    """
    The latency of some turns of one session, beside the proxy's with requests as long, and how long those are.
    """
    times = {turn: Row(f"turn_{turn}", f"turn {turn:,} of a session, {ARRIVAL}", "ms") for turn in plan.growth}
    sizes = {turn: Row(f"request_bytes_{turn}", f"sent by turn {turn:,}, both requests", "KiB") for turn in plan.growth}
    for _ in range(plan.growth_rounds):
        for turn in plan.growth:
            ours, theirs, sent = measure_turn(rig, turn)
            times[turn].harness.append(1e3 * median(ours))
            times[turn].baseline.append(1e3 * median(theirs))
            sizes[turn].harness.append(median(sent) / 1024)
    return [*times.values(), *sizes.values()]


def measure_turn(rig: Rig, turn: int) -> tuple[list[float], list[float], list[int]]:
    """
    Seconds that turn number *turn* took in the harness and, played right behind it, a turn with requests as long in the
    proxy; how long the two were together.
    """
    ours: list[float] = []
    theirs: list[float] = []
    sent: list[int] = []
    is_window = turn >= WINDOW_FROM
    last = turn + SAMPLES // 2 if is_window else turn
    first = last - SAMPLES + 1 if is_window else turn
    proxy = rig.proxies["frames"]
    to_proxy = ProxyTarget(proxy.url)
    with Connection(rig.mock.url) as mock, Crowd() as crowd:
        player, other = Player(HarnessTarget(rig.harness.url), crowd), Player(to_proxy, crowd)
        for _ in range(1 if is_window else SAMPLES):
            session = player.open()
            for number in range(1, last + 1):
                taken = player.play(session)
                if number < first:
                    continue
                ours.append(taken)
                lengths = mock.ask_json(make_request(rig.mock.url, "GET /stats"))["sizes"]
                sent.append(sum(lengths))
                to_proxy.pad_to(*lengths)
                theirs.append(other.play(""))
            player.close(session)
    for server in (rig.harness, proxy):
        server.check()
    return ours, theirs, sent


class Player:
    """
    One place, one turn after the other.
    """

    def __init__(self, target: Target, crowd: Crowd) -> None:
        self._target, self._crowd = target, crowd
        self._place = Place(target, crowd)
        self._place.on_end = self._end
        self._timing: Timing | None = None

    def open(self) -> str:
        return self._target.open(self._place.results, 1)[0]

    def close(self, session: str) -> None:
        self._target.close(self._place.results, [session])

    def play(self, session: str) -> float:
        """
        Play one turn; the seconds it took.
        """
        self._timing = None
        self._place.play(session)
        self._crowd.listen(lambda: self._timing is not None)
        assert self._timing is not None
        return self._timing.turn

    def _end(self, timing: Timing) -> None:
        self._timing = timing
