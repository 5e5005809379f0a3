"""
What a stream costs, counted: writes, tasks and timers, and what is written while a reader is slow.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest

from agent_harness.llm.scripted import say
from agent_harness.protocol import events as said
from agent_harness.protocol.sse import FrameReader
from tests.server.raw import JSON, MESSAGE, Server, Start, plain, read_all, status_of
from tests.support import WAIT_S

LAST_CHUNK = b"\r\n0\r\n\r\n"

TURNS = 5
"""Turns of the event loop that more than suffice for what is ready to be done."""


@attrs.define
class Line:
    """
    A connection, seen from both sides: what the server wrote, write by write, and what the client reads.
    """

    server: Server
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    transport: Any
    writes: list[bytes] = attrs.field(factory=list)
    slow_writes: list[bytes] = attrs.field(factory=list)
    """Those that were made while the client had yet to read much."""
    connection: Any = None

    @property
    def is_slow(self) -> bool:
        """
        Whether the client has yet to read much.
        """
        return bool(self.connection.writing_paused)

    async def written(self, wanted: bytes) -> None:
        """
        Wait until the server has written *wanted*.
        """
        await until(lambda: wanted in b"".join(self.writes))

    async def read_until(self, wanted: bytes) -> None:
        """
        Read, as the client, until *wanted* came.
        """
        read = b""
        async with asyncio.timeout(WAIT_S):
            while wanted not in read:
                read = read[-len(wanted) :] + await self.reader.read(1 << 16)

    async def follow(self, query: str = "") -> None:
        """
        Follow the session, and forget the beginning.
        """
        self.writer.write(plain("GET", f"/v1/sessions/{self.server.session.id}/stream{query}"))
        await self.written(b"\n\n\r\n")
        await turns()
        self.writes.clear()


@asynccontextmanager
async def dial(server: Server) -> AsyncIterator[Line]:
    """
    Connect to *server* and watch its side of the connection.
    """
    assert server.runner.server is not None
    before = set(server.runner.server.connections)
    async with server.connect() as (reader, writer):
        await until(lambda: len(server.runner.server.connections) > len(before))
        (connection,) = set(server.runner.server.connections) - before
        transport: Any = connection.transport
        line = Line(server, reader, writer, transport, connection=connection)
        write = transport.write

        def record(data: bytes) -> None:
            line.writes.append(bytes(data))
            if line.is_slow:
                line.slow_writes.append(bytes(data))
            write(data)

        transport.write = record
        yield line


def publish(server: Server, *pieces: str) -> None:
    """
    Publish pieces of text, each as an event, in one step.
    """
    for piece in pieces:
        server.session.feed.publish(said.TextDelta("resp_1", "msg_1", 0, 0, piece))


async def turns(count: int = TURNS) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            if is_so():
                return
            await asyncio.sleep(0)


async def test_the_head_and_the_first_frame_are_one_write(start: Start) -> None:
    server = await start()
    async with dial(server) as line:
        line.writer.write(plain("GET", f"/v1/sessions/{server.session.id}/stream"))
        await line.written(b"session.status")
        assert status_of(line.writes[0]) == 200 and line.writes[0].endswith(b"\n\n\r\n")


async def test_what_is_there_at_the_beginning_is_one_write_and_so_is_the_end(start: Start) -> None:
    server = await start(say("one"))
    async with dial(server) as line:
        line.writer.write(plain("POST", f"{server.events}?stream=true", JSON, body=MESSAGE))
        await line.written(LAST_CHUNK)
        first, *_, last = line.writes
    assert status_of(first) == 200
    for told in (b"session.status", b"session.item", b"response.created"):
        assert b"event: " + told in first
    assert last.count(b"event: ") >= 2 and b"event: response.completed" in last
    assert last.endswith(b"\n\ndata: [DONE]\n\n" + LAST_CHUNK)


async def test_a_stream_that_is_at_its_end_at_once_is_one_write(start: Start) -> None:
    server = await start(say("one"))
    async with dial(server) as line:
        line.writer.write(plain("GET", f"/v1/sessions/{server.session.id}/stream?until=idle&after=0"))
        await line.written(LAST_CHUNK)
        assert len(line.writes) == 1 and line.writes[0].endswith(b"data: [DONE]\n\n" + LAST_CHUNK)


async def test_much_at_once_is_written_in_pieces(start: Start) -> None:
    """
    What was written and not yet sent is memory that each follower costs by itself.
    """
    server = await start()
    async with dial(server) as line:
        await line.follow()
        publish(server, *(f"{number:03} " + "x" * 4_000 for number in range(500)))
        await line.read_until(b"499 x")
        assert len(line.writes) >= 7
        assert max(map(len, line.writes)) <= 64 * 1024 + 64 * 4_500
        assert b"".join(line.writes).count(b"event: ") == 500


async def test_events_of_one_step_are_one_write_to_each_follower_and_the_same_bytes(start: Start) -> None:
    server = await start()
    async with dial(server) as one, dial(server) as other:
        await one.follow()
        await other.follow()
        publish(server, "a", "b", "c")
        await turns()
        publish(server, "d")
        await turns()
        assert [write.count(b"event: ") for write in one.writes] == [3, 1]
        assert one.writes == other.writes


async def test_an_event_takes_no_task_and_no_timer_however_many_follow(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await start()
    loop = asyncio.get_running_loop()
    made: list[Any] = []
    async with dial(server) as one, dial(server) as other:
        await one.follow()
        await other.follow("?after=0")
        monkeypatch.setattr(loop, "call_at", lambda *args, **options: made.append(args))
        monkeypatch.setattr(loop, "create_task", lambda *args, **options: made.append(args))
        monkeypatch.setattr(loop, "create_future", lambda *args, **options: made.append(args))
        for _ in range(10):
            publish(server, "x")
            await turns()
        monkeypatch.undo()
        assert (len(one.writes), len(other.writes), made) == (10, 10, [])


async def test_nothing_is_written_while_a_reader_is_slow_and_it_gets_everything_in_the_end(start: Start) -> None:
    server = await start(backlog_events=10_000)
    count, size = 2_000, 1_000
    async with dial(server) as line:
        # What the kernel takes, and when, is the kernel's: little here, whatever the machine is set to.
        for end, option in ((line.transport, socket.SO_SNDBUF), (line.writer, socket.SO_RCVBUF)):
            end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, 64 * 1024)
        await line.follow()
        line.writer.transport.pause_reading()
        for _ in range(count):
            publish(server, "x" * size)
            await turns(2)
        assert line.is_slow and not line.slow_writes
        line.writer.transport.resume_reading()
        reader, ids = FrameReader(), []
        async with asyncio.timeout(WAIT_S):
            await line.reader.readuntil(b"\r\n\r\n")
            while len(ids) < count:
                # Lengths of chunks are lines that mean nothing to a reader of frames.
                frames = reader.feed(await line.reader.read(1 << 20))
                ids += [int(frame.id) for frame in frames if frame.event == "response.output_text.delta"]
    assert ids == list(range(1, count + 1))


async def test_a_client_of_http_1_0_gets_the_frames_without_chunks_and_then_the_end_of_the_connection(
    start: Start,
) -> None:
    server = await start()
    async with dial(server) as line:
        line.writer.write(plain("GET", f"/v1/sessions/{server.session.id}/stream").replace(b"HTTP/1.1", b"HTTP/1.0"))
        await line.written(b"\n\n")
        await turns()
        publish(server, "a")
        await turns()
        publish(server, "b", "c")
        server.session.feed.close()
        head, _, body = (await read_all(line.reader)).partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower() and b"\r" not in body
    frames = [frame.event for frame in FrameReader().feed(body)]
    assert frames == ["session.status", *["response.output_text.delta"] * 3, ""]


async def test_a_client_that_leaves_before_its_stream_begins_is_no_fault(
    start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await start()
    written, asked = asyncio.Event(), asyncio.Event()

    async def committed() -> None:
        asked.set()
        await written.wait()

    monkeypatch.setattr(server.harness, "committed", committed)
    async with dial(server) as line:
        line.writer.write(plain("GET", f"/v1/sessions/{server.session.id}/stream"))
        await until(asked.is_set)
    await until(line.transport.is_closing)
    await turns()
    written.set()
    await until(lambda: not server.session.feed.followers)
    await turns()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
