"""
The pytest plugin: fixtures for testing agents. Loading it loads nothing but pytest; each fixture imports what it needs.

``mock_llm`` is a model server with a script, ``harness`` a harness in process that asks it, ``harness_client`` an
aiohttp test client of that harness, ``harness_server`` a server in a thread of its own, ``scripted_model`` a model
without a server. All are per test; `agent_harness.testing.fixtures` has the parts for other scopes.

A test whose script did not fit fails, and says which step or request it was: at its end, or as an error afterwards if
the request came only then.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from aiohttp.test_utils import TestClient

    from agent_harness.engine.harness import Harness
    from agent_harness.llm.scripted import ScriptedModel
    from agent_harness.testing.fixtures import HarnessServer
    from agent_harness.testing.mock_object import MockLLM


class Scripted(Protocol):
    """
    What is watched.
    """

    def problems(self) -> list[str]: ...


class Watch:
    """
    A script that a test must use up. ``told`` is what its end has found, None before.
    """

    def __init__(self, scripted: Scripted) -> None:
        self._scripted = scripted
        self.told: list[str] | None = None

    def look(self) -> list[str]:
        """
        What does not fit and was not told before.
        """
        found = [line for line in self._scripted.problems() if line not in (self.told or ())]
        self.told = [*(self.told or ()), *found]
        return found


WATCHED: pytest.StashKey[list[Watch]] = pytest.StashKey()


def watch(request: pytest.FixtureRequest, scripted: Scripted) -> Callable[[], None]:
    """
    Fail the test if *scripted* does not fit. What comes back is called when nothing can come any more.
    """
    watched = Watch(scripted)
    request.node.stash.setdefault(WATCHED, []).append(watched)

    def finish() -> None:
        # A test that was never run has used nothing up.
        late = watched.look() if watched.told is not None else []
        if late:
            pytest.fail("\n".join(["after the end of the test:", *late]), pytrace=False)

    return finish


def pass_proxies(patch: pytest.MonkeyPatch) -> None:
    """
    The mock server is on this machine, which a proxy does not know.
    """
    names = {name.lower() for name, value in os.environ.items() if value}
    if names & {"http_proxy", "all_proxy"}:
        spared = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        for name in ("no_proxy", "NO_PROXY"):
            patch.setenv(name, ",".join(filter(None, (spared, "127.0.0.1"))))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """
    At a test's end its scripts are used up. One that failed by itself shows in its report what did not fit.
    """
    watched = item.stash.get(WATCHED, [])
    try:
        result = yield
    except BaseException:
        found = [line for one in watched for line in one.look()]
        if found:
            item.add_report_section("call", "script", "\n".join(found))
        raise
    found = [line for one in watched for line in one.look()]
    if found:
        pytest.fail("\n".join(["the test's script does not fit:", *found]), pytrace=False)
    return result


@pytest.fixture
def mock_llm(request: pytest.FixtureRequest) -> Iterator[MockLLM]:
    """
    A strict model server on a real socket, with a script: ``mock_llm.reply("hello")``, ``.call("name", {…})``,
    ``.fail(429)``, ``.block()``; ``.requests`` is what it was asked.
    """
    from agent_harness.testing.mock_object import MockLLM

    mock = MockLLM()
    mock.start()
    finish = watch(request, mock)
    with pytest.MonkeyPatch.context() as patch:
        pass_proxies(patch)
        try:
            yield mock
        finally:
            mock.stop()
    finish()


@pytest.fixture
def scripted_model(request: pytest.FixtureRequest) -> Iterator[ScriptedModel]:
    """
    A model in process; its ``steps`` are filled with what `agent_harness.llm.scripted` makes. The provider ``scripted``
    of ``harness``.
    """
    from agent_harness.testing.fixtures import CheckedModel

    model = CheckedModel()
    finish = watch(request, model)
    yield model
    finish()


@pytest.fixture
def harness_server(mock_llm: MockLLM) -> Iterator[HarnessServer]:
    """
    A server in a thread of its own, asking ``mock_llm``; ``harness_server.url`` is where it is.
    """
    from agent_harness.testing.fixtures import serve_harness

    with serve_harness(mock_llm.settings()) as server:
        yield server


async def harness(mock_llm: MockLLM, scripted_model: ScriptedModel) -> AsyncIterator[Harness]:
    """
    A harness in the test's own loop; its default provider is ``mock_llm``, over HTTP, another one ``scripted``.
    """
    from agent_harness.testing.fixtures import make_harness

    async with make_harness(mock_llm, scripted_model) as made:
        yield made


async def harness_client(harness: Harness) -> AsyncIterator[TestClient[Any, Any]]:
    """
    An aiohttp test client of ``harness``, served in the test's own loop. Needs no pytest-aiohttp.
    """
    from aiohttp.test_utils import TestClient

    from agent_harness.server import make_app
    from agent_harness.testing.app_server import AppServer

    async with TestClient(AppServer(make_app(harness))) as client:
        yield client


def pytest_configure(config: pytest.Config) -> None:
    """
    In its strict mode pytest-asyncio takes only fixtures of its own making. Without it (anyio has a plugin too) plain
    ones do.
    """
    fixture: Callable[..., Any] = pytest.fixture
    if config.pluginmanager.hasplugin("asyncio"):
        import pytest_asyncio

        fixture = pytest_asyncio.fixture
    fixtures = ModuleType("agent_harness_async_fixtures")
    fixtures.__dict__.update({function.__name__: fixture(function) for function in (harness, harness_client)})
    config.pluginmanager.register(fixtures, fixtures.__name__)
