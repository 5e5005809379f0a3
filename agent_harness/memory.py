"""
What a server process does for its memory: it looks for cycles seldom, and gives back what is free.
"""

import asyncio
import ctypes
import gc
import itertools
import logging
from collections.abc import Callable

__all__ = ["care_for_memory"]

log = logging.getLogger(__name__)

CARE_S = 5.0
"""How often the process looks after its memory, in seconds."""

LOOK_AT_ALL = 12
"""
Every how many times it looks for cycles among all objects, and not only among new ones. Each connection that was closed
leaves a cycle of asyncio's, and one that was open at an earlier look is old by then; by itself the collector looks
there only when much is new. Looked for seldom, cycles leave holes; a look among all takes long.
"""

COLLECT = (100_000, 5, 1)
"""
After how many new objects the collector looks for cycles among them, after how many such looks among older ones, and
then among all; Python's own numbers are 700, 10, 10 up to 3.12. Nothing else runs while it looks.
"""

NEW = 1_000
"""How many new objects are worth a look."""


async def care_for_memory(warm: Callable[[], None]) -> None:
    """
    Look after the memory of this process until cancelled. *warm* imports what is not yet imported, in a thread.
    """
    try:
        await asyncio.to_thread(warm)
    except Exception as error:
        # Whoever needs it will say so.
        log.warning("what the first requests need cannot be imported: %r", error)
    spare_collections()
    trim = find_trim()
    for number in itertools.count(1):
        await asyncio.sleep(CARE_S)
        if collect(number):
            await asyncio.to_thread(trim)


def spare_collections() -> None:
    """
    Have the collector of cycles look less often, and never again at what was imported: a turn leaves none behind it,
    and at Python's own pace the search takes a seventh of a turn's CPU.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT)


def collect(number: int) -> bool:
    """
    Look for cycles for the *number*-th time, unless hardly anything is new since; whether it was done.
    """
    at_all = number % LOOK_AT_ALL == 0
    new, *looks = gc.get_count()
    if new < NEW and not (at_all and any(looks)):
        return False
    gc.collect(2 if at_all else 0)
    return True


def find_trim() -> Callable[[], object]:
    """
    What gives memory that is free inside the heap back to the system: large bodies between small things that live on
    leave holes, and the C library keeps those. Only glibc has such a function; elsewhere it does nothing.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return lambda: None
    return lambda: trim(0)
