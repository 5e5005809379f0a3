"""
A model server that costs next to nothing: Responses streams encoded beforehand, over bare sockets.

It reads of a request only what it must: how long it is, and whether an output stands behind the last user message. If
none does, it answers with a function call, else with `DELTAS` pieces of text. Each frame is a chunk of its own, as
model servers chunk them, and has ids that are new in each answer.

How frames come depends on the path:

- Below ``/v1`` each is written by itself, and the next one when every other stream had its turn: back to back, so that
  who reads finds several at once.
- Below ``/burst/v1`` all are written at once.
- Below ``/paced/v1`` each is written by itself, streams by turns, `FRAME_S` after one another, as models send their
  tokens, and a stream's next one about `PACE_S` later at the soonest.
- Below ``/burst/long`` and ``/paced/long`` the answer is always text, of `LONG` pieces, in both dialects.
- Below ``/step/v1`` the answer is always text, its next piece comes when ``POST /step`` asks for it and its end when
  ``POST /end`` does: so whoever measures sees each event alone, and waits for no timer.

``GET /stats`` tells how many answers began and how long the newest two requests were, heads not counted.
"""

import re
import selectors
import socket
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from bench_speak import say

from agent_harness.testing.mock_entry import read_entry
from agent_harness.testing.mock_llm import build_answer
from agent_harness.testing.strict import Dialect

DELTAS = 20
LONG = 200
FRAME_S = 1 / 64_000
"""
From one frame to the next of all paced streams together, in seconds: a model server has a rate of its own, which its
streams share. 2,000 tokens a second for each of 32 streams keep a bare proxy busy, with 32 streams and with 256.
"""

PACE_S = 0.0001
"""From one frame of a paced stream to its next, in seconds, when few streams share the rate."""

TOKEN = b"0123456789ab"
"""Stands in the templates for what differs from answer to answer; as long as what replaces it."""

ID = re.compile(rb"\b(resp|fc|msg|call)_[0-9a-f]{48}")
CALL: dict[str, Any] = {"tool_calls": [{"name": "look_up", "arguments": '{"widget_id": 42}'}]}
TEXT: dict[str, Any] = {"deltas": [f"word{number:02d} " for number in range(DELTAS)]}
LONG_TEXT: dict[str, Any] = {"deltas": [f"word{number} " for number in range(LONG)]}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
OUTPUT, USER, LENGTH = b'"function_call_output"', b'"role":"user"', b"content-length:"
READ_BYTES = 1 << 18

Template = list[bytes]
"""What stands between the places of the id: `id.join(template)` is the real thing."""


def record(entry: dict[str, Any], dialect: Dialect = "responses") -> list[bytes]:
    """
    The chunks of an answer, with `TOKEN` in each id; the head before the first, the last chunk behind the last.
    """
    body = {"model": "bench", "stream_options": {"include_usage": True}}
    frames = [frame.data for frame in build_answer(dialect, read_entry(entry, "entry"), body, 400).frames]
    chunks = [make_chunk(ID.sub(rb"\1_" + TOKEN, frame)) for frame in frames]
    return [HEAD + chunks[0], *chunks[1:-1], chunks[-1] + LAST_CHUNK]


def make_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Answers:
    """
    What all connections share.
    """

    def __init__(self) -> None:
        text = record(TEXT)
        deltas = [index for index, one in enumerate(text) if b"response.output_text.delta" in one]
        self.call: list[Template] = [piece.split(TOKEN) for piece in record(CALL)]
        self.text: list[Template] = [piece.split(TOKEN) for piece in text]
        self.begin: Template = b"".join(text[: deltas[0]]).split(TOKEN)
        self.long: list[Template] = [piece.split(TOKEN) for piece in record(LONG_TEXT)]
        self.long_chat: list[Template] = [piece.split(TOKEN) for piece in record(LONG_TEXT, "chat")]
        self.step: Template = text[deltas[0]].split(TOKEN)
        self.end: Template = b"".join(text[deltas[-1] + 1 :]).split(TOKEN)
        self.count = 0
        self.sizes: deque[int] = deque((0, 0), maxlen=2)
        self.stepping: tuple[socket.socket, bytes] | None = None
        self.streams: deque[tuple[socket.socket, Iterator[bytes]]] = deque()
        self.paced: deque[tuple[float, socket.socket, Iterator[bytes]]] = deque()

    def next_id(self) -> bytes:
        self.count += 1
        return b"%012d" % self.count

    def send_next(self) -> None:
        """
        Send the next frame of each stream.
        """
        for _ in range(len(self.streams)):
            connection, pieces = self.streams.popleft()
            piece = next(pieces, None)
            if piece is not None and send(connection, piece):
                self.streams.append((connection, pieces))

    def send_due(self) -> float | None:
        """
        Send the frames that are due of the paced streams; in how many seconds the next one is, None without any.
        """
        now = time.monotonic()
        while self.paced and self.paced[0][0] <= now:
            at, connection, pieces = self.paced.popleft()
            piece = next(pieces, None)
            if piece is not None and send(connection, piece):
                # What came late is made up for, but never so that two frames come together.
                pace = max(PACE_S, len(self.paced) * FRAME_S)
                self.paced.append((max(at + pace, now + pace / 2), connection, pieces))
        return max(0.0, self.paced[0][0] - now) if self.paced else None


