from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import aiohttp
import openai
import pytest
from aiohttp import web

from agent_harness.testing.mock_llm import make_mock_app
from tests.testing.mock_client import Mock


@pytest.fixture
async def mock(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Mock]:
    runner = web.AppRunner(make_mock_app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as client:
        yield Mock(url, client)
    await asyncio.wait_for(runner.cleanup(), 5)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.fixture
async def sdk(mock: Mock) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{mock.url}/v1", api_key="k", max_retries=0, timeout=5) as client:
        yield client
