"""
Answers wait for the disk: what a client is told, in an answer or a refusal, survives the end of the process.
"""

from collections.abc import Awaitable, Callable

from aiohttp import web

from agent_harness.engine.harness import Harness
from agent_harness.errors import RequestError

__all__ = ["HARNESS", "hold_answers"]

HARNESS: web.AppKey[Harness] = web.AppKey("harness", Harness)
"""Where an application keeps its harness."""


@web.middleware
async def hold_answers(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """
    Send an answer when everything kept before it is written down. Streams see to it themselves.
    """
    harness = request.app[HARNESS]
    if harness.journal is None or getattr(request.match_info.handler, "needs_no_key", False):
        return await handler(request)
    try:
        answer = await handler(request)
    except RequestError:
        await harness.committed()
        raise
    if not answer.prepared:
        await harness.committed()
    return answer
