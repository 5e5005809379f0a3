"""
The test server is configured as the product's server is.
"""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from agent_harness.testing.app_server import AppServer
from tests.sockets import get, reset, see_gone
from tests.support import WAIT_S


@pytest.mark.parametrize("cancels", [False, True])
async def test_the_handler_of_a_client_that_left_goes_on_unless_the_server_is_told_to_cancel_it(cancels: bool) -> None:
    begun, go_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    ends: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        begun.set()
        try:
            await go_on.wait()
            ends.append("went on")
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise
        finally:
            ended.set()
        return web.Response()

    app = web.Application()
    app.router.add_get("/", handle)
    options = {"handler_cancellation": True} if cancels else {}
    async with asyncio.timeout(WAIT_S), AppServer(app, **options) as server:
        assert server.port is not None
        client = await get(server.port, "/")
        port = client.getsockname()[1]
        await begun.wait()
        reset(client)
        await see_gone(server, port)
        if not cancels:
            go_on.set()
        await ended.wait()
    assert ends == ["cancelled" if cancels else "went on"]


async def test_the_servers_of_this_suite_cancel_no_handlers(aiohttp_client: Any, aiohttp_server: Any) -> None:
    servers = [(await aiohttp_client(web.Application())).server, await aiohttp_server(web.Application())]
    assert [server.handler.handler_cancellation for server in servers] == [False, False]
