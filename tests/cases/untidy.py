"""
A program that plays turns which end in every way, and stops while some still run. Run by `test_embedding`, in Python's
development mode.
"""

import asyncio
import gc
import sys
from typing import Any

import aiohttp
from aiohttp import web

from agent_harness.config import ProviderSettings, Settings
from agent_harness.server import make_app
from agent_harness.testing.mock_llm import make_mock_app
from agent_harness.wiring import open_harness

LOOK = {"type": "function", "name": "look"}
CALL = {"tool_calls": [{"call_id": "c1", "name": "look", "arguments": "{}"}]}
TURNS: list[list[dict[str, Any]]] = [
    [CALL, {"text": "done"}],
    [{"text": "half", "disconnect_after": 2}],
    [{"text": "long", "block": 2}],
    [{"text": "cut", "finish": "length"}],
]


async def main(dialect: Any) -> None:
    await play(dialect)
    gc.collect()
    # What the application holds does not go, and so does not warn: aiohttp remembers applications.
    held = [each for each in gc.get_objects() if isinstance(each, aiohttp.ClientSession) and not each.closed]
    assert not held, f"Unclosed client sessions: {held}"


async def play(dialect: Any) -> None:
    # How long a step takes depends on what else the machine does, and is not what is looked at here.
    asyncio.get_running_loop().slow_callback_duration = 60.0
    mock = web.AppRunner(make_mock_app(), access_log=None, shutdown_timeout=1.0)
    await mock.setup()
    await web.TCPSite(mock, "127.0.0.1", 0).start()
    mock_url = "http://{}:{}".format(*mock.addresses[0][:2])
    provider = ProviderSettings(
        name="p",
        api=dialect,
        base_url=f"{mock_url}/v1",
        api_key_env=None,
        needs_key=False,
        model="mock",
        max_retries=0,
        idle_timeout_s=5.0,
    )
    server = web.AppRunner(
        make_app(open_harness(Settings(providers=(provider,), default_provider="p"))),
        access_log=None,
        shutdown_timeout=1.0,
    )
    await server.setup()
    await web.TCPSite(server, "127.0.0.1", 0).start()
    url = "http://{}:{}/v1/sessions".format(*server.addresses[0][:2])
    ended = []
    async with asyncio.timeout(20), aiohttp.ClientSession() as client:

        async def ask(method: str, where: str, body: Any = None) -> Any:
            async with client.request(method, where, json=body) as answer:
                return await answer.json()

        async def open_turn(entries: list[dict[str, Any]]) -> tuple[str, Any]:
            await ask("POST", f"{mock_url}/mock/configure", {"responses": entries})
            # Its call times out: nobody answers it.
            session = await ask("POST", url, {"agent": {"tools": [LOOK], "tool_timeout_s": 0.05}})
            where = f"{url}/{session['id']}"
            message = {"type": "message", "data": {"role": "user", "content": "go"}}
            return where, await ask("POST", f"{where}/events", message)

        for entries in TURNS:
            where, sent = await open_turn(entries)
            if "block" in entries[0]:
                await ask("GET", f"{mock_url}/gate/pending?wait=1")
                await ask("POST", f"{where}/events", {"type": "interrupt", "data": {}})
            async with client.get(f"{where}/stream?after=0&until=idle") as stream:
                await stream.read()
            ended.append((await ask("GET", f"{where}/responses/{sent['response_id']}"))["status"])
        # What still runs when the server stops: a turn whose model is silent, with a follower that has not left.
        where, _ = await open_turn([{"text": "never", "block": True}])
        await ask("GET", f"{mock_url}/gate/pending?wait=1")
        follower = await client.get(f"{where}/stream")
        await server.cleanup()
        await follower.read()
        await mock.cleanup()
    sys.stdout.write(" ".join(ended) + "\n")
