"""
A test server that does what ``agent-harness serve`` does with clients that leave.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

__all__ = ["AppServer"]


class AppServer(TestServer):
    """
    aiohttp's test server, except that it lets handlers of clients that left go on, as servers outside of tests do; with
    `handler_cancellation` it cancels them, for programs that serve so.
    """

    def __init__(self, app: web.Application, *, handler_cancellation: bool = False, **options: Any) -> None:
        super().__init__(app, **options)
        self._handler_cancellation = handler_cancellation

    async def _make_runner(self, **options: Any) -> web.AppRunner:
        return web.AppRunner(self.app, **{**options, "handler_cancellation": self._handler_cancellation})
