"""
A model server that costs next to nothing: Responses streams encoded beforehand, over bare sockets.

It reads of a request only what it must: how long it is, and whether an output stands behind the last user message. If
none does, it answers with a function call, else with `DELTAS` pieces of text. Each frame is a chunk of its own, as
model servers chunk them, and has ids that are new in each answer.

How frames come depends on the path. Below ``/v1`` each is written by itself, and the next one when every other stream
had its turn. Below ``/burst/v1`` all are written at once. Below ``/step/v1`` the answer is always text, its next piece
comes when ``POST /step`` asks for it and its end when ``POST /end`` does: so whoever measures sees each event alone,
and waits for no timer.

``GET /stats`` tells how many answers began and how long the newest two requests were, heads not counted.
"""

import re
import selectors
import socket
from collections import deque
from collections.abc import Iterator
from typing import Any

from bench_speak import say

from agent_harness.testing.mock_entry import read_entry
from agent_harness.testing.mock_llm import build_answer

DELTAS = 20
TOKEN = b"0123456789ab"
"""Stands in the templates for what differs from answer to answer; as long as what replaces it."""

ID = re.compile(rb"\b(resp|fc|msg|call)_[0-9a-f]{48}")
CALL: dict[str, Any] = {"tool_calls": [{"name": "look_up", "arguments": '{"widget_id": 42}'}]}
TEXT: dict[str, Any] = {"deltas": [f"word{number:02d} " for number in range(DELTAS)]}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
OUTPUT, USER, LENGTH = b'"function_call_output"', b'"role":"user"', b"content-length:"
READ_BYTES = 1 << 18

Template = list[bytes]
"""What stands between the places of the id: `id.join(template)` is the real thing."""


def record(entry: dict[str, Any]) -> list[bytes]:
    """
    The chunks of an answer, with `TOKEN` in each id; the head before the first, the last chunk behind the last.
    """
    body = {"model": "bench"}
    frames = [frame.data for frame in build_answer("responses", read_entry(entry, "entry"), body, 400).frames]
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
        self.step: Template = text[deltas[0]].split(TOKEN)
        self.end: Template = b"".join(text[deltas[-1] + 1 :]).split(TOKEN)
        self.count = 0
        self.sizes: deque[int] = deque((0, 0), maxlen=2)
        self.stepping: tuple[socket.socket, bytes] | None = None
        self.streams: deque[tuple[socket.socket, Iterator[bytes]]] = deque()

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
        if data.startswith((b"POST /v1/", b"POST /burst/v1/")):
            answers.sizes.append(self.end_at - self.body_at)
            user = max(data.rfind(USER, self.body_at, self.end_at), self.body_at)
            is_answered = data.find(OUTPUT, user, self.end_at) >= 0
            number = answers.next_id()
            pieces = [number.join(piece) for piece in (answers.text if is_answered else answers.call)]
            if data.startswith(b"POST /burst"):
                pieces = [b"".join(pieces)]
            send(self.connection, pieces[0])
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
            for key, _ in selector.select(0 if answers.streams else None):
                if key.data is None:
                    connection, _ = server.accept()
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    selector.register(connection, selectors.EVENT_READ, Reader(answers, connection))
                else:
                    read(selector, key.data)
            answers.send_next()


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
