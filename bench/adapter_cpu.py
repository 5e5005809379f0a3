"""
CPU per upstream event in each adapter, against iterating the same bytes with the bare aiohttp client.

A server process sends the same recorded stream to both, in one run, turn and turn about; what is measured is the CPU
time of this process, the median over all rounds. Once the stream comes in one burst, once frame by frame, as models
speak::

    python bench/adapter_cpu.py --rounds 60 --deltas 500
"""

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from itertools import product
from statistics import median
from typing import Any

import aiohttp
from aiohttp import web

from agent_harness.config import ProviderSettings, Settings, TransportName
from agent_harness.llm.base import Request
from agent_harness.protocol.blocks import Block
from agent_harness.protocol.items import InputText, Message
from agent_harness.testing.mock_entry import read_entry
from agent_harness.testing.mock_llm import build_answer
from agent_harness.testing.strict import Dialect
from agent_harness.wiring import load_adapters, make_model

PATHS: dict[Dialect, str] = {"responses": "/responses", "chat": "/chat/completions"}
PACES = ("burst", "paced")
TRANSPORTS: tuple[TransportName, ...] = ("aiohttp", "openai")
GAP_S = 0.0005


def say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def record(dialect: Dialect, deltas: int) -> list[bytes]:
    """
    The frames of an answer with that many text deltas.
    """
    entry = read_entry({"deltas": [f"word{number} " for number in range(deltas)]}, "entry")
    body = {"model": "m", "stream_options": {"include_usage": True}}
    return [frame.data for frame in build_answer(dialect, entry, body, 100).frames]


# The server's side, in a process of its own.


async def serve(deltas: int) -> None:
    """
    Serve the streams and print the port.
    """
    app = web.Application()
    for dialect, path in PATHS.items():
        frames = record(dialect, deltas)
        for pace in PACES:
            app.router.add_post(f"/{pace}{path}", make_handler(frames, paced=pace == "paced"))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    say(runner.addresses[0][1])
    await asyncio.Event().wait()


def make_handler(frames: list[bytes], *, paced: bool) -> Any:
    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for piece in frames if paced else [b"".join(frames)]:
            await response.write(piece)
            if paced:
                await asyncio.sleep(GAP_S)
        await response.write_eof()
        return response

    return answer


# What is measured.


async def iterate(session: aiohttp.ClientSession, url: str, body: bytes) -> None:
    """
    The bare client: the bytes, and nothing made of them.
    """
    async with session.post(url, data=body) as response:
        async for _ in response.content.iter_any():
            pass


async def stream(model: Any, request: Request) -> None:
    """
    The adapter: the same bytes as deltas.
    """
    async with aclosing(model.stream(request)) as deltas:
        async for _ in deltas:
            pass


async def measure(rounds: int, settings: ProviderSettings) -> tuple[float, float]:
    """
    CPU seconds for one stream: bare, and in the adapter.
    """
    model: Any = make_model(settings)
    message = Message(id="m", role="user", content=(InputText("Hello"),), origin="client", created_at=0)
    request = Request(session_id="s", provider="p", model="m", blocks=(Block((message,)),))
    body = model.body(request)
    taken: dict[str, list[float]] = {"bare": [], "adapter": []}
    async with aiohttp.ClientSession() as session:
        ways: dict[str, Callable[[], Awaitable[None]]] = {
            "bare": lambda: iterate(session, settings.base_url + PATHS[settings.api], body),
            "adapter": lambda: stream(model, request),
        }
        for number in range(rounds + 3):
            for name in sorted(ways, reverse=bool(number % 2)):
                start = time.process_time()
                await ways[name]()
                if number >= 3:
                    taken[name].append(time.process_time() - start)
    await model.aclose()
    return median(taken["bare"]), median(taken["adapter"])


async def compare(rounds: int, deltas: int, port: str) -> None:
    """
    Measure everything and print a table.
    """
    say(
        "| dialect | transport | arrival | events | bare aiohttp, µs/event | adapter, µs/event | more, µs/event | ratio |"
    )
    say("|---|---|---|---|---|---|---|---|")
    for dialect, transport, pace in product(PATHS, TRANSPORTS, PACES):
        settings = ProviderSettings(
            api=dialect,
            transport=transport,
            base_url=f"http://127.0.0.1:{port}/{pace}",
            model="m",
            api_key_env=None,
            needs_key=False,
        )
        load_adapters(Settings(providers=(settings,)))
        events = len(record(dialect, deltas))
        bare, adapter = (1e6 * taken / events for taken in await measure(rounds, settings))
        say(
            f"| {dialect} | {transport} | {pace} | {events} | {bare:.1f} | {adapter:.1f} | {adapter - bare:.1f} "
            f"| {adapter / bare:.1f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU per upstream event in each adapter.")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--deltas", type=int, default=500)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.deltas))
        return
    command = [sys.executable, __file__, "--serve", "--deltas", str(options.deltas)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            asyncio.run(compare(options.rounds, options.deltas, server.stdout.readline().strip()))
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
