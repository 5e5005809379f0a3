"""
A server on a socket of its own, and bytes for it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
from aiohttp import web

from agent_harness.engine.harness import Harness
from agent_harness.engine.session import Session
from agent_harness.llm.scripted import ScriptedModel
from agent_harness.protocol.encode import dump_json, to_wire
from tests.support import WAIT_S, strict_json, user

__all__ = ["JSON", "MESSAGE", "Server", "Start", "body_of", "plain", "read_all", "status_of"]

MESSAGE = json.dumps(user("do not start a turn")).encode()
JSON = "Content-Type: application/json"


@attrs.define
class Server:
    """
    A server on a socket of its own, one session in it, and all that is needed to see that nothing changed.
    """

    runner: web.AppRunner
    harness: Harness
    session: Session
    model: ScriptedModel

    @property
    def port(self) -> int:
        port: int = self.runner.addresses[0][1]
        return port

    @property
    def events(self) -> str:
        return f"/v1/sessions/{self.session.id}/events"

    def state(self) -> tuple[bytes, int, int]:
        """
        The session byte for byte, how many sessions there are, and how often the model was asked.
        """
        return dump_json(to_wire(self.session.snapshot())), len(self.harness), len(self.model.requests)

    def post(self, *headers: str, body: bytes = MESSAGE, version: str = "1.1", length: bool = True) -> bytes:
        """
        A message for the session; taken, unless *headers* or *body* spoil it.
        """
        lines = [f"POST {self.events} HTTP/{version}", "Host: x", "Connection: close", JSON]
        lines += [f"Content-Length: {len(body)}"] if length else []
        return "\r\n".join([*lines, *headers, "", ""]).encode("latin-1") + body

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        async with asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                yield reader, writer
            finally:
                writer.transport.abort()

    async def send(self, data: bytes, *, end: bool = False) -> bytes:
        """
        All that comes back on a connection of its own until the server closes it; *end* closes our direction.
        """
        async with self.connect() as (reader, writer):
            writer.write(data)
            if end:
                writer.write_eof()
            return await read_all(reader)

    async def is_well(self) -> bool:
        """
        Whether the next client is answered.
        """
        answer = await self.send(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return status_of(answer) == 200


async def read_all(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


def status_of(answer: bytes) -> int | None:
    """
    The status of the first answer; None if the connection was closed without one.
    """
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.") else None


def body_of(answer: bytes) -> Any:
    return strict_json(answer.partition(b"\r\n\r\n")[2])


def plain(method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


Start = Callable[..., Awaitable[Server]]
