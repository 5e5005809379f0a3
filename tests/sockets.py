"""
Clients that leave: requests on plain sockets, which end when a test says so and how it says.
"""

import asyncio
import json
import socket
import struct
from typing import Any

from aiohttp.test_utils import BaseTestServer

from tests.support import WAIT_S

__all__ = ["dial", "post", "receive", "reset", "see_gone"]


async def dial(port: int, method: str, target: str, body: bytes = b"", *headers: str) -> socket.socket:
    """
    A connection on which one whole request was sent.
    """
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    await asyncio.get_running_loop().sock_sendall(sock, written(method, target, body, *headers))
    return sock


async def post(port: int, target: str, value: Any, *headers: str) -> socket.socket:
    """
    The same with *value* as JSON.
    """
    return await dial(port, "POST", target, json.dumps(value).encode(), *headers)


def written(method: str, target: str, body: bytes, *headers: str) -> bytes:
    """
    A request as bytes.
    """
    lines = [f"{method} {target} HTTP/1.1", "Host: x", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


async def receive(sock: socket.socket, wanted: bytes) -> bytes:
    """
    Read until *wanted* has come.
    """
    loop, got = asyncio.get_running_loop(), b""
    async with asyncio.timeout(WAIT_S):
        while wanted not in got:
            piece = await loop.sock_recv(sock, 65536)
            assert piece, got
            got += piece
    return got


def reset(sock: socket.socket) -> None:
    """
    Close with RST.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


async def see_gone(server: BaseTestServer, port: int) -> None:
    """
    Wait until *server* knows that the client on *port* has left.
    """

    def is_there() -> bool:
        transports = [handler.transport for handler in server.handler.connections]
        return any(each is not None and each.get_extra_info("peername")[1] == port for each in transports)

    async with asyncio.timeout(WAIT_S):
        while is_there():  # noqa: ASYNC110
            await asyncio.sleep(0)
