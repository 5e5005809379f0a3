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

__all__ = ["dial", "get", "post", "receive", "reset", "see_gone", "written"]


async def dial(port: int, data: bytes) -> socket.socket:
    """
    A connection on which *data* was sent.
    """
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    await asyncio.get_running_loop().sock_sendall(sock, data)
    return sock


async def get(port: int, target: str) -> socket.socket:
    """
    The same with a GET.
    """
    return await dial(port, written("GET", target))


async def post(port: int, target: str, value: Any, *headers: str) -> socket.socket:
    """
    The same with a POST of *value* as JSON.
    """
    return await dial(port, written("POST", target, json.dumps(value).encode(), *headers))


def written(method: str, target: str, body: bytes = b"", *headers: str) -> bytes:
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
