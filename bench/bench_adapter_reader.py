"""
Reads the mock model's long streams with the bare aiohttp client and with each adapter, in turn, and prints as JSON what
an event cost of this process's CPU time, in microseconds: for each figure a pair of lists, with one value a round.

    python bench/bench_adapter_reader.py MOCK_URL ROUNDS STREAMS
"""

import asyncio
import json
import sys
import time
from contextlib import aclosing
from statistics import median
from typing import Any

import aiohttp
from bench_adapters import FIGURES
from bench_speak import say

from agent_harness.config import ProviderSettings, Settings
from agent_harness.llm.base import Request
from agent_harness.protocol.blocks import Block
from agent_harness.protocol.items import InputText, Message
from agent_harness.wiring import load_adapters, make_model

PATHS = {"responses": "/responses", "chat": "/chat/completions"}
MESSAGE = Message(id="m", role="user", content=(InputText("Hello"),), origin="client", created_at=0)
REQUEST = Request(session_id="s", provider="p", model="m", blocks=(Block((MESSAGE,)),))


class Readers:
    """
    One adapter, and the bare client, at the same model server.
    """

    def __init__(self, settings: ProviderSettings, http: aiohttp.ClientSession) -> None:
        self.http, self.url = http, settings.base_url + PATHS[settings.api]
        self.model: Any = make_model(settings)
        self.body: bytes = self.model.body(REQUEST)

    async def count(self) -> int:
        """
        How many events a stream has; the connections are there then.
        """
        await self.adapt()
        async with self.http.post(self.url, data=self.body) as response:
            return (await response.read()).count(b"\n\n")

    async def iterate(self) -> None:
        """
        The bare client: the bytes, and nothing made of them.
        """
        async with self.http.post(self.url, data=self.body) as response:
            async for _ in response.content.iter_any():
                pass

    async def adapt(self) -> None:
        """
        The adapter: the same bytes as deltas.
        """
        async with aclosing(self.model.stream(REQUEST)) as deltas:
            async for _ in deltas:
                pass

    async def measure(self, rounds: int, streams: int) -> tuple[list[float], list[float]]:
        """
        Microseconds for an event, bare and in the adapter: the median of so many *streams*, round by round.
        """
        events = await self.count()
        bare: list[float] = []
        adapted: list[float] = []
        for _ in range(rounds):
            for taken, read in ((bare, self.iterate), (adapted, self.adapt)):
                costs: list[float] = []
                for _ in range(streams):
                    start = time.process_time()
                    await read()
                    costs.append(1e6 * (time.process_time() - start) / events)
                taken.append(median(costs))
        return bare, adapted


async def read_all(mock: str, rounds: int, streams: int) -> list[tuple[list[float], list[float]]]:
    """
    All of `FIGURES`.
    """
    figures: list[tuple[list[float], list[float]]] = []
    async with aiohttp.ClientSession() as http:
        for dialect, transport, arrival in FIGURES:
            settings = ProviderSettings(
                api=dialect, transport=transport, base_url=f"{mock}/{arrival}/long", model="m", api_key_env=None,
                needs_key=False,
            )  # fmt: skip
            load_adapters(Settings(providers=(settings,)))
            readers = Readers(settings, http)
            figures.append(await readers.measure(rounds, streams))
            await readers.model.aclose()
    return figures


if __name__ == "__main__":
    say(json.dumps(asyncio.run(read_all(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))
