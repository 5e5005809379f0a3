"""
A server on a real socket, clients of it, and servers that say what a test tells them.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import attrs
import pytest
from aiohttp import web

from agent_harness.client import Client
from agent_harness.config import Limits
from agent_harness.engine.harness import Harness
from agent_harness.llm.scripted import ScriptedModel
from agent_harness.server import make_app

QUICK = {"retry_base_s": 0.001, "retry_cap_s": 0.01, "patience_s": 5.0}
"""Retries that no test waits for."""


@attrs.define
class Served:
    """
    A server, its model, and a client of it.
    """

    url: str
    port: int
    harness: Harness
    model: ScriptedModel
    client: Client


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., Client]]:
    """
    ``connect(url, …)``: a client that is closed after the test, and leaves no task behind.
    """
    before = asyncio.all_tasks()
    clients: list[Client] = []

    def open_client(url: str, **options: Any) -> Client:
        clients.append(Client(url, **{**QUICK, **options}))
        return clients[-1]

    yield open_client
    async with asyncio.timeout(5):
        for client in clients:
            await client.aclose()
    left = [task for task in asyncio.all_tasks() - before if "agent_harness/client" in str(task.get_coro())]
    assert not left


@pytest.fixture
def serve(aiohttp_server: Any, connect: Callable[..., Client]) -> Callable[..., Awaitable[Served]]:
    """
    ``await serve(*steps, limits…)``: a server whose model answers by these steps, and a client of it.
    """

    async def start(*steps: Any, middleware: Any = None, **limits: Any) -> Served:
        model = ScriptedModel(steps)
        harness = Harness({"default": model}, limits=Limits(**limits))
        app = make_app(harness)
        if middleware is not None:
            app.middlewares.append(middleware)
        server = await aiohttp_server(app)
        url = str(server.make_url("")).rstrip("/")
        return Served(url, server.port, harness, model, connect(url))

    return start


@pytest.fixture
def pretend(aiohttp_server: Any, connect: Callable[..., Client]) -> Callable[..., Awaitable[Client]]:
    """
    ``await pretend(handler)``: a client of a server that answers whatever is asked by *handler*.
    """

    async def start(handler: Callable[[web.Request], Awaitable[web.StreamResponse]], **options: Any) -> Client:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        server = await aiohttp_server(app)
        return connect(str(server.make_url("")).rstrip("/"), **options)

    return start
