"""
The application: routes, the error middleware, and the harness it serves.
"""

from aiohttp import web

from agent_harness.engine.harness import Harness
from agent_harness.server import openapi, routes
from agent_harness.server.auth import Access, check_access, share_with_origin
from agent_harness.server.holding import hold_answers
from agent_harness.server.idempotency import KeptAnswers
from agent_harness.server.malformed import CONNECTIONS, with_expectations
from agent_harness.server.metrics import add_metrics
from agent_harness.server.problems import answer_problems
from agent_harness.server.request_ids import give_request_id, show_request_id

__all__ = ["HARNESS", "init_app", "make_app"]

HARNESS = routes.HARNESS
"""Where the application keeps its harness."""

HEAD_LINE_BYTES = 64 * 1024
"""
Longest request line and header. aiohttp's own bound (8 KiB) answers in plain text and logs an error, where a long
``Last-Event-ID`` is a gap like any other number that is none.
"""

IDLE_CONNECTION_S = 75.0
"""
How long a connection may be without a whole request head, in seconds: longer than the proxies that keep connections
open for a minute, so that they close first. aiohttp's own bound is an hour.
"""


def make_app(harness: Harness, access: Access | None = None) -> web.Application:
    """
    An application that serves *harness* to whom *access* lets in (None: to everyone but pages of foreign origins), to
    run by itself or to add as a sub-application. It restores the harness when it starts, if nobody did before, and
    closes it when it shuts down, before it waits for open streams.
    """
    access = access or Access()
    app = web.Application(
        middlewares=[give_request_id, answer_problems, check_access(access), hold_answers],
        client_max_size=harness.limits.body_bytes,
        handler_args={
            "max_line_size": HEAD_LINE_BYTES,
            "max_field_size": HEAD_LINE_BYTES,
            "keepalive_timeout": IDLE_CONNECTION_S,
            "logger": CONNECTIONS,
        },
    )
    app[HARNESS] = harness
    app[routes.ANSWERS] = KeptAnswers(harness)
    app.add_routes(with_expectations((*routes.ROUTES, *openapi.ROUTES)))
    if access.origins:
        app.on_response_prepare.append(share_with_origin(access))
    app.on_response_prepare.append(show_request_id)
    add_metrics(app, harness)
    app.on_startup.append(_open_harness)
    app.on_shutdown.append(_close_harness)
    return app


def init_app(
    app: web.Application, harness: Harness, prefix: str = "/agents-backend", access: Access | None = None
) -> web.Application:
    """
    Serve *harness* below *prefix* in an application that exists. Its own routes and middlewares are left as they are;
    the harness is closed when it shuts down. Returns the sub-application.

    Raises:
        ValueError: *prefix* is no path below the root, or *app* serves a harness already.
    """
    if not prefix.startswith("/") or not prefix.strip("/"):
        raise ValueError(f'prefix is a path such as "/agents-backend", not {prefix!r}; make_app serves at the root')
    if HARNESS in app:
        raise ValueError("this application serves a harness already; app.add_subapp(prefix, make_app(…)) adds another")
    backend = make_app(harness, access)
    app.add_subapp(prefix, backend)
    app[HARNESS] = harness
    return backend


async def _open_harness(app: web.Application) -> None:
    await app[HARNESS].restore()
    app[routes.ANSWERS].restore()


async def _close_harness(app: web.Application) -> None:
    await app[HARNESS].aclose()
