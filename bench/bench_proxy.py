"""
The bare proxy that the harness is compared with: what no server between a client and a model can leave out.

``POST /turns`` sends its body to the model server, streams what comes back through as it comes, parks on one future,
sends the body that ``POST /turns/{id}/result`` brought, streams that answer through as well, and ends. No session, no
transcript; nothing is parsed. The answer's header ``x-turn-id`` names the turn. A request with the header ``x-pad`` is
filled up with that many spaces, in front, on its way to the model server.

    python bench/bench_proxy.py BASE_URL [--uvloop]
"""

import asyncio
import itertools
import sys
from collections.abc import Callable

import aiohttp
from aiohttp import web
from bench_speak import run_loop, say

STREAM = {"content-type": "text/event-stream; charset=utf-8"}
JSON = {"content-type": "application/json"}


class Proxy:
    """
    The turns that are parked, and the connections to the model server.
    """

    def __init__(self, upstream: str, http: aiohttp.ClientSession) -> None:
        self.url, self.http = f"{upstream}/responses", http
        self.parked: dict[str, asyncio.Future[bytes]] = {}
        self.numbers = itertools.count(1)

    async def start_turn(self, request: web.Request) -> web.StreamResponse:
        """
        ``POST /turns``.
        """
        body = await read(request)
        turn_id = str(next(self.numbers))
        result = self.parked[turn_id] = asyncio.get_running_loop().create_future()
        response = web.StreamResponse(headers={**STREAM, "x-turn-id": turn_id})
        await response.prepare(request)
        await self.forward(body, response)
        await self.forward(await result, response)
        await response.write_eof()
        return response

    async def take_result(self, request: web.Request) -> web.Response:
        """
        ``POST /turns/{turn_id}/result``.
        """
        body = await read(request)
        self.parked.pop(request.match_info["turn_id"]).set_result(body)
        return web.Response(status=202, body=b'{"accepted":true}', headers=JSON)

    def make_app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/health", tell_health)
        app.router.add_post("/turns", self.start_turn)
        app.router.add_post("/turns/{turn_id}/result", self.take_result)
        return app

    async def forward(self, body: bytes, response: web.StreamResponse) -> None:
        """
        One model call, its answer passed on as it comes.
        """
        async with self.http.post(self.url, data=body, headers=JSON) as upstream:
            async for data in upstream.content.iter_any():
                await response.write(data)


async def read(request: web.Request) -> bytes:
    body = await request.read()
    pad = request.headers.get("x-pad")
    return body if pad is None else b" " * int(pad) + body


async def tell_health(request: web.Request) -> web.Response:
    """
    ``GET /health``.
    """
    return web.Response(body=b'{"status":"ok"}', headers=JSON)


async def serve_app(make_app: Callable[[aiohttp.ClientSession], web.Application]) -> None:
    """
    Serve on a free port of this machine, with a client for the model server, and print the address.
    """
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as http:
        runner = web.AppRunner(make_app(http), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        say(f"http://127.0.0.1:{runner.addresses[0][1]}")
        await asyncio.Event().wait()


if __name__ == "__main__":
    run_loop(serve_app(lambda http: Proxy(sys.argv[1], http).make_app()))
