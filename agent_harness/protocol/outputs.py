"""
How large an output is, and whether it may be kept: one that a model server refuses would be in every later request.
"""

from collections.abc import Sequence

from agent_harness.errors import RequestTooLarge
from agent_harness.protocol.commands import OUTPUT_MAX
from agent_harness.protocol.items import InputFile, InputImage, InputText, Part

__all__ = ["STAND_IN_MAX", "check_output", "measure_output"]

STAND_IN_MAX = 200
"""Longest line that may stand for an image or a file where a model takes only text, without the file's name and URL."""


def measure_output(output: str | Sequence[Part]) -> int:
    """
    Most characters that a model may read of *output*, in whichever form it goes out: providers bound the string or the
    sum of a list's texts. A list may become one string, with a line feed between two parts, and a line in the place of
    each image and file. What ``is_error`` puts before it is not counted.
    """
    if isinstance(output, str):
        return len(output)
    return sum(map(_measure_part, output)) + max(0, len(output) - 1)


def _measure_part(part: Part) -> int:
    if isinstance(part, InputText):
        return len(part.text)
    if isinstance(part, InputFile):
        url = part.file_url or ""
        return STAND_IN_MAX + len(part.filename or "") + (0 if url.startswith("data:") else len(url))
    return STAND_IN_MAX if isinstance(part, InputImage) else 0


def check_output(output: str | Sequence[Part] | None, param: str) -> None:
    """
    Refuse an output that is over its limit; *param* is its path.

    Raises:
        RequestTooLarge: it is.
    """
    size = measure_output(output or "")
    if size <= OUTPUT_MAX:
        return
    counted = (
        ""
        if isinstance(output, str)
        else (f" (its texts, one between two parts, and for each image or file {STAND_IN_MAX}, its name and its URL)")
    )
    message = f"An output has at most {OUTPUT_MAX:,} characters, this one has {size:,}{counted}. It was not taken."
    raise RequestTooLarge(message, param=param)
