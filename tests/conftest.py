"""
The options of the journey tests, and what all tests share.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient

from agent_harness.testing.app_server import AppServer
from agent_harness.testing.journey_fixtures import add_options
from tests.ports import hold_port


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """
    What was logged may hold lone surrogates, which pytest-xdist cannot send to the process that reports.
    """
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture
def unused_tcp_port() -> Iterator[int]:
    """
    In the place of pytest-asyncio's: this one stays unused until the test uses it.
    """
    with hold_port() as port:
        yield port


@pytest.fixture
def aiohttp_client(aiohttp_client: Any) -> Callable[..., Awaitable[TestClient[Any, Any]]]:
    """
    In the place of pytest-aiohttp's: the server is configured as the product's.
    """

    async def start(served: web.Application | AppServer) -> TestClient[Any, Any]:
        client: TestClient[Any, Any] = await aiohttp_client(
            AppServer(served) if isinstance(served, web.Application) else served
        )
        return client

    return start


@pytest.fixture
async def aiohttp_server() -> AsyncIterator[Callable[[web.Application], Awaitable[AppServer]]]:
    """
    The same without a client.
    """
    async with AsyncExitStack() as stack:

        async def start(app: web.Application) -> AppServer:
            server = AppServer(app)
            await stack.enter_async_context(server)
            return server

        yield start
