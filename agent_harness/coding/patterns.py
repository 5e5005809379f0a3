"""
File patterns: ``*``, ``?`` and ``[…]`` within a name, ``**`` for any number of folders.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from agent_harness.coding.roots import Parts, check_relative

__all__ = ["matches", "read_pattern"]


def read_pattern(pattern: str) -> list[str]:
    """
    The parts of a pattern. One without a slash is looked for at any depth.

    Raises:
        PathRefused: it is absolute, or goes up.
    """
    check_relative(pattern)
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    return ["**", *parts] if len(parts) == 1 else parts


def matches(path: Parts, pattern: Sequence[str]) -> bool:
    """
    Whether the whole *path* fits. Takes time in proportion to both lengths, whatever the pattern.
    """
    reached = _pass_stars({0}, pattern)
    for name in path:
        after = {
            at if pattern[at] == "**" else at + 1
            for at in reached
            if at < len(pattern) and (pattern[at] == "**" or fnmatchcase(name, pattern[at]))
        }
        reached = _pass_stars(after, pattern)
    return len(pattern) in reached


def _pass_stars(reached: set[int], pattern: Sequence[str]) -> set[int]:
    """
    With what can be reached because ``**`` may stand for no folder.
    """
    for at in sorted(reached):
        while at < len(pattern) and pattern[at] == "**":
            at += 1
            reached.add(at)
    return reached
