"""
A server on a real socket, and a log as the command line writes it.
"""

import io
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from agent_harness.config import Limits
from agent_harness.engine.harness import Harness
from agent_harness.llm.scripted import ScriptedModel
from agent_harness.logs import setup_logs
from agent_harness.server import Access, make_app
from agent_harness.testing.app_server import AppServer
from tests.support import Api

Serve = Callable[..., Awaitable[Api]]


@pytest.fixture
def serve(aiohttp_client: Any) -> Serve:
    """
    ``await serve(*steps, access=…, limits…)``: a server whose model answers by these steps.
    """

    async def start(*steps: Any, access: Access | None = None, agents: Any = None, **limits: Any) -> Api:
        model = ScriptedModel(steps)
        harness = Harness({"default": model}, agents=agents, limits=Limits(**limits))
        # As the command line serves: aiohttp's own log of paths is off.
        server = AppServer(make_app(harness, access))
        await server.start_server(access_log=None)
        return Api(await aiohttp_client(server), model)

    return start


@pytest.fixture(params=[False, True], ids=["text", "json"])
def log(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """
    All that is logged, in both forms, from DEBUG on and of other libraries too.
    """
    root, ours = logging.getLogger(), logging.getLogger("agent_harness")
    before = root.handlers[:], root.level, ours.level
    stream = io.StringIO()
    setup_logs(request.param, logging.DEBUG, stream)
    root.setLevel(logging.DEBUG)
    yield stream
    root.handlers[:], root.level, level = before
    root.setLevel(before[1])
    ours.setLevel(level)
