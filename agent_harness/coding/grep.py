"""
Search by regular expression, in a process of its own: one that takes forever can be stopped there, and nowhere else (it
would hold up every thread of this process).
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["InvalidPattern", "Line", "search_texts"]

Line = tuple[str, int, str]
"""The name of a text, the number of one of its lines (from 1), and the line."""

_PROGRAM = """
import json, re, sys
asked = json.load(sys.stdin)
try:
    pattern = re.compile(asked["pattern"], re.IGNORECASE if asked["ignore_case"] else 0)
except (re.error, OverflowError, RecursionError, MemoryError) as error:
    json.dump({"error": str(error) or type(error).__name__}, sys.stdout)
    sys.exit()
found = []
for name, text in asked["texts"]:
    for number, line in enumerate(text.split("\\n"), 1):
        if len(found) < asked["most"] and pattern.search(line):
            found.append((name, number, line[:asked["width"]]))
json.dump({"found": found}, sys.stdout)
"""


class InvalidPattern(ValueError):
    """
    What was given is no regular expression, or one that takes too long.
    """


async def search_texts(
    pattern: str, texts: Sequence[tuple[str, str]], *, ignore_case: bool, most: int, width: int, timeout_s: float
) -> list[Line]:
    """
    The first *most* lines in which *pattern* is found, each cut to *width* characters. *texts* are names and contents.

    Raises:
        InvalidPattern: see there.
    """
    asked = {"pattern": pattern, "texts": texts, "ignore_case": ignore_case, "most": most, "width": width}
    answer = await _ask(json.dumps(asked).encode(), timeout_s)
    if "error" in answer:
        raise InvalidPattern(f"{pattern!r} is no regular expression: {answer['error']}")
    return [(name, number, line) for name, number, line in answer["found"]]


async def _ask(question: bytes, timeout_s: float) -> Any:
    # -I and -S: nothing that lies in the working directory, or that the environment names, is imported.
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", _PROGRAM,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(timeout_s):
            output, _ = await process.communicate(question)
        return json.loads(output) if output else {"error": "it cannot be used"}
    except TimeoutError:
        raise InvalidPattern(f"The search took over {timeout_s:g} s; use a simpler pattern or fewer files.") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
