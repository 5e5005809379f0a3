"""
The table for people.
"""

from bench_limits import Verdict
from bench_rows import Row, Spread

__all__ = ["format_table"]

HEAD = ("", "baseline", "harness", "ratio: min", "median", "max", "bound", "")


def format_table(rows: list[Row], verdicts: dict[str, Verdict]) -> str:
    """
    One line a row: medians of both sides, the ratio's spread over the rounds, the bound and whether it holds.
    """
    lines = [HEAD, *(format_row(row, verdicts.get(row.name)) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    texts = [format_line(line, widths) for line in lines]
    texts.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(texts)


def format_row(row: Row, verdict: Verdict | None) -> tuple[str, ...]:
    ratio = row.ratio
    theirs = f"{format_number(Spread.of(row.baseline).median)} ({row.baseline_name})" if row.baseline else "–"
    ratios = ("–",) * 3 if ratio is None else (f"{ratio.min:.2f}", f"{ratio.median:.2f}", f"{ratio.max:.2f}")
    judged = ("", "") if verdict is None else (verdict.text, "holds" if verdict.holds else "BROKEN")
    return (f"{row.title}, {row.unit}", theirs, format_number(row.value), *ratios, *judged)


def format_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def format_line(cells: tuple[str, ...], widths: list[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"
