"""
A session at the server, to talk with.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

from agent_harness.client.connection import Connection
from agent_harness.client.reply import Reply
from agent_harness.client.results import Accepted, Interrupted, Result
from agent_harness.client.stream import EventStream
from agent_harness.functions import Functions
from agent_harness.protocol.commands import Delivery, InputPart
from agent_harness.protocol.encode import to_wire
from agent_harness.protocol.pages import Snapshot
from agent_harness.protocol.tolerant import read_snapshot
from agent_harness.protocol.tools import NamedChoice, Tool

__all__ = ["Content", "Offer", "Session", "session_path", "write_agent"]

Content = str | Sequence[InputPart | Mapping[str, Any]]
"""A text, or parts as values or as the wire's dictionaries."""

Offer = Functions | Iterable[Callable[..., Any] | Tool | Mapping[str, Any]] | None
"""Tools of a message; a `Functions` where a limit or tracebacks are wanted."""

Choice = Literal["auto", "none", "required"] | NamedChoice | Mapping[str, Any] | None


def session_path(session_id: str) -> str:
    """
    Where a session is, below the server's base URL.
    """
    return f"/v1/sessions/{quote(session_id, safe='')}"


class Session:
    """
    Made by `agent_harness.client.Sessions`. One handle runs each call once, however many replies are read at the same
    time; two handles of one session know nothing of each other.
    """

    def __init__(self, connection: Connection, session_id: str) -> None:
        self.id = session_id
        self._connection = connection
        self._path = session_path(session_id)
        self._claimed: set[str] = set()

    def __repr__(self) -> str:
        return f"<Session {self.id}>"

    async def snapshot(self, *, include_items: bool = True) -> Snapshot:
        """
        The session as it is.
        """
        query = None if include_items else {"include_items": "false"}
        return read_snapshot(await self._ask("GET", query=query))

    async def update(self, *, agent: Mapping[str, Any] | None = None, metadata: Any = None) -> Snapshot:
        """
        Change fields of the agent (None: back to its default) and keys of the metadata (None: away with it).
        """
        body = {"agent": write_agent(agent), "metadata": metadata}
        return read_snapshot(await self._ask("PATCH", body={key: value for key, value in body.items() if value}))

    def send(
        self, content: Content, *, tools: Offer = None, tool_choice: Choice = None, delivery: Delivery | None = None
    ) -> Reply:
        """
        Say something; the events of the turn that answers it.

        Args:
            tools: functions that run here, and definitions whose calls are answered by `submit`; for this turn only.
            tool_choice: for the turn's first model call: ``auto``, ``none``, ``required``, or a `NamedChoice` (as a
                dictionary: ``{"type": "function", "name": "…"}``).
            delivery: what to do while a turn runs: ``queue`` (the default), ``steer`` or ``reject``.

        Raises:
            TypeError, ValueError: *content* is neither a text nor a list of parts, or a function cannot be offered.
        """
        functions = tools if isinstance(tools, Functions) else Functions(tools or ())
        data = {"role": "user", "content": _write_content("content", content)}
        message: dict[str, Any] = {"type": "message", "data": data}
        if functions.definitions:
            message["tools"] = functions.definitions
        if tool_choice is not None:
            message["tool_choice"] = _write_value(tool_choice)
        if delivery is not None:
            message["delivery"] = delivery
        return Reply(self._connection, self.id, self._path, message, functions, self._claimed, self.follow())

    async def run(
        self, content: Content, *, tools: Offer = None, tool_choice: Choice = None, delivery: Delivery | None = None
    ) -> Result:
        """
        Say something, and wait for the end of the turn; arguments as for `send`. A turn that failed raises nothing: its
        result has the status ``failed`` and the ``error``.
        """
        async with self.send(content, tools=tools, tool_choice=tool_choice, delivery=delivery) as reply:
            return await reply.result()

    async def submit(self, call_id: str, output: Content | None, is_error: bool = False) -> Accepted:
        """
        Answer an open call.

        Raises:
            NotFound: no such call was announced.
            Conflict: it was answered otherwise, or closed.
        """
        written = None if output is None else _write_content("output", output)
        data = {"call_id": call_id, "output": written, "is_error": is_error}
        answer = await self._post({"type": "function_call_output", "data": data})
        return Accepted(
            call_id=answer["call_id"], item_id=answer["item_id"], duplicate=answer["duplicate"], seq=answer["seq"]
        )

    async def interrupt(self, response_id: str | None = None, *, clear_queue: bool = False) -> Interrupted:
        """
        Stop the running turn, or none if *response_id* is another's; with *clear_queue* drop waiting messages too.
        """
        data = {"response_id": response_id, "clear_queue": clear_queue}
        answer = await self._post({"type": "interrupt", "data": data})
        return Interrupted(
            interrupted=answer["interrupted"],
            response_id=answer["response_id"],
            dropped=tuple(answer["dropped"]),
            seq=answer["seq"],
        )

    def follow(self, after: int | None = None) -> EventStream:
        """
        All events of the session: from now on, with the open calls announced again first, or behind number *after* (0:
        from the beginning). The first one is the present status.
        """
        return EventStream(self._connection, f"{self._path}/stream", after)

    async def _post(self, body: Any) -> Any:
        return await self._connection.ask("POST", f"{self._path}/events", body=body)

    async def _ask(self, method: str, **options: Any) -> Any:
        return await self._connection.ask(method, self._path, **options)


def _write_content(argument: str, content: Content) -> Any:
    if isinstance(content, str):
        return content
    if isinstance(content, bytes | bytearray | Mapping) or not isinstance(content, Iterable):
        raise TypeError(f"{argument} is a text or a list of parts, not {content!r}")
    return [_write_value(part) for part in content]


def _write_value(value: Any) -> Any:
    return value if isinstance(value, Mapping | str) else to_wire(value)


def write_agent(agent: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """
    Fields of an agent; its tools may be values, or functions, of which the server keeps the definition.
    """
    if agent is None:
        return None
    tools = agent.get("tools")
    return dict(agent) if tools is None else {**agent, "tools": Functions(tools).definitions}
