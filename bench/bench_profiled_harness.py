"""
``agent-harness`` that notes, a thousand times in each second of its CPU time where the system can, which layer of it
works, from ``SIGUSR1`` to ``SIGUSR2``, and writes the counts to the file ``layers.json`` in its working directory when
it ends.

The layer is that of the innermost frame of the package: what aiohttp does for it counts as its own. Without such a
frame it is that of aiohttp or asyncio itself.
"""

import json
import re
import signal
from collections import Counter
from pathlib import Path
from types import FrameType

__all__ = ["LAYERS", "OTHER"]

PERIOD_S = 0.001

LAYERS = {
    "upstream": (
        "asking the model server, reading its answers (aiohttp client)",
        r"/llm/upstream(_http|_sdk|_retries|)\.py|aiohttp/(client|connector)",
    ),
    "sse": ("SSE parse", r"/llm/upstream_frames\.py|/protocol/sse\.py FrameReader"),
    "dialect": ("dialect: events to deltas", r"/llm/(responses|chat|calls|surrogates)"),
    "request": ("request bytes", r"/llm/(responses_input|chat_request)\.py"),
    "engine": ("engine and transcript", r"/agent_harness/(engine|protocol)/"),
    "encode": ("encode", r"/protocol/(encode|sse)\.py"),
    "routes": ("routes, middlewares, followers", r"/agent_harness/server/|/protocol/(decode|requests)\.py"),
    "http": ("HTTP server (aiohttp)", r"aiohttp/"),
    "loop": ("event loop (asyncio)", r"asyncio/"),
}
"""What each is called, and what it is made of: files, where it matters with the function."""

OTHER = "other"

# Of two that match the more exact one counts.
ORDER = ("request", "sse", "encode", "routes", "upstream", "dialect", "engine")
PACKAGE = [(name, re.compile(LAYERS[name][1])) for name in ORDER]
AROUND = [(name, re.compile(pattern)) for name, (_, pattern) in LAYERS.items()]

counts: Counter[str] = Counter()
known: dict[str, str | None] = {}


def note(_: int, frame: FrameType | None) -> None:
    """
    Count the layer that works now.
    """
    innermost = frame
    while frame is not None:
        layer = find_layer(frame)
        if layer is not None:
            counts[layer] += 1
            return
        frame = frame.f_back
    counts[find_around(innermost)] += 1


def find_layer(frame: FrameType) -> str | None:
    code = frame.f_code
    place = f"{code.co_filename} {code.co_qualname}"
    if place not in known:
        known[place] = next((name for name, pattern in PACKAGE if pattern.search(place)), None)
    return known[place]


def find_around(frame: FrameType | None) -> str:
    """
    The layer of a stack without a frame of the package's work.
    """
    while frame is not None:
        for name, pattern in AROUND:
            if pattern.search(frame.f_code.co_filename):
                return name
        frame = frame.f_back
    return OTHER


def begin(_: int, __: FrameType | None) -> None:
    signal.setitimer(signal.ITIMER_PROF, PERIOD_S, PERIOD_S)


def end(_: int, __: FrameType | None) -> None:
    signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    from agent_harness.cli import main

    signal.signal(signal.SIGPROF, note)
    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    try:
        main()
    finally:
        Path("layers.json").write_text(json.dumps(counts))
