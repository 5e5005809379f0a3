"""
Request ids: every answer names its request, and so does every log line that the request causes.
"""

import re
from collections.abc import Awaitable, Callable

from aiohttp import web

from agent_harness.logs import REQUEST_ID, SESSION_ID
from agent_harness.protocol.items import make_id

__all__ = ["HEADER", "give_request_id", "request_id_of", "route_of", "show_request_id"]

HEADER = "x-request-id"

_ID = web.RequestKey("request_id", str)

_SANE = re.compile(r"[A-Za-z0-9._-]{1,128}")


@web.middleware
async def give_request_id(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """
    The outermost middleware: what happens inside is logged with the ids of the request and its session.
    """
    session_id = request.match_info.get("session_id", "")
    tokens = (
        REQUEST_ID.set(request_id_of(request)),
        SESSION_ID.set(session_id if _SANE.fullmatch(session_id) else ""),
    )
    try:
        return await handler(request)
    finally:
        # The task goes on to the connection's next request.
        REQUEST_ID.reset(tokens[0])
        SESSION_ID.reset(tokens[1])


async def show_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """
    A signal handler that writes the id into the answer's header.
    """
    response.headers[HEADER] = request_id_of(request)


def request_id_of(request: web.Request) -> str:
    """
    The client's own ``x-request-id`` if it is 1 to 128 of ``A-Z a-z 0-9 . _ -``, else a random one.
    """
    try:
        return request[_ID]
    except KeyError:
        given = request.headers.get(HEADER)
        name = request[_ID] = given if given is not None and _SANE.fullmatch(given) else make_id("req")
        return name


def route_of(request: web.Request) -> str:
    """
    The path template of the request's route (``/v1/sessions/{session_id}``), ``unknown`` where there is none: nothing
    that a client wrote.
    """
    resource = request.match_info.route.resource
    return "unknown" if resource is None else resource.canonical
