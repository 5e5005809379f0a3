"""
A server on a real socket for each test.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agent_harness.config import Limits
from agent_harness.engine.harness import Harness
from agent_harness.llm.scripted import ScriptedModel
from agent_harness.server import make_app
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
