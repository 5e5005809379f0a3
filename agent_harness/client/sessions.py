"""
The client, and the sessions it finds at its server.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Literal, TypeVar

from agent_harness.client.connection import Connection, Timing
from agent_harness.client.session import Session, session_path, write_agent
from agent_harness.protocol.agents import Agent
from agent_harness.protocol.encode import to_wire
from agent_harness.protocol.items import Item
from agent_harness.protocol.pages import Snapshot
from agent_harness.protocol.tolerant import read_item, read_snapshot

__all__ = ["Client", "Pages", "Sessions"]

T = TypeVar("T")

Order = Literal["asc", "desc"]

_GIVEN = ("id", "status", "response_id", "created_at")
"""What the server gives each item, and takes from nobody."""


class Client:
    """
    A client of one server, for one event loop. Use it as ``async with Client(…) as client``, or close it with ``await
    aclose()``: its streams end then, functions that run are cancelled and waited for, and no task or socket is left.

    All times are seconds.

    Args:
        base_url: where the server is, with a prefix if it has one, without ``/v1``: ``http://127.0.0.1:8787``.
        api_key: sent as a bearer token.
        connect_timeout_s: longest wait for a connection.
        timeout_s: longest one try of a request may take. A turn is no request; it may take any time.
        idle_timeout_s: longest silence of a stream before it counts as broken; the server pings every 10 s.
        patience_s: how long a request, or a stream that broke, is tried again in vain before ConnectionError is raised,
            counted from the first failure. It is given up before a wait that would pass it.
        retry_base_s, retry_cap_s: waits between tries double from the base up to the cap.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        connect_timeout_s: float = 10.0,
        timeout_s: float = 60.0,
        idle_timeout_s: float = 30.0,
        patience_s: float = 30.0,
        retry_base_s: float = 0.1,
        retry_cap_s: float = 5.0,
    ) -> None:
        timing = Timing(
            connect_timeout_s=connect_timeout_s,
            timeout_s=timeout_s,
            idle_timeout_s=idle_timeout_s,
            patience_s=patience_s,
            retry_base_s=retry_base_s,
            retry_cap_s=retry_cap_s,
        )
        self._connection = Connection(base_url, api_key, timing)
        self.sessions = Sessions(self._connection)

    def __repr__(self) -> str:
        return f"<Client {self._connection.base_url}>"

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def health(self) -> dict[str, Any]:
        """
        Whether the server lives: ``status``, ``version`` and counts.
        """
        answer: dict[str, Any] = await self._connection.ask("GET", "/health")
        return answer

    async def aclose(self) -> None:
        """
        Close everything; idempotent. Whoever waits for an event gets RuntimeError.
        """
        await self._connection.aclose()


class Sessions:
    """
    ``client.sessions``. Errors are those of `agent_harness.errors`, as the server raised them.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def create(
        self,
        *,
        agent: Agent | Mapping[str, Any] | None = None,
        agent_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        items: Iterable[Item | Mapping[str, Any]] | None = None,
    ) -> Session:
        """
        Make a session.

        Args:
            agent: its settings; None for the server's defaults. A function among its ``tools`` gives its definition
                only; to be run here it comes with each message.
            agent_id: in its place, the name of an agent that the server knows.
            items: a transcript to start from, as dictionaries or as `items` gave them.
        """
        written = write_agent(to_wire(agent) if isinstance(agent, Agent) else agent)
        past = None if items is None else [_write_past(item) for item in items]
        body = {"agent": written, "agent_id": agent_id, "metadata": metadata, "items": past}
        given = {key: value for key, value in body.items() if value is not None}
        return self._open(await self._ask("POST", "/v1/sessions", body=given))

    async def get(self, session_id: str) -> Session:
        """
        A session that exists.

        Raises:
            NotFound: it does not.
        """
        return self._open(await self._ask("GET", session_path(session_id), query={"include_items": "false"}))

    def list(self, *, order: Order = "desc", page_size: int = 100) -> "Pages[Snapshot]":
        """
        All sessions, the newest first, without their items.
        """
        return Pages(self._connection, "/v1/sessions", order, page_size, read_snapshot)

    def items(self, session_id: str, *, order: Order = "asc", page_size: int = 100) -> "Pages[Item]":
        """
        A session's settled items, the oldest first.
        """
        path = f"{session_path(session_id)}/items"
        return Pages(self._connection, path, order, page_size, read_item)

    async def delete(self, session_id: str) -> None:
        """
        End a session and forget it.

        Raises:
            NotFound: there is none.
        """
        await self._ask("DELETE", session_path(session_id))

    async def fork(self, session_id: str, *, up_to_item_id: str | None = None) -> Session:
        """
        A new session with a copy of the settled items, up to and including one of them (None: all).
        """
        body = {} if up_to_item_id is None else {"up_to_item_id": up_to_item_id}
        return self._open(await self._ask("POST", f"{session_path(session_id)}/fork", body=body))

    def _open(self, snapshot: Mapping[str, Any]) -> Session:
        return Session(self._connection, snapshot["id"])

    async def _ask(self, method: str, path: str, **options: Any) -> Any:
        return await self._connection.ask(method, path, **options)


class Pages(Generic[T]):
    """
    An async iterator over a list at the server; a page is asked for when the one before it is used up.
    """

    def __init__(
        self, connection: Connection, path: str, order: Order, page_size: int, read: Callable[[Mapping[str, Any]], T]
    ) -> None:
        self._connection = connection
        self._path = path
        self._query = {"order": order, "limit": str(page_size)}
        self._read = read
        self._rows: deque[T] = deque()
        self._more = True

    def __aiter__(self) -> "Pages[T]":
        return self

    async def __anext__(self) -> T:
        """
        The next element.
        """
        while not self._rows:
            if not self._more:
                raise StopAsyncIteration
            page = await self._connection.ask("GET", self._path, query=self._query)
            self._rows.extend(map(self._read, page["data"]))
            self._more = page["has_more"]
            if self._more:
                self._query["after"] = page["last_id"]
        return self._rows.popleft()


def _write_past(item: Item | Mapping[str, Any]) -> dict[str, Any]:
    """
    An item in the shape in which it can be given.
    """
    written = item if isinstance(item, Mapping) else to_wire(item)
    return {key: value for key, value in written.items() if key not in _GIVEN}
