"""
A server process: one application on one socket, until a signal ends it.
"""

import asyncio
import contextlib
import errno
import signal
from collections.abc import Awaitable, Callable

from aiohttp import web

from agent_harness.errors import ListenError
from agent_harness.memory import care_for_memory

__all__ = ["serve_app"]

SHUTDOWN_S = 5.0
"""How long open requests may go on when the server stops, in seconds; streams are ended before."""


async def serve_app(
    app: web.Application,
    host: str,
    port: int,
    *,
    on_listening: Callable[[str], None] = lambda url: None,
    warm: Callable[[], None] = lambda: None,
    on_stopping: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """
    Serve *app* until SIGINT or SIGTERM, then close it and return; a second signal ends the process at once.

    *on_listening* gets the base URL, with the real port where *port* is 0. *warm* imports what the first requests would
    import, in a thread, while serving. *on_stopping* is awaited while still serving.

    Raises:
        ListenError: the address cannot be used; the message names it.
    """
    stop = asyncio.Event()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await _start(site, host, port)
        _watch_signals(stop)
        on_listening(_url(runner, host))
        caring = asyncio.get_running_loop().create_task(care_for_memory(warm))
        await stop.wait()
        caring.cancel()
        if on_stopping is not None:
            await on_stopping()
    finally:
        await runner.cleanup()


async def _start(site: web.TCPSite, host: str, port: int) -> None:
    try:
        await site.start()
    except OSError as error:
        busy = error.errno == errno.EADDRINUSE
        reason = "is in use; stop what runs there or choose another --port" if busy else f"cannot be used ({error})"
        raise ListenError(f"{_address(host, port)} {reason}.") from None


def _watch_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def end() -> None:
        if stop.is_set():
            # The second time: whoever asks twice wants it now.
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        stop.set()

    # Where loops know no signals (Windows), Ctrl-C ends the program.
    with contextlib.suppress(NotImplementedError):
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end)


def _url(runner: web.AppRunner, host: str) -> str:
    return f"http://{_address(host, runner.addresses[0][1])}"


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
