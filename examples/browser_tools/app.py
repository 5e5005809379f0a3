"""
A page whose agent has a tool that runs in the browser.

    python examples/browser_tools/app.py --port 8080

The page and the sessions API have one origin, so that no CORS is needed. The page reads its events with fetch: an
EventSource can send neither a key nor the number to go on from.
"""

import argparse
from pathlib import Path

from aiohttp import web

from agent_harness import Settings
from agent_harness.server import init_app
from agent_harness.wiring import open_demo_harness

PAGE = Path(__file__).with_name("page.html")


async def index(request: web.Request) -> web.FileResponse:
    return web.FileResponse(PAGE)


def make_app() -> web.Application:
    app = web.Application()
    app.router.add_get("/", index)
    # The demo model needs no key; `open_harness(load_settings())` asks a real one.
    init_app(app, open_demo_harness(Settings()), prefix="/agents-backend")
    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8080)
    web.run_app(make_app(), host="127.0.0.1", port=parser.parse_args().port)
