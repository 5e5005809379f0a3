"""
A TCP proxy that cuts connections: anywhere in the bytes, in either direction, at random but from a seed.
"""

import asyncio
import random
from types import TracebackType

__all__ = ["Proxy"]


class Proxy:
    """
    Stands before a server on 127.0.0.1; an async context manager. ``url`` is where clients go.

    It counts the bytes that pass, over all connections, and cuts the one on which a random number of them is reached,
    as long as ``budget`` lasts: what stood before that byte is passed on, nothing behind it.

    Args:
        port: the server's.
        seed: for the places of the cuts.
        mean: how many bytes pass between two cuts, on average.
    """

    def __init__(self, port: int, seed: int = 0, mean: int = 1_000) -> None:
        self.url = ""
        self.budget = 0
        self.cuts = 0
        self.connections = 0
        self.answers_to_lose = 0
        self.closed = False
        self.none_left = asyncio.Event()
        self._port = port
        self._random = random.Random(seed)
        self._mean = mean
        self._left = 0
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._draw()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut_all()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)

    def cut_all(self) -> None:
        """
        Cut every connection that is open now.
        """
        for pair in list(self._pairs):
            self._cut(pair)

    def cut_after(self, count: int) -> None:
        """
        Make the next cut at byte *count* from now, and no other.
        """
        self.budget, self._left = 1, count

    def _draw(self) -> None:
        self._left = self._random.randint(1, 2 * self._mean)

    def _cut(self, pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
        for writer in pair:
            # With a reset, or with an ordinary end: clients meet both.
            if self._random.random() < 0.5:
                writer.transport.abort()
            else:
                writer.close()
        self._pairs.discard(pair)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.closed:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        pair = (writer, back)
        self._pairs.add(pair)
        try:
            await asyncio.gather(self._pump(reader, back, pair), self._pump(there, writer, pair))
        finally:
            self._pairs.discard(pair)
            for end in pair:
                end.close()
            if not self._pairs:
                self.none_left.set()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        try:
            while (chunk := await reader.read(65_536)) and pair in self._pairs:
                if writer is pair[0] and self.answers_to_lose:
                    self.answers_to_lose -= 1
                    self._cut(pair)
                    return
                if self.budget and len(chunk) >= self._left:
                    writer.write(chunk[: self._left - 1])
                    self.budget -= 1
                    self.cuts += 1
                    self._draw()
                    self._cut(pair)
                    return
                self._left -= len(chunk) if self.budget else 0
                writer.write(chunk)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            # Either side's end is the end of both.
            for end in pair:
                end.close()
