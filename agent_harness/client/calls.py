"""
Calls that are answered here: each runs once, and its result is posted until the server has it.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection
from typing import Any

from agent_harness.client.connection import Connection
from agent_harness.errors import Conflict, InvalidRequest, NotFound, RequestTooLarge
from agent_harness.functions import Functions
from agent_harness.protocol.commands import OutputData
from agent_harness.protocol.encode import to_wire

__all__ = ["Calls"]


class Calls:
    """
    The calls of one reply.

    Args:
        session_id: the session; results go to *path*.
        claimed: the call_ids of the session that somebody here has taken; shared by all its replies.
        on_failure: called with the error if a result cannot be brought to the server at all.
    """

    def __init__(
        self,
        connection: Connection,
        session_id: str,
        path: str,
        functions: Functions,
        claimed: set[str],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._connection = connection
        self._session_id = session_id
        self._path = path
        self._functions = functions
        self._claimed = claimed
        self._on_failure = on_failure
        self._running: dict[str, asyncio.Task[None]] = {}

    def start(self, call_id: str, name: str, arguments: str) -> None:
        """
        Run the call, if its function is here and nobody has taken it yet.
        """
        if name in self._functions and call_id not in self._claimed:
            self._claimed.add(call_id)
            self._running[call_id] = self._connection.spawn(self._answer(call_id, name, arguments))

    def close(self, call_id: str) -> None:
        """
        The call is closed: stop what still runs for it. A result that is on its way is not held back.
        """
        task = self._running.pop(call_id, None)
        if task is not None:
            # The loop is gone when a reply is dropped after its end; so is the task then.
            with contextlib.suppress(RuntimeError):
                task.cancel()

    def close_all(self, but: Collection[str] = ()) -> None:
        """
        Close every call except those in *but*.
        """
        for call_id in list(self._running):
            if call_id not in but:
                self.close(call_id)

    async def _answer(self, call_id: str, name: str, arguments: str) -> None:
        try:
            output = await self._functions.run(call_id, name, arguments, self._session_id)
        finally:
            self._running.pop(call_id, None)
            self._functions.forget(call_id, self._session_id)
        try:
            await self._post(output)
        except Exception as error:
            self._on_failure(error)

    async def _post(self, output: OutputData) -> None:
        """
        Post a result. One that comes too late, or that another has forestalled, is nobody's fault; one that the server
        cannot take is replaced by the reason, so that the model hears it and the turn goes on.
        """
        try:
            await self._send(output)
        except (RequestTooLarge, InvalidRequest) as error:
            message = f"The result could not be taken: {error.message}"
            await self._send(OutputData(call_id=output.call_id, output=message, is_error=True))

    async def _send(self, output: OutputData) -> None:
        body: dict[str, Any] = {"type": "function_call_output", "data": to_wire(output)}
        try:
            await self._connection.ask("POST", self._path, body=body)
        except NotFound:
            pass
        except Conflict as error:
            if error.code not in ("call_already_answered", "call_closed"):
                raise
