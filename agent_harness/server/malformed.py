"""
What HTTP itself refuses, before any middleware is asked: heads and chunks that are none, and expectations that nobody
knows. These are mistakes of clients: aiohttp would log them as errors, with a traceback.
"""

import logging
from collections.abc import Iterable, Iterator

from aiohttp import HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError

from agent_harness.errors import InvalidRequest
from agent_harness.logs import Line
from agent_harness.server.problems import answer_problem

__all__ = ["CONNECTIONS", "with_expectations"]

CONNECTIONS = logging.getLogger("agent_harness.connections")
"""What aiohttp's connections log to."""


def _tone_down(record: logging.LogRecord) -> bool:
    """
    A filter that makes one quiet line of what the parser refuses; nothing in it is the client's own.
    """
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError | web.RequestPayloadError):
        record.msg, record.args = Line("request malformed", reason=type(error).__name__), ()
        record.exc_info = record.exc_text = None
        record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
    return CONNECTIONS.isEnabledFor(record.levelno)


CONNECTIONS.addFilter(_tone_down)


def with_expectations(routes: Iterable[web.AbstractRouteDef]) -> Iterator[web.AbstractRouteDef]:
    """
    *routes*, which answer a header ``Expect`` that is none in the error shape.
    """
    for route in routes:
        if isinstance(route, web.RouteDef):
            yield web.RouteDef(route.method, route.path, route.handler, {**route.kwargs, "expect_handler": _expect})
        else:
            yield route


async def _expect(request: web.Request) -> web.StreamResponse | None:
    """
    Tell a client that waits with its body to send it.
    """
    if request.version < HttpVersion11:
        return None
    if request.headers.get("Expect", "").lower() != "100-continue":
        error = InvalidRequest("The only thing to expect here is 100-continue; leave the header out.", param="Expect")
        return answer_problem(error, request)
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    # The answer itself has not begun.
    request.writer.output_size = 0
    return None
