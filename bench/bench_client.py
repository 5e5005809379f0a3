"""
The client: kept-alive connections over bare sockets, and turns played step by step as bytes come, without a task.

It costs a fraction of what it measures, since it reads of an answer only what tells how the turn stands. Both servers
are driven by it; a `Target` says what is different: the bytes of the requests, and the mark of a turn that waits.
"""

import json
import selectors
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import attrs
from bench_speak import BenchError

__all__ = ["Connection", "Crowd", "Place", "Target", "Timing", "find_between", "make_request"]

PATIENCE_S = 60.0
"""When nothing came for so many seconds, nothing ever will."""

READ_BYTES = 1 << 18
END = b"\r\n0\r\n\r\n"
DELTA = b"response.output_text.delta"
LENGTH = b"content-length: "


@attrs.frozen
class Timing:
    """
    What one turn took, in seconds: from the message to the end of its stream, and from the result to the first piece of
    text.
    """

    turn: float
    result_to_delta: float


class Target(ABC):
    """
    A server as the client must know it.
    """

    url: str
    waiting: bytes
    """Stands in the stream once the call can be answered."""

    @abstractmethod
    def start_turn(self, session: str) -> bytes:
        """
        The request that starts a turn and streams it.
        """

    @abstractmethod
    def send_result(self, session: str, seen: bytes) -> bytes:
        """
        The request that brings the result, made of what was *seen* of the stream.
        """

    @abstractmethod
    def open(self, connection: "Connection", count: int) -> list[str]:
        """
        Make sessions; their ids.
        """

    @abstractmethod
    def close(self, connection: "Connection", sessions: Sequence[str]) -> None:
        """
        Delete sessions.
        """


class Connection:
    """
    One kept-alive connection to the server at *url*. ``on_data`` gets what comes while its `Crowd` listens; outside of
    that, `ask` reads one whole answer.
    """

    __slots__ = ("on_data", "socket")

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self.socket = socket.create_connection((address.hostname, address.port), PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.on_data: Callable[[bytes], None] = ignore

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def send(self, request: bytes) -> None:
        self.socket.sendall(request)

    def receive(self) -> bytes:
        """
        What is there, or what comes first.

        Raises:
            BenchError: the server closed the connection, or nothing comes.
        """
        try:
            data = self.socket.recv(READ_BYTES)
        except OSError as error:
            raise BenchError(f"a server did not answer: {error or type(error).__name__}") from None
        if not data:
            raise BenchError("a server closed a connection before its answer was whole")
        return data

    def ask(self, request: bytes) -> tuple[int, bytes]:
        """
        Send a request and read its answer, whose length the head must tell: status and body.
        """
        self.send(request)
        data = b""
        while (answer := read_answer(data)) is None:
            data += self.receive()
        return answer

    def ask_json(self, request: bytes) -> Any:
        """
        The same for an answer of JSON.

        Raises:
            BenchError: it is no success.
        """
        status, body = self.ask(request)
        if status >= 300:
            raise BenchError(f"{request.split(b' HTTP', 1)[0].decode()} was answered {status}: {body[:300]!r}")
        return json.loads(body)

    def close(self) -> None:
        self.socket.close()


def ignore(data: bytes) -> None:
    """
    Make nothing of what comes.
    """


def read_answer(data: bytes) -> tuple[int, bytes] | None:
    """
    Status and body of an answer, once all of it is there.
    """
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = data[: end + 2].lower()
    at = head.find(LENGTH)
    length = int(head[at + len(LENGTH) : head.index(b"\r", at)]) if at >= 0 else 0
    return (int(data[9:12]), data[end + 4 :]) if len(data) >= end + 4 + length else None


def make_request(url: str, what: str, body: bytes = b"", headers: bytes = b"") -> bytes:
    """
    The bytes of a request with a body of JSON; *what* is method and path, *headers* are whole lines.
    """
    return b"%b HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n%b" % (
        what.encode(), urlsplit(url).netloc.encode(), len(body), headers, body,
    )  # fmt: skip


def find_between(data: bytes, before: bytes, after: bytes) -> bytes:
    """
    What stands between the first *before* and the next *after*.

    Raises:
        BenchError: nothing does.
    """
    start = data.find(before) + len(before)
    end = data.find(after, start)
    if start < len(before) or end < 0:
        raise BenchError(f"{before!r} is missing in {data[-300:]!r}")
    return data[start:end]


class Crowd:
    """
    Connections that are listened to together.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> "Crowd":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        for key in list(self._selector.get_map().values()):
            key.data.close()
        self._selector.close()

    def add(self, connection: Connection) -> Connection:
        """
        Listen to *connection* from now on; it is closed at the end.
        """
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        return connection

    def listen(self, is_over: Callable[[], bool]) -> None:
        """
        Hand out what comes until *is_over*.

        Raises:
            BenchError: a connection was closed, or nothing came for long.
        """
        select = self._selector.select
        while not is_over():
            ready = select(PATIENCE_S)
            if not ready:
                raise BenchError(f"a server sent nothing for {PATIENCE_S:g} s")
            for key, _ in ready:
                key.data.on_data(key.data.receive())


class Place:
    """
    Where one client sits: a connection for the stream, another one for results; one turn at a time. ``on_end`` is
    called at the end of each turn.
    """

    def __init__(self, target: Target, crowd: Crowd) -> None:
        self.target = target
        self.stream = crowd.add(Connection(target.url))
        self.results = crowd.add(Connection(target.url))
        self.on_end: Callable[[Timing], None] = lambda timing: None
        self._session = ""
        self._seen = bytearray()
        self._answer = b""
        self._start = self._sent_at = self._delta_at = self._end_at = 0.0
        self._is_answered = False

    def play(self, session: str) -> None:
        """
        Begin one turn with a call of the client's.
        """
        self.stream.on_data, self.results.on_data = self._read_call, self._read_answer
        self._session, self._answer, self._is_answered = session, b"", False
        self._delta_at = self._end_at = 0.0
        self._seen.clear()
        request = self.target.start_turn(session)
        self._start = time.perf_counter()
        self.stream.send(request)

    def _read_call(self, data: bytes) -> None:
        self._seen += data
        if self.target.waiting not in self._seen:
            if self._seen.endswith(END) or not self._seen.startswith(b"HTTP/1.1 200"):
                raise BenchError(f"a turn called no function: {bytes(self._seen[-300:])!r}")
            return
        request = self.target.send_result(self._session, bytes(self._seen))
        self._seen.clear()
        self.stream.on_data = self._read_text
        self._sent_at = time.perf_counter()
        self.results.send(request)

    def _read_text(self, data: bytes) -> None:
        self._seen += data
        if not self._delta_at and DELTA in self._seen:
            self._delta_at = time.perf_counter()
        if self._seen.endswith(END):
            self._end_at = time.perf_counter()
            if not self._delta_at or b"response.completed" not in self._seen:
                raise BenchError(f"a turn did not end well: {bytes(self._seen[-300:])!r}")
            self._end()

    def _read_answer(self, data: bytes) -> None:
        self._answer += data
        answer = read_answer(self._answer)
        if answer is not None:
            if answer[0] != 202:
                raise BenchError(f"a result was answered {answer}")
            self._is_answered = True
            self._end()

    def _end(self) -> None:
        if self._is_answered and self._end_at:
            self.on_end(Timing(self._end_at - self._start, self._delta_at - self._sent_at))
