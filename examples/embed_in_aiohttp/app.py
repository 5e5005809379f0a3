"""
A web application of your own that serves agents beside its pages.

    python examples/embed_in_aiohttp/app.py --port 8080

`/` is a page of the application; it talks to an agent in process. Below `/agents-backend` is the whole sessions API,
for browsers and other programs. The harness is closed when the application shuts down.
"""

import argparse
import html

from aiohttp import web

from agent_harness import Settings
from agent_harness.server import HARNESS, init_app
from agent_harness.wiring import open_demo_harness

PAGE = """<!doctype html>
<title>Widgets</title>
<h1>Widgets</h1>
<form method="post"><input name="question" value="Any news?"> <button>Ask</button></form>
<p id="answer">{answer}</p>
<p id="sessions">{count} sessions</p>
"""


def show(request: web.Request, answer: str = "") -> web.Response:
    page = PAGE.format(answer=html.escape(answer), count=len(request.app[HARNESS]))
    return web.Response(text=page, content_type="text/html")


async def index(request: web.Request) -> web.Response:
    return show(request)


async def ask(request: web.Request) -> web.Response:
    form = await request.post()
    session = await request.app[HARNESS].create_session({"instructions": "You know all about widgets."})
    events = [event async for event in session.run(str(form["question"]))]
    return show(request, "".join(event.delta for event in events if event.type == "response.output_text.delta"))


def make_app() -> web.Application:
    app = web.Application()
    app.add_routes([web.get("/", index), web.post("/", ask)])
    # The demo model needs no key; `open_harness(load_settings())` asks a real one.
    init_app(app, open_demo_harness(Settings()), prefix="/agents-backend")
    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8080)
    web.run_app(make_app(), host="127.0.0.1", port=parser.parse_args().port)
