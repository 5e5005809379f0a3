"""
The options of the journey tests, and what all tests share.
"""

from collections.abc import Generator, Iterator

import pytest

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
