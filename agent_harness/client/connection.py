"""
Requests: each is repeated until it is answered, within bounds, and takes effect once.
"""

import asyncio
import io
import random
import secrets
import warnings
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol
from weakref import WeakSet

import aiohttp
import attrs
import orjson
from yarl import URL

from agent_harness.client.problems import read_problem
from agent_harness.errors import InternalError, NotFound

__all__ = ["Again", "Connection", "Retries", "Timing"]

READ_BUFFER = 256 * 1024
"""How much of a stream is taken at once, in bytes: frames may have many megabytes."""

CLOSE_WAIT_S = 5.0
"""How long closing waits for functions that were cancelled, in seconds."""

_BROKEN = (aiohttp.ClientError, OSError, TimeoutError)
"""What a connection that fails raises."""

_PASSING = frozenset({502, 503, 504})
"""Answers of a server, or of a proxy before it, that may be back in a moment."""


@attrs.frozen(kw_only=True)
class Timing:
    """
    All waits, in seconds; see `agent_harness.client.Client`.
    """

    connect_timeout_s: float = 10.0
    timeout_s: float = 60.0
    idle_timeout_s: float = 30.0
    patience_s: float = 30.0
    retry_base_s: float = 0.1
    retry_cap_s: float = 5.0


class Again(Exception):
    """
    A try that failed, but not for good. ``after`` is how many seconds the server asks to wait.
    """

    def __init__(self, error: Exception, after: float | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.after = after


class Retries:
    """
    How long and how often one thing is tried. Waits double from ``retry_base_s`` up to ``retry_cap_s``, each shortened
    at random by up to half; ``patience_s`` after the first failure in a row it is given up.
    """

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self.reset()

    def reset(self) -> None:
        """
        It worked: the next failure is the first again.
        """
        self.failures = 0
        self._until = 0.0

    async def wait(self, again: Again) -> None:
        """
        Wait before the next try.

        Raises:
            ConnectionError, RequestError: patience is over, or would be.
            RuntimeError: the client was closed.
        """
        timing, now = self._connection.timing, asyncio.get_running_loop().time()
        if not self.failures:
            self._until = now + timing.patience_s
        self.failures += 1
        delay = min(timing.retry_cap_s, timing.retry_base_s * 2 ** min(self.failures - 1, 30))
        delay *= random.uniform(0.5, 1)
        if again.after is not None:
            delay = max(delay, again.after)
        if now + delay > self._until:
            if not isinstance(again.error, _BROKEN):
                raise again.error
            said = str(again.error) or type(again.error).__name__
            message = f"{self._connection.base_url} cannot be reached ({said}); tried {self.failures} times."
            raise ConnectionError(message) from again.error
        await self._connection.pause(delay)


class Stream(Protocol):
    """
    What is to be ended with the connection.
    """

    def close(self, failure: Exception | None = None) -> None:
        """
        End it; whoever reads it gets *failure*.
        """


class Connection:
    """
    The HTTP side of a client. Opens its sockets on first use, on the loop that runs then.

    Args:
        base_url: where the server's paths begin, without ``/v1``.
        api_key: sent as a bearer token, if given.
    """

    def __init__(self, base_url: str, api_key: str | None, timing: Timing) -> None:
        self.base_url = base_url.rstrip("/")
        if URL(self.base_url).scheme not in ("http", "https") or not URL(self.base_url).host:
            raise ValueError(f"base_url begins with http:// or https://, unlike {base_url!r}")
        if self.base_url.endswith("/v1"):
            raise ValueError(f"base_url is where /v1 begins: leave it out, {self.base_url.removesuffix('/v1')!r}")
        self.timing = timing
        self.closed = False
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._http: aiohttp.ClientSession | None = None
        self._closing: asyncio.Event = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.streams: WeakSet[Stream] = WeakSet()

    def __del__(self) -> None:
        if getattr(self, "_http", None) is not None:
            message = f"The client of {self.base_url} was never closed; await its aclose()."
            warnings.warn(message, ResourceWarning, stacklevel=2)

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        key: str | None = None,
    ) -> Any:
        """
        One request and its JSON, tried again after broken connections, 502, 503, 504, and 429 with ``Retry-After``.

        Args:
            body: JSON.
            key: a POST's ``Idempotency-Key``; a new one if None.

        Raises:
            RequestError: it was refused.
            ConnectionError: the server cannot be reached.
            ValueError: *body* cannot be written as JSON.
        """
        data = None if body is None else dump_body(body)
        headers = {} if data is None else {"Content-Type": "application/json"}
        if method == "POST":
            headers["Idempotency-Key"] = key or secrets.token_hex(16)
        timing = self.timing
        timeout = aiohttp.ClientTimeout(total=timing.timeout_s, sock_connect=timing.connect_timeout_s)
        retries = Retries(self)
        while True:
            try:
                response = await self.open(method, path, headers=headers, data=data, query=query, timeout=timeout)
                return _read_json(response.status, await self._read(response))
            except Again as again:
                await retries.wait(again)
            except NotFound:
                if method == "DELETE" and retries.failures:
                    return None  # an earlier try was heard, its answer was not
                raise

    async def open(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
        data: bytes | None = None,
        query: Mapping[str, str] | None = None,
    ) -> aiohttp.ClientResponse:
        """
        One try; the answer, its body unread.

        Raises:
            Again: another try may do better.
            RequestError: it was refused.
        """
        try:
            response = await self._session().request(
                method,
                URL(self.base_url + path).with_query(query),
                headers=headers,
                # A file: large bodies given as bytes make aiohttp warn.
                data=None if data is None else io.BytesIO(data),
                timeout=timeout,
                allow_redirects=False,
            )
        except (aiohttp.InvalidURL, aiohttp.ClientSSLError) as error:
            raise ConnectionError(f"{self.base_url} cannot be used: {error}") from error
        except Again:
            self.check_open()
            raise
        if response.status < 300:
            return response
        problem = read_problem(response.status, await self._read(response))
        after = _read_retry_after(response.headers.get("Retry-After"))
        if response.status in _PASSING or (response.status == 429 and after is not None):
            raise Again(problem, after)
        raise problem

    async def pause(self, delay: float) -> None:
        """
        Wait *delay* seconds, or less: until the client is closed.

        Raises:
            RuntimeError: it was closed.
        """
        self.check_open()
        try:
            async with asyncio.timeout(delay):
                await self._closing.wait()
        except TimeoutError:
            pass
        self.check_open()

    def check_open(self) -> None:
        """
        Raise RuntimeError if the client was closed.
        """
        if self.closed:
            raise RuntimeError("this client is closed")

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """
        Run something in a task that ends with the client, if not before.
        """
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def aclose(self) -> None:
        """
        End all streams, cancel all tasks, wait for them, and close all sockets; idempotent.
        """
        self.closed = True
        self._closing.set()
        for stream in list(self.streams):
            stream.close(RuntimeError("this client is closed"))
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_WAIT_S)
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        try:
            async with response:
                return await response.read()
        except _BROKEN as error:
            self.check_open()
            raise Again(error) from error

    def _session(self) -> aiohttp.ClientSession:
        self.check_open()
        if self._http is None:
            # No bound on connections: each follower holds one, and a result must never wait for a free one.
            connector = aiohttp.TCPConnector(limit=0)
            self._http = aiohttp.ClientSession(
                connector=connector, headers=self._headers, read_bufsize=READ_BUFFER, middlewares=(_try_once,)
            )
        return self._http


async def _try_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """
    A middleware. aiohttp itself repeats some requests, unseen; every try is to be counted here.
    """
    try:
        return await handler(request)
    except aiohttp.ClientSSLError:
        raise
    except _BROKEN as error:
        raise Again(error) from error


def dump_body(body: Any) -> bytes:
    """
    *body* as JSON.

    Raises:
        ValueError: it cannot be written.
    """
    try:
        return orjson.dumps(body)
    except TypeError as error:
        raise ValueError(f"this cannot be sent as JSON: {error}") from error


def _read_json(status: int, raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        text = raw[:200].decode(errors="replace")
        message = f"What answers there is no agent-harness server: HTTP {status} without JSON: {text}"
        raise InternalError(message, code=f"http_{status}") from None


def _read_retry_after(value: str | None) -> float | None:
    """
    Seconds; the form with a date is not read.
    """
    try:
        return None if value is None else max(0.0, float(value))
    except ValueError:
        return None
