"""
What the programs of the benchmark say, and how they fail.
"""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

__all__ = ["BenchError", "run_loop", "say"]


class BenchError(Exception):
    """
    The benchmark cannot go on; the message is one line.
    """


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run_loop(coroutine: Coroutine[Any, Any, None]) -> None:
    """
    Run *coroutine* on asyncio's own loop, or with ``--uvloop`` among the arguments on uvloop's.
    """
    if "--uvloop" in sys.argv:
        import uvloop

        uvloop.run(coroutine)
    else:
        asyncio.run(coroutine)
