"""
The options of the journey tests.
"""

import pytest

from agent_harness.testing.journey_fixtures import add_options


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)
