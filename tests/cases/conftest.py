"""
The servers of a case.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from agent_harness.config import Limits, ProviderSettings, Settings
from agent_harness.llm.scripted import ScriptedModel
from agent_harness.server import make_app
from agent_harness.testing.mock_llm import make_mock_app
from agent_harness.testing.strict import Dialect
from agent_harness.wiring import open_harness
from tests.cases.rig import TOOLS, Case, Clock
from tests.support import Api


@pytest.fixture
def play(aiohttp_client: Any) -> Callable[..., Awaitable[Case]]:
    """
    ``await play(dialect, *entries, provider={…}, agent={…}, strict={…}, middleware=…, limits…)``: a new session whose
    model answers by these entries of the mock model server. Both servers are real, and so is everything between them.
    """

    async def start(
        dialect: Dialect,
        *entries: dict[str, Any],
        provider: Mapping[str, Any] | None = None,
        agent: Mapping[str, Any] | None = None,
        strict: Mapping[str, bool] | None = None,
        middleware: Any = None,
        **limits: Any,
    ) -> Case:
        mock = await aiohttp_client(make_mock_app())
        fields = {"max_retries": 1, "retry_base_s": 0.0, "idle_timeout_s": 5.0, **(provider or {})}
        settings = ProviderSettings(
            name=dialect,
            api=dialect,
            base_url=str(mock.make_url("/v1")),
            api_key_env=None,
            needs_key=False,
            model="mock",
            **fields,
        )
        harness = open_harness(Settings(providers=(settings,), default_provider=dialect, limits=Limits(**limits)))
        app = make_app(harness)
        if middleware is not None:
            app.middlewares.append(middleware)
        api = Api(await aiohttp_client(app), ScriptedModel(()))
        case = Case(api, (await api.create(agent={"tools": TOOLS, **(agent or {})}))["id"])
        case.dialect, case.mock = dialect, mock
        await case.script(*entries, strict=strict)
        case.stream = await case.follow(after=0)
        await case.stream.next()
        return case

    return start


@pytest.fixture
async def clock() -> Clock:
    """
    The test's clock, which can be put forward.
    """
    return Clock(asyncio.get_running_loop())
