"""
Errors to answers: every failure has the wire's error object, whoever found it.
"""

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from agent_harness.errors import (
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    RequestError,
    RequestTooLarge,
    forget_frames,
)
from agent_harness.logs import Line
from agent_harness.protocol.encode import dump_json
from agent_harness.server.request_ids import request_id_of, route_of

__all__ = ["answer_problem", "answer_problems"]

REFUSALS = logging.getLogger("agent_harness.requests")

_SERIOUS = (401, 403, 429, 500, 503)
"""Statuses that an operator should hear of; the others are mistakes of clients."""


def answer_problem(error: RequestError, request: web.Request) -> web.Response:
    """
    The answer to a refused *request*, with its id. The official SDKs repeat a bare 409; ``x-should-retry`` tells them
    not to.
    """
    headers = {"x-should-retry": "false"} if error.status in (404, 409) else {}
    wire = error.to_wire()
    wire["error"]["request_id"] = request_id_of(request)
    return web.Response(
        body=dump_json(wire) + b"\n", status=error.status, content_type="application/json", headers=headers
    )


@web.middleware
async def answer_problems(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """
    Turn whatever a handler raises into the wire's error object.
    """
    try:
        return await handler(request)
    except RequestError as error:
        return _refuse(error, request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        if error.status >= 500:
            return _fail(request)
        answer = _refuse(_translate(error, request), request)
        if "Allow" in error.headers:
            answer.headers["Allow"] = error.headers["Allow"]
        forget_frames(error)
        return answer
    except (web.RequestPayloadError, HttpProcessingError):
        problem = InvalidRequest("The body could not be read to its end.", code="invalid_json")
        return _refuse(problem, request)
    except Exception as error:
        if isinstance(error, ConnectionError) and request.transport is None:
            # The client left in the middle of its body. Nobody reads this, and an error of ours it is not.
            return _refuse(InvalidRequest("The body broke off.", code="invalid_json"), request)
        return _fail(request)


def _fail(request: web.Request) -> web.Response:
    """
    The answer to an error of ours, whose traceback goes into the log.
    """
    REFUSALS.exception(Line("request failed", status=500, method=request.method, route=route_of(request)))
    return answer_problem(InternalError("The server made a mistake; its log has the details."), request)


def _refuse(error: RequestError, request: web.Request) -> web.Response:
    """
    The answer, and a line in the log: nothing in it but the method's name is the client's own.
    """
    level = logging.WARNING if error.status in _SERIOUS else logging.INFO
    line = Line("request refused", status=error.status, code=error.code, method=request.method, route=route_of(request))
    REFUSALS.log(level, line)
    return answer_problem(error, request)


def _translate(error: web.HTTPException, request: web.Request) -> RequestError:
    """
    What aiohttp itself refuses, as our error.
    """
    if error.status == 404:
        return NotFound(f"There is nothing at {request.path[:200]!r}.", code="unknown_path")
    if error.status == 405:
        return MethodNotAllowed(f"{request.method[:20]} is not possible here; see the header Allow.")
    if error.status == 413:
        limit = request.client_max_size
        return RequestTooLarge(f"The body is over the limit of {limit:,} bytes. Nothing was changed.")
    return InvalidRequest(f"This request cannot be used: {error.reason or error.status}.")
