"""
The server inside another aiohttp application.
"""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from agent_harness.engine.harness import Harness
from agent_harness.llm.scripted import ScriptedModel, say
from agent_harness.server import HARNESS, init_app, make_app
from tests.support import WAIT_S, Stream, types, user


async def test_an_application_serves_the_harness_below_a_prefix_beside_its_own_routes(aiohttp_client: Any) -> None:
    """
    B165: as a sub-application under a prefix.
    """
    seen: list[str] = []

    @web.middleware
    async def watch(request: web.Request, handler: Any) -> web.StreamResponse:
        seen.append(request.path)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def hello(request: web.Request) -> web.Response:
        return web.Response(text=f"{len(request.app[HARNESS])} sessions")

    app = web.Application(middlewares=[watch])
    app.router.add_get("/hello", hello)
    harness = Harness({"default": ScriptedModel([say("hi")])})
    init_app(app, harness)
    client = await aiohttp_client(app)

    async with client.post("/agents-backend/v1/sessions", json={}) as answer:
        session = await answer.json()
    path = f"/agents-backend/v1/sessions/{session['id']}"
    async with client.post(f"{path}/events?stream=true", json=user("hi")) as answer:
        told = types(await Stream(answer).rest())
    assert told[-3:] == ["response.completed", "session.status idle", "[DONE]"]
    async with client.get("/hello") as answer:
        assert await answer.text() == "1 sessions"
    async with client.get("/nothing") as answer:
        assert (answer.status, answer.content_type) == (404, "text/plain")
    async with client.get("/agents-backend/nothing") as answer:
        assert (await answer.json())["error"]["code"] == "unknown_path"
    assert seen[:2] == ["/agents-backend/v1/sessions", f"{path}/events"]


async def test_the_host_going_down_ends_the_streams_and_closes_the_harness(aiohttp_client: Any) -> None:
    app = web.Application()
    harness = Harness({"default": ScriptedModel()})
    init_app(app, harness, prefix="/api")
    client = await aiohttp_client(app)
    async with client.post("/api/v1/sessions", json={}) as answer:
        session = await answer.json()
    async with client.get(f"/api/v1/sessions/{session['id']}/stream") as answer:
        stream = Stream(answer)
        await stream.next()
        closing = asyncio.create_task(client.server.close())
        assert types(await stream.rest()) == ["[DONE]"]
        async with asyncio.timeout(WAIT_S):
            await closing
    assert harness.closed


async def test_a_server_starts_twice_in_one_loop_on_a_port_of_its_own() -> None:
    """
    B165: AppRunner and TCPSite inside a running loop, twice, each with its real port.
    """
    ports = []
    for _ in range(2):
        runner = web.AppRunner(make_app(Harness({"default": ScriptedModel()})))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ports.append(runner.addresses[0][1])
        async with asyncio.timeout(WAIT_S):
            await runner.cleanup()
    assert all(ports)


@pytest.mark.parametrize("prefix", ["", "/", "//", "agents", "agents/"])
def test_a_prefix_that_is_none_is_refused_and_leaves_the_application_alone(prefix: str) -> None:
    app = web.Application()
    with pytest.raises(ValueError, match="make_app serves at the root"):
        init_app(app, Harness({}), prefix=prefix)
    assert HARNESS not in app and not list(app.router.resources())
    init_app(app, Harness({}), prefix="/agents/")


def test_a_second_harness_is_refused_and_told_another_way() -> None:
    app, first, second = web.Application(), Harness({}), Harness({})
    init_app(app, first)
    with pytest.raises(ValueError, match="serves a harness already"):
        init_app(app, second, prefix="/other")
    assert app[HARNESS] is first
    app.add_subapp("/other", make_app(second))
    with pytest.raises(ValueError, match="serves a harness already"):
        init_app(make_app(Harness({})), second)
