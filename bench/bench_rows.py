"""
What was measured: one row for each figure, with one value a round.
"""

from statistics import median
from typing import Any

import attrs

__all__ = ["Row", "Spread", "find"]


@attrs.frozen
class Spread:
    """
    Minimum, median and maximum over the rounds.
    """

    min: float
    median: float
    max: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        return cls(min(values), median(values), max(values))


@attrs.define
class Row:
    """
    One figure of the harness, and of what it is compared with, if anything is; one value for each round.
    """

    name: str
    title: str
    unit: str
    harness: list[float] = attrs.field(factory=list)
    baseline: list[float] = attrs.field(factory=list)
    baseline_name: str = "proxy"

    @property
    def value(self) -> float:
        """
        The harness's figure: the median over the rounds.
        """
        return median(self.harness)

    @property
    def ratio(self) -> Spread | None:
        """
        Harness to baseline, round by round; None without a baseline.
        """
        if not self.baseline:
            return None
        return Spread.of([ours / theirs for ours, theirs in zip(self.harness, self.baseline, strict=True)])

    def to_json(self) -> dict[str, Any]:
        ratio = self.ratio
        return {
            "name": self.name,
            "title": self.title,
            "unit": self.unit,
            "harness": {**attrs.asdict(Spread.of(self.harness)), "rounds": self.harness},
            "baseline": None
            if ratio is None
            else {"name": self.baseline_name, **attrs.asdict(Spread.of(self.baseline)), "rounds": self.baseline},
            "ratio": None if ratio is None else attrs.asdict(ratio),
        }


def find(rows: list[Row], name: str) -> Row | None:
    """
    The row of that name, or None if it was not measured.
    """
    return next((row for row in rows if row.name == name), None)
