"""
A server on a real socket for each test.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Literal

import pytest
from aiohttp import web

from agent_harness.config import Limits
from agent_harness.engine.harness import Harness
from agent_harness.llm.scripted import ScriptedModel
from agent_harness.server import make_app
from tests.server.raw import Server, Start
from tests.support import Api


@pytest.fixture
def serve(aiohttp_client: Any) -> Callable[..., Awaitable[Api]]:
    """
    ``await serve(*steps, limits…)``: a server whose model answers by these steps.
    """

    async def start(*steps: Any, models: Any = None, **limits: Any) -> Api:
        model = ScriptedModel(steps)
        harness = Harness({"default": model, **(models or {})}, limits=Limits(**limits))
        return Api(await aiohttp_client(make_app(harness)), model)

    return start


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """
    ``await start(*steps, limits…)``: a server for bytes that are no HTTP; it waits only shortly for the rest of a body.
    """
    runners = []

    async def start_one(*steps: Any, **limits: Any) -> Server:
        model = ScriptedModel(steps)
        harness = Harness({"default": model}, limits=Limits(**limits))
        runner = web.AppRunner(make_app(harness), access_log=None, shutdown_timeout=1, lingering_time=0.1)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return Server(runner, harness, await harness.create_session(), model)

    yield start_one
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
def no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """
    Fails a test in which the server found a fault in itself.
    """
    caplog.set_level(logging.DEBUG, "agent_harness")
    yield
    whens: tuple[Literal["setup", "call", "teardown"], ...] = ("setup", "call", "teardown")
    for when in whens:
        for record in caplog.get_records(when):
            assert record.levelno < logging.ERROR and not record.exc_info, record.getMessage()
