"""
The journey tests' options and fixtures. Synchronous, with both servers in threads of their own, so that they run with
no event loop and without the project's ini file; a test folder's conftest re-exports them.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from agent_harness.config import ProviderSettings, Settings
from agent_harness.server import make_app
from agent_harness.testing.journey import JourneySession, open_journey_session, reset_mock_llm
from agent_harness.testing.mock_llm import make_mock_app
from agent_harness.testing.threads import ThreadServer
from agent_harness.wiring import load_adapters, open_harness

__all__ = ["add_options", "http_client", "journey_session", "live_server", "mock_llm_server_url"]


def add_options(parser: pytest.Parser) -> None:
    """
    Register the options, once, however many conftests ask for it.
    """
    group = parser.getgroup("agent-harness")
    if any("--llm-api-key" in option.names() for option in group.options):
        return
    group.addoption("--llm-api-key", help="play the journeys against a real provider, with this key")
    group.addoption("--llm-base-url", default="https://api.openai.com/v1", help="the real provider's base URL")
    group.addoption("--model", default=None, help="the model the journeys use")
    group.addoption(
        "--harness", choices=("responses", "chat"), default="responses", help="the wire dialect the journeys use"
    )


@pytest.fixture(scope="session")
def mock_server(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """
    The mock model server's base URL; None with a real provider.
    """
    if request.config.getoption("--llm-api-key"):
        yield None
        return

    async def make() -> Any:
        return make_mock_app()

    with ThreadServer(make) as server:
        yield server.url


@pytest.fixture
def mock_llm_server_url(mock_server: str | None) -> Iterator[str | None]:
    """
    The mock model server's base URL, its queues empty; None with a real provider.
    """
    reset_mock_llm(mock_server)
    yield mock_server
    reset_mock_llm(mock_server)


@pytest.fixture(scope="session")
def live_server(request: pytest.FixtureRequest, mock_server: str | None) -> Iterator[str]:
    """
    The base URL of a server on a real socket.
    """
    option = request.config.getoption
    provider = ProviderSettings(
        api=option("--harness"),
        base_url=option("--llm-base-url") if mock_server is None else f"{mock_server}/v1",
        api_key=option("--llm-api-key"),
        api_key_env=None,
        needs_key=mock_server is None,
        model=option("--model") or ("gpt-5-mini" if mock_server is None else "mock"),
    )
    settings = Settings(providers=(provider,))
    load_adapters(settings)

    async def make() -> Any:
        return make_app(open_harness(settings))

    with ThreadServer(make) as server:
        yield server.url


@pytest.fixture
def http_client(live_server: str) -> Iterator[Any]:
    """
    An httpx client of the live server.
    """
    import httpx

    with httpx.Client(base_url=live_server, timeout=60) as client:
        yield client


@pytest.fixture
def journey_session(http_client: Any, mock_llm_server_url: str | None) -> Iterator[JourneySession]:
    """
    A session for one journey, deleted afterwards.
    """
    session = open_journey_session(http_client)
    yield session
    http_client.delete(f"/v1/sessions/{session.session_id}")
