"""
A server in a thread of its own, as synchronous tests use it.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest
from aiohttp import web

from agent_harness.testing.mock_llm import make_mock_app
from agent_harness.testing.threads import ThreadServer
from tests.testing.mock_client import make_body


async def make_mock() -> web.Application:
    return make_mock_app()


@pytest.fixture
def thread_url() -> Iterator[str]:
    with ThreadServer(make_mock) as server:
        yield server.url


def test_a_synchronous_test_uses_a_server_in_a_thread(thread_url: str) -> None:
    with httpx.Client(base_url=thread_url, timeout=5) as client:
        client.post("/mock/configure", json={"responses": [{"text": "hello"}]}).raise_for_status()
        body = client.post("/v1/responses", json=make_body("responses", "hi")).json()
    assert body["output"][0]["content"][0]["text"] == "hello"


def test_a_thread_server_ends_with_its_tasks_loop_and_thread_even_while_a_request_is_parked() -> None:
    cancelled = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    tasks: list[asyncio.Task[None]] = []

    async def linger() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def make() -> web.Application:
        loops.append(asyncio.get_running_loop())
        tasks.append(asyncio.create_task(linger()))
        return make_mock_app()

    before = set(threading.enumerate())
    with ThreadServer(make) as server, httpx.Client(base_url=server.url, timeout=5) as client:
        client.post("/mock/configure", json={"responses": [{"block": True}]})
        asking = threading.Thread(target=ask_in_vain, args=(server.url,))
        asking.start()
        assert client.get("/gate/pending?wait=1").json() == {"pending": 1}
    asking.join(5)
    assert cancelled.is_set()
    assert loops[0].is_closed()
    assert set(threading.enumerate()) <= before
    gc.collect()
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)


def ask_in_vain(url: str) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.post(f"{url}/v1/responses", json=make_body("responses", "hi"), timeout=5)


def test_a_failure_to_start_is_raised_where_the_server_was_wanted() -> None:
    async def fail() -> web.Application:
        raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        ThreadServer(fail).__enter__()


def test_a_port_in_use_is_raised_where_the_server_was_wanted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(OSError, match="address already in use"):
            ThreadServer(make_mock, port=taken.getsockname()[1]).__enter__()
    gc.collect()


def test_a_failing_cleanup_is_raised_at_the_end() -> None:
    async def make() -> web.Application:
        app = make_mock_app()

        async def fail(app: web.Application) -> None:
            raise LookupError("cleanup")

        app.on_cleanup.append(fail)
        return app

    server = ThreadServer(make)
    server.__enter__()
    with pytest.raises(LookupError, match="cleanup"):
        server.__exit__(None, None, None)
