"""
A message, and the turn that answers it.
"""

import secrets
from collections.abc import Mapping
from typing import Any

from agent_harness.client.calls import Calls
from agent_harness.client.connection import Connection
from agent_harness.client.results import Result, make_result
from agent_harness.client.stream import EventStream
from agent_harness.functions import Functions
from agent_harness.protocol.events import (
    TERMINAL_EVENTS,
    OutputItemAdded,
    OutputItemDone,
    SessionGap,
    SessionItem,
    SessionStatus,
)
from agent_harness.protocol.items import FunctionCall, Item
from agent_harness.protocol.tolerant import AnyEvent, read_event, read_item, read_turn, response_id_of
from agent_harness.protocol.turns import Turn

__all__ = ["Reply"]


class Reply:
    """
    An async iterator of the events of one turn, up to its terminal event; made by `agent_harness.client.Session.send`.
    The message is posted when the first event is asked for.

    Calls of functions that came with the message are run meanwhile, and their results posted. Leaving early (``break``,
    ``await aclose()``, ``async with``) cancels those, and only those: the turn goes on, its open calls stay open.

    Attributes:
        response_id, item_id: the turn and the message; None until the message was taken.
        queued: whether it waits, or waited, behind another turn.
    """

    def __init__(
        self,
        connection: Connection,
        session_id: str,
        path: str,
        message: Mapping[str, Any],
        functions: Functions,
        claimed: set[str],
        stream: EventStream,
    ) -> None:
        self.response_id: str | None = None
        self.item_id: str | None = None
        self.queued = False
        self._connection = connection
        self._path = path
        self._message = message
        self._key = secrets.token_hex(16)
        self._stream = stream
        self._calls = Calls(connection, session_id, f"{path}/events", functions, claimed, stream.close)
        self._items: dict[str, Item] = {}
        self._turn: Turn | None = None
        self._left = False
        self._gap = False
        self._ended_by: int | None = None

    @property
    def seq(self) -> int | None:
        """
        The number of the newest event that was read; None until the message was taken.
        """
        return self._stream.seq

    def __aiter__(self) -> "Reply":
        return self

    async def __anext__(self) -> AnyEvent:
        """
        The next event of the turn.

        Raises:
            RequestError: the message was refused, or the session is gone (NotFound).
            ConnectionError: the server cannot be reached, or stopped before the turn ended and did not come back.
        """
        if self._turn is not None or self._left:
            raise StopAsyncIteration
        if self.response_id is None:
            await self._post()
        stream = self._stream
        while True:
            if self._ended_by is not None and (stream.seq or 0) >= self._ended_by:
                return await self._read_missed_end()
            try:
                event = await anext(stream)
            except StopAsyncIteration:
                if self._left:
                    raise
                # The server stops, and the turn goes on where it is started again with what it wrote down.
                await stream.resume()
                continue
            if isinstance(event, SessionGap):
                self._bridge_gap()
                return event
            if response_id_of(event) == self.response_id and event is not stream.opening:
                self._note(event)
                return event

    async def __aenter__(self) -> "Reply":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def aclose(self) -> None:
        """
        Stop reading, and cancel the functions that run; idempotent.
        """
        self.close()

    def close(self) -> None:
        """
        The same, from where nothing can be awaited.
        """
        self._left = True
        self._calls.close_all()
        self._stream.close()

    def __del__(self) -> None:
        if hasattr(self, "_calls"):
            self.close()

    async def result(self) -> Result:
        """
        Read to the end of the turn, if it was not read yet, and say what it came to.

        Raises:
            RuntimeError: the reply was left before the turn's end.
        """
        async for _ in self:
            pass
        if self._turn is None:
            raise RuntimeError("this reply was left before its turn ended")
        items = await self._read_items() if self._gap else tuple(self._items.values())
        return make_result(self._turn, items)

    async def _post(self) -> None:
        answer = await self._connection.ask("POST", f"{self._path}/events", body=self._message, key=self._key)
        self.response_id, self.item_id = answer["response_id"], answer["item_id"]
        self.queued = answer["queued"]
        self._stream.seq = answer["seq"]

    # What events tell.

    def _note(self, event: AnyEvent) -> None:
        if isinstance(event, SessionItem | OutputItemAdded | OutputItemDone):
            if event.item.status != "queued":
                self._items[event.item.id] = event.item
            if isinstance(event, OutputItemDone) and isinstance(event.item, FunctionCall):
                self._note_call(event.item)
        elif isinstance(event, TERMINAL_EVENTS):
            self._end(event.response)

    def _note_call(self, call: FunctionCall) -> None:
        """
        A call was announced, or closed. One that was announced and closed while no connection stood is not begun.
        """
        if call.status != "action_required":
            self._calls.close(call.call_id)
        elif (self.seq or 0) > self._stream.opening_seq or call.call_id in _open_calls(self._stream.opening):
            self._calls.start(call.call_id, call.name, call.arguments)

    def _bridge_gap(self) -> None:
        """
        Events were lost. What is open now stands in the status that the connection began with; if the turn is not to be
        seen there it has ended, at the latest by that status's number.
        """
        self._gap = True
        now = self._stream.opening
        if now is not None and (now.response_id == self.response_id or self.item_id in now.queued):
            self._calls.close_all(but=_open_calls(now))
            for action in now.required_actions:
                if action.response_id == self.response_id:
                    self._calls.start(action.call_id, action.name, action.arguments)
        else:
            self._ended_by = self._stream.opening_seq

    async def _read_missed_end(self) -> AnyEvent:
        """
        The terminal event, made from the turn's record: the one that was sent is lost.
        """
        record = await self._connection.ask("GET", f"{self._path}/responses/{self.response_id}")
        self._end(read_turn(record))
        return read_event({"type": f"response.{record['status']}", "response": record})

    async def _read_items(self) -> tuple[Item, ...]:
        snapshot = await self._connection.ask("GET", self._path)
        items = [read_item(item) for item in snapshot["items"]]
        return tuple(item for item in items if item.response_id == self.response_id)

    def _end(self, turn: Turn) -> None:
        self._turn = turn
        self.close()


def _open_calls(status: SessionStatus | None) -> set[str]:
    return {action.call_id for action in status.required_actions} if status is not None else set()
