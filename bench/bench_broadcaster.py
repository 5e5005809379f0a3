"""
The bare broadcaster that followers are compared with: one queue and one handler a follower, frames as they came.

``GET /stream`` follows. ``POST /start`` asks the model server and puts each frame of its answer on each follower's
queue as it comes.

    python bench/bench_broadcaster.py BASE_URL [--uvloop]
"""

import asyncio
import sys

import aiohttp
from aiohttp import web
from bench_proxy import JSON, STREAM, serve_app, tell_health
from bench_speak import run_loop


class Broadcaster:
    """
    The queues of those who follow.
    """

    def __init__(self, upstream: str, http: aiohttp.ClientSession) -> None:
        self.url, self.http = f"{upstream}/responses", http
        self.queues: set[asyncio.Queue[bytes]] = set()
        self.reading: asyncio.Task[None] | None = None

    async def follow(self, request: web.Request) -> web.StreamResponse:
        """
        ``GET /stream``.
        """
        response = web.StreamResponse(headers=STREAM)
        await response.prepare(request)
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self.queues.add(queue)
        try:
            await response.write(b": hello\n\n")
            while data := await queue.get():
                await response.write(data)
            await response.write_eof()
            return response
        except ConnectionError:
            return response  # the follower left
        finally:
            self.queues.discard(queue)

    async def start(self, request: web.Request) -> web.Response:
        """
        ``POST /start``.
        """
        self.reading = asyncio.create_task(self.read(await request.read()))
        return web.Response(status=202, body=b"{}", headers=JSON)

    async def read(self, body: bytes) -> None:
        """
        One model call, each frame of it handed to everybody, and then the end.
        """
        rest = b""
        async with self.http.post(self.url, data=body, headers=JSON) as upstream:
            async for data in upstream.content.iter_any():
                *frames, rest = (rest + data).split(b"\n\n")
                for frame in frames:
                    self.tell(frame + b"\n\n")
        self.tell(b"")

    def tell(self, data: bytes) -> None:
        for queue in self.queues:
            queue.put_nowait(data)

    def make_app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/health", tell_health)
        app.router.add_get("/stream", self.follow)
        app.router.add_post("/start", self.start)
        return app


if __name__ == "__main__":
    run_loop(serve_app(lambda http: Broadcaster(sys.argv[1], http).make_app()))
