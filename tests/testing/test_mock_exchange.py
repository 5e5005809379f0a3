"""
Parking, delays, cuts, raw frames and clients that leave: the mock model server's hold on its connections.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from agent_harness.testing.mock_llm import make_mock_app, serve_mock
from tests.testing.mock_client import Mock, join_text, read_events, read_until_broken, soon

BOTH = pytest.mark.parametrize("dialect", ["responses", "chat"])


@BOTH
async def test_a_blocked_request_gets_no_byte_before_its_release(mock: Mock, dialect: str) -> None:
    await mock.script({"text": "a", "block": True}, {"error": "late", "block": True}, {"text": "c", "block": True})
    asked = [asyncio.create_task(mock.ask(dialect, stream=True)) for _ in range(3)]
    assert await soon(mock.get("/gate/pending?wait=3")) == {"pending": 3}
    assert [held["status"] for held in await mock.captured()] == [None] * 3
    assert not any(task.done() for task in asked)
    assert await mock.post("/gate/release", {"count": 1}) == {"released": 1, "pending": 2}
    await soon(asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED))
    assert await mock.post("/gate/release") == {"released": 2, "pending": 0}
    assert sorted(status for status, _ in await soon(asyncio.gather(*asked))) == [200, 200, 500]


@BOTH
async def test_a_number_blocks_after_that_many_frames(mock: Mock, dialect: str) -> None:
    await mock.script({"text": "one two", "block": 2})
    async with mock.open(dialect) as response:
        await soon(mock.get("/gate/pending?wait=1"))
        raw = await soon(response.content.readuntil(b"\n\n")) + await soon(response.content.readuntil(b"\n\n"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(response.content.readany(), 0.05)
        await mock.post("/gate/release")
        raw += await soon(response.content.read())
    assert join_text(dialect, read_events(raw.decode())) == "one two"


@BOTH
async def test_an_answer_that_is_not_streamed_can_be_blocked_too(mock: Mock, dialect: str) -> None:
    await mock.script({"text": "a", "block": 3})
    asked = asyncio.create_task(mock.ask(dialect))
    await soon(mock.get("/gate/pending?wait=1"))
    await mock.post("/gate/release")
    assert (await soon(asked))[0] == 200


async def test_a_raw_stream_can_be_held_open_after_its_last_frame(mock: Mock) -> None:
    await mock.script({"raw": [": hb\n\n"], "block": 1})
    async with mock.open("chat") as response:
        assert await soon(response.content.readuntil(b"\n\n")) == b": hb\n\n"
        await soon(mock.get("/gate/pending?wait=1"))
        assert not response.content.at_eof()
        await mock.post("/gate/release")
        assert await soon(response.content.read()) == b""


@pytest.mark.parametrize("block", [True, 2])
async def test_a_parked_request_whose_client_goes_is_dropped_and_counted(mock: Mock, block: Any) -> None:
    await mock.script({"text": "a", "block": block}, {"text": "b"})
    leaving = asyncio.create_task(mock.ask("responses", stream=True))
    await soon(mock.get("/gate/pending?wait=1"))
    assert (await mock.get("/stats"))["open"] == 1
    leaving.cancel()
    assert await soon(mock.get("/gate/pending?wait=0")) == {"pending": 0}
    stats = await soon(mock.get("/stats?open=0&disconnects=1"))
    assert stats == {"requests": {"/v1/responses": 1}, "open": 0, "disconnects": 1, "pending": 0}
    assert await mock.post("/gate/release") == {"released": 0, "pending": 0}
    assert (await mock.ask("responses"))[0] == 200
    assert (await mock.get("/stats"))["disconnects"] == 1


async def test_a_client_that_leaves_a_slow_stream_is_noticed_at_once(mock: Mock) -> None:
    await mock.script({"text": "a b c", "delay_s": 60})
    async with mock.open("responses") as response:
        await soon(response.content.readuntil(b"\n\n"))
    # Long before the next delta.
    stats = await soon(mock.get("/stats?disconnects=1"))
    assert (stats["open"], stats["disconnects"]) == (0, 1)


@BOTH
async def test_a_delay_passes_before_each_delta(mock: Mock, dialect: str) -> None:
    await mock.script({"deltas": ["a", "b", "c"], "delay_s": 0.02})
    started = time.monotonic()
    assert join_text(dialect, (await mock.ask(dialect, stream=True))[1]) == "abc"
    assert time.monotonic() - started >= 0.06


@BOTH
@pytest.mark.parametrize("count", [0, 1, 3])
async def test_the_connection_is_cut_after_as_many_frames_as_told(mock: Mock, dialect: str, count: int) -> None:
    await mock.script({"text": "one two three", "disconnect_after": count})
    async with mock.open(dialect) as response:
        raw = await soon(read_until_broken(response.content))
    assert len(read_events(raw.decode())) == count
    assert (await soon(mock.get("/stats?open=0")))["disconnects"] == 0
    assert [held["status"] for held in await mock.captured()] == [200]


@BOTH
async def test_the_connection_can_be_cut_before_any_answer(mock: Mock, dialect: str) -> None:
    await mock.script({"text": "a", "disconnect_after": -1}, {"text": "a", "disconnect_after": 5}, {"text": "c"})
    for stream in (True, False):
        with pytest.raises(aiohttp.ClientConnectionError):
            await mock.ask(dialect, stream=stream)
    assert [held["status"] for held in await mock.captured()] == [None, None]
    assert (await mock.ask(dialect))[0] == 200


@BOTH
async def test_raw_frames_are_sent_as_they_are(mock: Mock, dialect: str) -> None:
    html = {"raw": ["<h1>no</h1>"], "status_code": 502, "headers": {"Content-Type": "text/html"}}
    await mock.script({"raw": ["data: {", "\n\n: \ud83d", {"hex": "ff00"}]}, html, {"raw": []})
    async with mock.open(dialect) as response:
        assert response.content_type == "text/event-stream"
        assert await response.read() == b"data: {\n\n: \xed\xa0\xbd\xff\x00"
    async with mock.open(dialect) as response:
        assert (response.status, response.content_type, await response.text()) == (502, "text/html", "<h1>no</h1>")
    async with mock.open(dialect) as response:
        assert await response.read() == b""


async def test_shutdown_waits_for_no_parked_and_no_slow_request() -> None:
    runner = web.AppRunner(make_mock_app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as client:
        mock = Mock(f"http://127.0.0.1:{runner.addresses[0][1]}", client)
        await mock.script({"block": True}, {"text": "a b", "delay_s": 60})
        parked = asyncio.create_task(mock.ask("chat"))
        await soon(mock.get("/gate/pending?wait=1"))
        slow = asyncio.create_task(mock.ask("chat", stream=True))
        await soon(mock.get("/stats?open=2"))
        await soon(runner.cleanup())
        for task in (parked, slow):
            with pytest.raises(aiohttp.ClientError):
                await soon(task)


async def test_serve_mock_serves_until_cancelled() -> None:
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_mock("127.0.0.1", 0, on_listening=listening.set_result))
    url = await soon(listening)
    async with aiohttp.ClientSession() as client, client.get(f"{url}/v1/models") as response:
        assert response.status == 200
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(serving)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
