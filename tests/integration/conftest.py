"""
The session a journey is played in. This file is also a plugin by itself (``-p tests.integration.conftest``).
"""

import pytest

from agent_harness.testing.journey import JourneySession
from agent_harness.testing.journey_fixtures import (
    add_options,
    http_client,
    journey_session,
    live_server,
    mock_llm_server_url,
    mock_server,
)

__all__ = ["JourneySession", "http_client", "journey_session", "live_server", "mock_llm_server_url", "mock_server"]


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)
