"""
A server in a thread of its own, for tests and programs that are synchronous.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType

from aiohttp import web

__all__ = ["ThreadServer"]

START_S = 10.0
STOP_S = 10.0
# How long a handler may finish what it does when the server stops; streams that never end are cut then.
GRACE_S = 1.0


class ThreadServer:
    """
    Serves an application on a real socket from an event loop in a daemon thread; a context manager.

    `make_app` is awaited in that loop, so that all an application builds belongs to it. `url` is the base URL without a
    slash at its end, known once the server listens. A failure of `make_app` or of the socket is raised by `__enter__`,
    one of the cleanup by `__exit__`. Used up after one `with`.
    """

    def __init__(
        self, make_app: Callable[[], Awaitable[web.Application]], host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.url = ""
        self._make_app = make_app
        self._host = host
        self._port = port
        self._listening = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="ThreadServer", daemon=True)

    def __enter__(self) -> ThreadServer:
        """
        Start the thread and wait until the server listens.

        :raises TimeoutError: when it does not within 10 s.
        """
        self._thread.start()
        if not self._listening.wait(START_S):
            self._stop()
            raise TimeoutError(f"the server did not listen within {START_S:g} s")
        if self._failure is not None:
            self._thread.join(STOP_S)
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """
        Stop the server, end its tasks, close its loop, and wait for the thread.

        :raises TimeoutError: when the thread does not end within 10 s.
        """
        self._stop()
        if self._failure is not None and error is None:
            raise self._failure

    def _stop(self) -> None:
        """
        Cancel the serving task and join the thread.
        """
        if self._loop is not None and self._task is not None:
            try:
                self._loop.call_soon_threadsafe(self._task.cancel)
            except RuntimeError:
                pass  # the loop has ended by itself
        self._thread.join(STOP_S)
        if self._thread.is_alive():
            raise TimeoutError(f"the server's thread did not end within {STOP_S:g} s")

    def _run(self) -> None:
        """
        Run the loop from start to end; `asyncio.run` cancels what tasks are left and closes it.
        """
        try:
            asyncio.run(self._serve())
        except asyncio.CancelledError:
            pass
        except BaseException as failure:
            self._failure = failure
        finally:
            self._listening.set()

    async def _serve(self) -> None:
        """
        Serve until cancelled.
        """
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        runner = web.AppRunner(await self._make_app(), access_log=None, shutdown_timeout=GRACE_S)
        try:
            await runner.setup()
            await web.TCPSite(runner, self._host, self._port).start()
            host, port = runner.addresses[0][:2]
            self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            self._listening.set()
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()
