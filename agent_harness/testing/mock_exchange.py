"""
One model request of the mock server and its answer on the wire: parking, delays, cuts, frames.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import struct
from collections.abc import Mapping
from typing import Any

import attrs
from aiohttp import web

from agent_harness.testing.mock_entry import Entry
from agent_harness.testing.mock_state import Captured, MockState, Parked
from agent_harness.testing.mock_streams import Answer

__all__ = ["CutShort", "Exchange", "make_error", "reply", "send_document", "send_stream"]

POLL_S = 0.005
# What was written just before an abort must have time to be read: a reset discards what waits in the reader's loop.
SETTLE_S = 0.02
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ClientLeft(ConnectionError):
    """
    The client closed its connection before the answer's end.
    """


class CutShort(Exception):
    """
    The server itself ends the connection: by script, at reset, at shutdown.
    """


@attrs.define
class Exchange:
    """
    One model request and its answer under way.
    """

    state: MockState
    request: web.Request
    captured: Captured
    response: web.StreamResponse | None = None

    def is_gone(self) -> bool:
        """
        Say whether the client has closed its connection.
        """
        transport = self.request.transport
        return transport is None or transport.is_closing()

    async def park(self) -> None:
        """
        Wait at the gate.

        :raises ClientLeft: as soon as the client goes.
        :raises CutShort: when the server drops the request.
        """
        parked = Parked(self.is_gone)
        self.state.gate.parked.append(parked)
        try:
            while not await self.wait(parked.opened, POLL_S):
                pass
        finally:
            if parked in self.state.gate.parked:
                self.state.gate.parked.remove(parked)
        if parked.is_cut:
            raise CutShort

    async def pause(self, seconds: float) -> None:
        """
        Let time pass; ends early as `park` does.
        """
        loop, never = asyncio.get_running_loop(), asyncio.Event()
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0:
            await self.wait(never, min(left, POLL_S))

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """
        Wait a moment for an event and say whether it came; looks after the client besides.
        """
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
            return True
        except TimeoutError:
            if self.is_gone():
                raise ClientLeft from None
            if self.state.is_closing:
                raise CutShort from None
            return False

    async def abort(self) -> None:
        """
        Reset the TCP connection, once what was written has had time to arrive.
        """
        if self.response is not None:
            await asyncio.sleep(SETTLE_S)
        transport = self.request.transport
        if transport is None:
            return
        connection = transport.get_extra_info("socket")
        if connection is not None:  # closing without lingering sends RST where FIN would look like an ordinary end
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


async def send_stream(exchange: Exchange, entry: Entry, answer: Answer) -> web.StreamResponse:
    """
    Send an answer frame by frame, each in one write, with the script's parkings, delays and cuts.
    """
    headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", **make_id()}
    headers |= {name.lower(): value for name, value in entry.headers.items()}
    status = exchange.captured.status = entry.status_code or 200
    response = exchange.response = web.StreamResponse(status=status, headers=headers)
    await response.prepare(exchange.request)
    park_at = entry.block if not isinstance(entry.block, bool) else None
    for index, frame in enumerate([*answer.frames, None]):
        if entry.disconnect_after == index:
            raise CutShort
        if park_at == index:
            await exchange.park()
        if frame is None:
            break
        if frame.is_delta and entry.delay_s:
            await exchange.pause(entry.delay_s)
        if exchange.is_gone():
            raise ClientLeft
        await response.write(frame.data)
        await asyncio.sleep(0)  # a client in the same loop reads frame by frame, as it would from afar
    await response.write_eof()
    return response


async def send_document(exchange: Exchange, entry: Entry, answer: Answer) -> web.StreamResponse:
    """
    Send an answer as one JSON document. Any `disconnect_after` cuts it before its first byte.
    """
    if entry.block is not None and entry.block is not True and entry.block is not False:
        await exchange.park()
    if entry.disconnect_after is not None:
        raise CutShort
    if entry.delay_s:
        await exchange.pause(entry.delay_s)
    return reply(exchange.captured, entry.status_code or 200, answer.document, entry.headers)


def reply(captured: Captured, status: int, body: Any, headers: Mapping[str, str] | None = None) -> web.Response:
    """
    Make a JSON answer to a model request and note its status.
    """
    captured.status = status
    return web.json_response(body, status=status, headers={**make_id(), **(headers or {})})


def make_id() -> dict[str, str]:
    """
    Make the header by which OpenAI names a request.
    """
    return {"x-request-id": f"req_{secrets.token_hex(16)}"}


def make_error(error: str | dict[str, Any], status: int, *, code: str | None = None) -> dict[str, Any]:
    """
    Make OpenAI's error body. An object's keys are put over the usual ones.
    """
    usual = {"message": "", "type": ERROR_TYPES.get(status, "server_error"), "param": None, "code": code}
    return {"error": usual | (error if isinstance(error, dict) else {"message": error})}
