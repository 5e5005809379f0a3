"""
A model server that says exactly the bytes it is given, on a real socket: whole, in pieces, cut, or not at all.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import attrs
import orjson

__all__ = ["Answer", "RawUpstream", "frame", "frames", "serve_raw"]

BEAT_S = 0.01


@attrs.frozen
class Answer:
    """
    One answer. ``end``: ``close`` ends the connection well, ``reset`` breaks it, ``hold`` keeps it open without a word,
    ``beat`` the same with comments, ``drop`` closes before anything was sent, ``mute`` never says anything, ``keep``
    keeps the connection for the next request.
    """

    pieces: Sequence[bytes] = ()
    end: str = "close"
    status: int = 200
    headers: tuple[str, ...] = ("content-type: text/event-stream",)


@attrs.define(eq=False)
class RawUpstream:
    """
    The server. ``bodies`` and ``heads`` are what was asked; ``gone`` is set when a client left a held connection.
    """

    url: str = ""
    answers: list[Answer] = attrs.field(factory=list)
    bodies: list[bytes] = attrs.field(factory=list)
    heads: list[dict[str, str]] = attrs.field(factory=list)
    paths: list[str] = attrs.field(factory=list)
    connections: int = 0
    gone: asyncio.Event = attrs.field(factory=asyncio.Event)
    asked: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """
        Answer the requests of one connection; the last answer is given again and again.
        """
        self.connections += 1
        try:
            while await self._read_request(reader):
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                await self._say(answer, reader, writer)
                if answer.end != "keep":
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            self.gone.set()
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _read_request(self, reader: asyncio.StreamReader) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().strip().split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.paths.append(first.split()[1])
        self.heads.append(headers)
        self.bodies.append(await reader.readexactly(int(headers.get("content-length", "0"))))
        self.asked.set()
        return True

    async def _say(self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if answer.end == "mute":
            await self._hold(answer, reader, writer)
        if answer.end in ("drop", "mute"):
            return
        # A body that only the end of the connection ends cannot be seen to break.
        chunked = answer.end != "close"
        how = "transfer-encoding: chunked" if chunked else "connection: close"
        writer.write("\r\n".join((f"HTTP/1.1 {answer.status} X", *answer.headers, how, "", "")).encode())
        for piece in answer.pieces:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            await writer.drain()
        if answer.end == "keep":
            writer.write(b"0\r\n\r\n")
        if answer.end in ("hold", "beat"):
            await self._hold(answer, reader, writer)
        if answer.end == "reset":
            # What was written is on its way before the connection breaks.
            await writer.drain()
            writer.transport.abort()

    async def _hold(self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                async with asyncio.timeout(BEAT_S if answer.end == "beat" else None):
                    if not await reader.read(1):
                        break
            except TimeoutError:
                writer.write(b"6\r\n: hb\n\n\r\n")
        self.gone.set()


@asynccontextmanager
async def serve_raw(*answers: Answer | bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[RawUpstream]:
    """
    A server with these answers; bytes stand for an ordinary answer of one piece.
    """
    raw = RawUpstream(answers=[Answer((item,)) if isinstance(item, bytes) else item for item in answers])
    tasks: set[asyncio.Task[None]] = set()

    def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of our own: the one asyncio makes for a coroutine complains when it is cancelled.
        tasks.add(asyncio.create_task(raw.handle(reader, writer)))

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    raw.url = f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield raw
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5)


def frame(event: dict[str, object]) -> bytes:
    """
    One event as the Responses API frames it.
    """
    return b"event: %b\ndata: %b\n\n" % (str(event.get("type", "")).encode(), orjson.dumps(event))


def frames(*events: dict[str, object]) -> bytes:
    """
    Several events, one after another.
    """
    return b"".join(frame(event) for event in events)
