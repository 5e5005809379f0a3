"""
The application: routes, the error middleware, and the harness it serves.
"""

from aiohttp import web

from agent_harness.engine.harness import Harness
from agent_harness.server import routes
from agent_harness.server.problems import answer_problems

__all__ = ["HARNESS", "make_app"]

HARNESS = routes.HARNESS
"""Where the application keeps its harness."""


def make_app(harness: Harness) -> web.Application:
    """
    An application that serves *harness*, to run by itself or to add as a sub-application. It closes the harness when it
    shuts down, before it waits for open streams.
    """
    app = web.Application(middlewares=[answer_problems], client_max_size=harness.limits.body_bytes)
    app[HARNESS] = harness
    app.add_routes(routes.ROUTES)
    app.on_shutdown.append(_close_harness)
    return app


async def _close_harness(app: web.Application) -> None:
    await app[HARNESS].aclose()
