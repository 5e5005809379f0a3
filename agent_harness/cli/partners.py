"""
Whom a conversation is held with: a session at a server, or one of a harness in this process.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol

from agent_harness.client import Client, Functions, Session
from agent_harness.engine.harness import Harness
from agent_harness.engine.session import Session as LocalSession
from agent_harness.errors import Conflict, NotFound
from agent_harness.protocol.commands import Interrupt, InterruptData
from agent_harness.protocol.events import OutputItemDone, SessionStatus
from agent_harness.protocol.items import FunctionCall
from agent_harness.protocol.pages import Snapshot
from agent_harness.protocol.requests import read_create
from agent_harness.protocol.tolerant import AnyEvent

__all__ = ["AtServer", "InProcess", "Partner"]

Tools = Sequence[Callable[..., Any]]


class Partner(Protocol):
    """
    A session, wherever it is.
    """

    @property
    def session_id(self) -> str:
        """
        The session's id.
        """

    @property
    def resumable(self) -> bool:
        """
        Whether the session outlives this process.
        """

    def send(self, text: str) -> AsyncIterator[AnyEvent]:
        """
        Say something; the events of the turn that answers it. Tools run meanwhile.
        """

    async def snapshot(self, *, include_items: bool = False) -> Snapshot:
        """
        The session as it is.
        """

    async def interrupt(self, response_id: str | None) -> bool:
        """
        End the running turn, or none if another one is named; whether one ended.
        """


class AtServer:
    """
    A session at a server.
    """

    resumable = True

    def __init__(self, session: Session, tools: Tools) -> None:
        self._session = session
        self._functions = Functions(tools)

    @classmethod
    async def open(cls, client: Client, tools: Tools, *, session_id: str | None, body: Mapping[str, Any]) -> "AtServer":
        """
        The session with that id, or a new one made with *body* (``agent`` or ``agent_id``).

        Raises:
            RequestError, ConnectionError: there is none, or none can be had.
        """
        if session_id is None:
            return cls(await client.sessions.create(**body), tools)
        return cls(await client.sessions.get(session_id), tools)

    @property
    def session_id(self) -> str:
        return self._session.id

    def send(self, text: str) -> AsyncIterator[AnyEvent]:
        return self._session.send(text, tools=self._functions)

    async def snapshot(self, *, include_items: bool = False) -> Snapshot:
        return await self._session.snapshot(include_items=include_items)

    async def interrupt(self, response_id: str | None) -> bool:
        return (await self._session.interrupt(response_id)).interrupted

    def can_answer(self, snapshot: Snapshot) -> bool:
        """
        Whether every open call is one of a tool that runs here.
        """
        return all(action.name in self._functions for action in snapshot.required_actions)

    async def rejoin(self) -> AsyncIterator[AnyEvent]:
        """
        Follow what runs until the session rests, and answer the open calls of tools that run here.
        """
        running: dict[str, asyncio.Task[None]] = {}
        try:
            async with self._session.follow() as stream:
                async for event in stream:
                    yield event
                    if isinstance(event, SessionStatus) and event.status in ("idle", "failed"):
                        return
                    if isinstance(event, OutputItemDone) and isinstance(event.item, FunctionCall):
                        self._attend(event.item, running)
        finally:
            for task in running.values():
                task.cancel()
            await asyncio.gather(*running.values(), return_exceptions=True)

    def _attend(self, call: FunctionCall, running: dict[str, asyncio.Task[None]]) -> None:
        if call.status != "action_required":
            if call.call_id in running:
                running[call.call_id].cancel()
        elif call.name in self._functions and call.call_id not in running:
            running[call.call_id] = asyncio.create_task(self._answer(call))

    async def _answer(self, call: FunctionCall) -> None:
        output = await self._functions.run(call.call_id, call.name, call.arguments, self.session_id)
        try:
            await self._session.submit(call.call_id, output.output, output.is_error)
        except (Conflict, NotFound):
            pass  # another was quicker, or the call is closed


class InProcess:
    """
    A session of a harness in this process.
    """

    resumable = False

    def __init__(self, session: LocalSession, tools: Tools) -> None:
        self._session = session
        self._tools = tools

    @classmethod
    def open(cls, harness: Harness, tools: Tools, body: Mapping[str, Any]) -> "InProcess":
        """
        A new session made with *body* (``agent`` or ``agent_id``).

        Raises:
            RequestError: none can be made of it.
        """
        return cls(harness.create(read_create(dict(body), int(time.time()))), tools)

    @property
    def session_id(self) -> str:
        return self._session.id

    def send(self, text: str) -> AsyncIterator[AnyEvent]:
        return self._session.run(text, tools=self._tools)

    async def snapshot(self, *, include_items: bool = False) -> Snapshot:
        return self._session.snapshot(include_items=include_items)

    async def interrupt(self, response_id: str | None) -> bool:
        command = Interrupt(data=InterruptData(response_id=response_id))
        return (await self._session.interrupt(command)).interrupted
