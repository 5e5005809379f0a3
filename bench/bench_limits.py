"""
The bounds that the figures are held to.
"""

from collections.abc import Callable
from statistics import median

import attrs
from bench_rows import Row, find

__all__ = ["Verdict", "judge"]


@attrs.frozen
class Verdict:
    """
    A bound in words, and whether it holds.
    """

    text: str
    holds: bool


def judge(rows: list[Row]) -> dict[str, Verdict]:
    """
    The bounds by the name of the row they are about; without those whose rows were not measured. Ratios count with
    their median.
    """
    verdicts: dict[str, Verdict] = {}
    for row in rows:
        bound = BOUNDS.get(row.name)
        if bound is not None:
            verdict = bound(row, rows)
            if verdict is not None:
                verdicts[row.name] = verdict
    return verdicts


Bound = Callable[[Row, list[Row]], Verdict | None]


def ratio_at_least(bound: float, aim: float) -> Bound:
    return lambda row, _: Verdict(f"ratio ≥ {bound:.2f} (aim {aim:.2f})", median_ratio(row) >= bound)


def ratio_at_most(bound: float, aim: float | None = None) -> Bound:
    text = f"ratio ≤ {bound:.1f}" + ("" if aim is None else f" (aim {aim:.1f})")
    return lambda row, _: Verdict(text, median_ratio(row) <= bound)


def at_most(bound: float) -> Bound:
    return lambda row, _: Verdict(f"≤ {bound:g}", row.value <= bound)


def share_of(other: str, share: float) -> Bound:
    """
    The ratio is at least that share of the ratio of another row.
    """

    def check(row: Row, rows: list[Row]) -> Verdict | None:
        measured = find(rows, other)
        if measured is None:
            return None
        least = share * median_ratio(measured)
        return Verdict(f"ratio ≥ {share:g} of that at 32 ({least:.2f})", median_ratio(row) >= least)

    return check


def times_another(most: float, other: str) -> Bound:
    """
    At most so many times another row's figure.
    """

    def check(row: Row, rows: list[Row]) -> Verdict | None:
        measured = find(rows, other)
        if measured is None:
            return None
        return Verdict(f"≤ {most:g} × turn 1 ({most * measured.value:.2f})", row.value <= most * measured.value)

    return check


def beyond_what_is_sent(most: float, other: str) -> Bound:
    """
    The same, without what the baseline takes longer for the longer requests.
    """

    def check(row: Row, rows: list[Row]) -> Verdict | None:
        measured = find(rows, other)
        if measured is None:
            return None
        bound = most * measured.value + median(row.baseline) - median(measured.baseline)
        return Verdict(f"≤ {most:g} × turn 10 + the proxy's growth ({bound:.2f})", row.value <= bound)

    return check


def median_ratio(row: Row) -> float:
    ratio = row.ratio
    assert ratio is not None
    return ratio.median


BOUNDS: dict[str, Bound] = {
    "turn_latency": ratio_at_most(2.5, 2.0),
    "result_to_delta": ratio_at_most(2.0),
    "turns_per_s_32": ratio_at_least(0.40, 0.60),
    "turns_per_s_256": share_of("turns_per_s_32", 0.9),
    "event_followers_many": ratio_at_most(1.5),
    "event_follower_further": at_most(15),
    "memory_idle_total": at_most(200),
    "memory_finished": at_most(24),
    "memory_dropped": at_most(6),
    "memory_parked": at_most(32),
    "start": at_most(0.6),
    "turn_100": times_another(2, "turn_1"),
    "turn_1000": beyond_what_is_sent(2, "turn_10"),
}
