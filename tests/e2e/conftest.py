"""
The names that journeys import; what they do is in ``agent_harness.testing``.
"""

from agent_harness.testing.journey import (
    configure_mock_llm,
    get_mock_requests,
    poll_session_until_terminal,
    release_mock_gate,
    reset_mock_llm,
    send_user_message_to_session,
    set_fallback_mock_llm,
)
from agent_harness.testing.journey_fixtures import http_client, live_server, mock_llm_server_url, mock_server

__all__ = [
    "configure_mock_llm",
    "get_mock_requests",
    "http_client",
    "live_server",
    "mock_llm_server_url",
    "mock_server",
    "poll_session_until_terminal",
    "release_mock_gate",
    "reset_mock_llm",
    "send_user_message_to_session",
    "set_fallback_mock_llm",
]