def send(connection: socket.socket, data: bytes) -> bool:
    """
    Send it all; whether the client was still there.
    """
    try:
        connection.sendall(data)
    except ConnectionError:
        return False
    return True


class Reader:
    """
    One kept-alive connection.
    """

    def __init__(self, answers: Answers, connection: socket.socket) -> None:
        self.answers, self.connection = answers, connection
        self.data = bytearray()
        self.body_at = self.end_at = 0

    def feed(self, data: bytes) -> None:
        """
        Take bytes, and answer each request that is whole.
        """
        self.data += data
        while self.find_end() and len(self.data) >= self.end_at:
            self.answer()
            del self.data[: self.end_at]
            self.end_at = 0

    def find_end(self) -> bool:
        """
        Whether it is known where the request ends.
        """
        if not self.end_at:
            end = self.data.find(b"\r\n\r\n")
            if end < 0:
                return False
            self.body_at = self.end_at = end + 4
            head = bytes(self.data[: end + 2]).lower()
            at = head.find(LENGTH)
            if at >= 0:
                self.end_at += int(head[at + len(LENGTH) : head.index(b"\r", at)])
        return True

    def answer(self) -> None:
        """
        Answer the request that stands whole at the beginning of the data.
        """
        answers, data = self.answers, self.data
        if data.startswith((b"POST /v1/", b"POST /burst/", b"POST /paced/")):
            answers.sizes.append(self.end_at - self.body_at)
            number = answers.next_id()
            pieces = [number.join(piece) for piece in self.choose()]
            if data.startswith(b"POST /burst"):
                pieces = [b"".join(pieces)]
            send(self.connection, pieces[0])
            if data.startswith(b"POST /paced"):
                answers.paced.append((time.monotonic() + PACE_S, self.connection, iter(pieces[1:])))
            else:
                answers.streams.append((self.connection, iter(pieces[1:])))
        elif data.startswith(b"POST /step/v1/"):
            number = answers.next_id()
            answers.stepping = self.connection, number
            send(self.connection, number.join(answers.begin))
        elif data.startswith((b"POST /step ", b"POST /end ")):
            assert answers.stepping is not None
            connection, number = answers.stepping
            send(connection, number.join(answers.step if data.startswith(b"POST /step") else answers.end))
            self.tell(b"{}")
        else:
            self.tell(b'{"answers": %d, "sizes": [%d, %d]}' % (answers.count, *answers.sizes))

    def choose(self) -> list[Template]:
        """
        What answers the request.
        """
        answers, data = self.answers, self.data
        path = data[: data.index(b"\r")]
        if b"/long/" in path:
            return answers.long_chat if b"/chat/" in path else answers.long
        user = max(data.rfind(USER, self.body_at, self.end_at), self.body_at)
        return answers.text if data.find(OUTPUT, user, self.end_at) >= 0 else answers.call

    def tell(self, body: bytes) -> None:
        send(self.connection, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


def serve() -> None:
    """
    Serve on a free port of this machine, and print the address.
    """
    answers = Answers()
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as server, selectors.DefaultSelector() as selector:
        selector.register(server, selectors.EVENT_READ)
        say(f"http://127.0.0.1:{server.getsockname()[1]}")
        while True:
            for key, _ in selector.select(wait(answers)):
                if key.data is None:
                    connection, _ = server.accept()
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    selector.register(connection, selectors.EVENT_READ, Reader(answers, connection))
                else:
                    read(selector, key.data)
            answers.send_next()


def wait(answers: Answers) -> float | None:
    """
    Send what is due and wait for what is due next; how long may be waited for requests then, None for ever.
    """
    due = answers.send_due()
    if answers.streams:
        return 0
    if due:
        # Not in `select`, which rounds up to a millisecond. A request waits meanwhile, no longer than a frame does.
        time.sleep(due)
    return None if due is None else 0


def read(selector: selectors.BaseSelector, reader: Reader) -> None:
    """
    Read what is there; forget a connection that the client closed.
    """
    try:
        data = reader.connection.recv(READ_BYTES)
    except ConnectionError:
        data = b""
    if data:
        reader.feed(data)
    else:
        selector.unregister(reader.connection)
        reader.connection.close()


if __name__ == "__main__":
    serve()
