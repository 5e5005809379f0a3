"""
Real inference servers behind our server. They are named by the environment variable AGENT_HARNESS_REAL, which
``scripts/test-real`` sets; without it nothing here is collected.

It is a JSON list of objects: the fields of ``ProviderSettings`` in ``settings``, and ``recalls``, false for a server
that drops the outputs of tools.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

import attrs
import httpx
import pytest

from agent_harness.config import ProviderSettings, Settings
from agent_harness.server import make_app
from agent_harness.testing.threads import ThreadServer
from agent_harness.wiring import load_adapters, open_harness

VARIABLE = "AGENT_HARNESS_REAL"
TIMEOUT_S = 120.0
SERVERS: list[dict[str, Any]] = json.loads(os.environ.get(VARIABLE, "[]"))

collect_ignore_glob = [] if SERVERS else ["test_*.py"]


@attrs.frozen
class RealServer:
    """
    A client of our server, and whether the server behind it shows tool outputs to its model.
    """

    http: httpx.Client
    recalls: bool


@pytest.fixture(scope="session", params=SERVERS, ids=lambda server: server["settings"]["name"])
def server(request: pytest.FixtureRequest) -> Iterator[RealServer]:
    provider = ProviderSettings(**request.param["settings"])
    settings = Settings(providers=(provider,), default_provider=provider.name)
    load_adapters(settings)

    async def make() -> Any:
        return make_app(open_harness(settings))

    with ThreadServer(make) as running, httpx.Client(base_url=running.url, timeout=TIMEOUT_S) as client:
        yield RealServer(client, request.param["recalls"])
