"""
One session on a real engine, driven by bodies as clients post them, and read by what it publishes.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from agent_harness.config import Limits
from agent_harness.engine.follower import Follower, Published
from agent_harness.engine.harness import Harness
from agent_harness.engine.session import Session
from agent_harness.llm.base import Model
from agent_harness.llm.scripted import ScriptedModel
from agent_harness.protocol import events as said
from agent_harness.protocol.encode import to_wire
from agent_harness.protocol.requests import read_create, read_events, read_fork, read_update
from tests.engine.laws import check_log, check_requests, check_rest, check_snapshot

__all__ = ["TOOLS", "Rig", "make_harness", "open_rig", "ticks"]

WAIT_S = 5.0
DONE = said.OutputItemDone
TOOLS = [
    {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}},
    {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}},
]


async def ticks(count: int) -> None:
    """
    Let everything else run for *count* rounds of the event loop.
    """
    for _ in range(count):
        await asyncio.sleep(0)


class Rig:
    """
    A session, its harness and its model. Keeps every event from the first on (`log`).
    """

    def __init__(self, harness: Harness, session: Session, model: Any) -> None:
        self.harness, self.session, self.model = harness, session, model
        self._follower: Follower = session.follow("0")

    # What clients do.

    def send(self, content: Any = "hello", **body: Any) -> Any:
        """
        Post a message; tools `look` and `find` unless told otherwise.
        """
        tools = {"tools": body.pop("tools", TOOLS)}
        given = {key: value for key, value in tools.items() if value is not None}
        return self.session.send(read_events({"type": "message", "data": {"content": content}, **given, **body}))

    def result(self, call_id: str, output: Any = "ok", **data: Any) -> Any:
        """
        Post one result.
        """
        command = read_events({"type": "function_call_output", "data": {"call_id": call_id, "output": output, **data}})
        return self.session.submit_all([command.data], ["data.call_id"])[0]

    def batch(self, *results: Mapping[str, Any]) -> Any:
        """
        Post results together.
        """
        commands = read_events({"events": [{"type": "function_call_output", "data": dict(data)} for data in results]})
        params = [f"events[{index}].data.call_id" for index in range(len(commands))]
        return self.session.submit_all([command.data for command in commands], params)

    async def interrupt(self, **data: Any) -> Any:
        """
        Post an interrupt.
        """
        async with asyncio.timeout(WAIT_S):
            return await self.session.interrupt(read_events({"type": "interrupt", "data": data}))

    def update(self, **agent: Any) -> None:
        """
        Patch the agent.
        """
        self.session.update(read_update({"agent": agent}))

    def fork(self, up_to_item_id: str | None = None) -> "Rig":
        """
        Fork the session.
        """
        command = read_fork({} if up_to_item_id is None else {"up_to_item_id": up_to_item_id})
        return Rig(self.harness, self.harness.fork(self.session, command), self.model)

    # What is seen.

    @property
    def log(self) -> list[Published]:
        """
        Every event so far.
        """
        return self.session.feed.kept()

    @property
    def events(self) -> list[said.Event]:
        """
        Every event so far, without numbers.
        """
        return [published.event for published in self.log]

    def all(self, kind: type) -> list[Any]:
        """
        The events of one kind so far.
        """
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def requests(self) -> list[Any]:
        """
        The requests that this session's model was sent.
        """
        return [request for request in self.model.requests if request.session_id == self.session.id]

    def sent(self, number: int = -1) -> list[str]:
        """
        One request's items in short, `user:…`, `assistant:…`, `call:id`, `output:id=…`, as the model reads them.
        """
        return [brief(item) for block in self.requests[number].blocks for item in (*block.items, *block.outputs)]

    @property
    def snapshot(self) -> Any:
        """
        The session's snapshot as on the wire.
        """
        return to_wire(self.session.snapshot())

    @property
    def open(self) -> list[str]:
        """
        The ids of the open calls.
        """
        return [action.call_id for action in self.session.snapshot(include_items=False).required_actions]

    def turn(self, response_id: str) -> Any:
        """
        One turn's record, as on the wire.
        """
        return to_wire(self.session.transcript.turns[response_id])

    async def until(self, condition: Callable[[], Any]) -> None:
        """
        Wait, event by event, until *condition* holds; at most 5 s.
        """
        async with asyncio.timeout(WAIT_S):
            while not condition():
                taken = await self._follower.take()
                assert taken, f"the stream ended; {self.session!r}"

    async def asked(self, count: int = 1) -> None:
        """
        Wait until the model was sent *count* requests (which no event tells).
        """
        async with asyncio.timeout(WAIT_S):
            while len(self.requests) < count:
                await ticks(1)

    async def waiting(self, count: int = 1) -> list[str]:
        """
        Wait until at least *count* calls are open; their ids.
        """
        await self.until(lambda: len(self.open) >= count)
        return self.open

    async def announced(self, count: int = 1) -> None:
        """
        Wait until *count* calls were announced, open or closed by now.
        """
        await self.until(lambda: sum(event.item.status == "action_required" for event in self.all(DONE)) >= count)

    async def finished(self, response_id: str | None = None) -> str:
        """
        Wait until that turn has ended (None: until no turn runs) and return its status (the session's).
        """
        if response_id is None:
            await self.until(lambda: self.session.status in ("idle", "failed"))
            return str(self.session.status)
        ended = ("completed", "failed", "cancelled", "incomplete")
        await self.until(lambda: self.turn(response_id)["status"] in ended)
        return str(self.turn(response_id)["status"])

    async def settled(self) -> str:
        """
        Wait until nothing runs, and judge the session by all laws; its status.
        """
        status = await self.finished()
        async with asyncio.timeout(WAIT_S):
            while self.harness.running_turns:
                await ticks(1)
        self.check()
        check_rest(self.session)
        return status

    def check(self) -> None:
        """
        Judge what was published, what is shown and what the model was sent by the laws that hold at any moment.
        """
        check_log(self.log)
        check_snapshot(self.log, self.session)
        check_requests(self.requests)


def brief(item: Any) -> str:
    """
    An item of a request in short.
    """
    if item.type == "message":
        return f"{item.role}:" + "".join(part.text for part in item.content)
    if item.type == "function_call":
        return f"call:{item.call_id}"
    if item.type == "function_call_output":
        return f"output:{item.call_id}=" + ("Error: " if item.is_error else "") + str(item.output)
    return "reasoning"


def make_harness(models: Mapping[str, Model], **limits: Any) -> Harness:
    """
    A harness that keeps every event.
    """
    return Harness(models, limits=Limits(**{"replay_events": 1_000_000, **limits}))


@asynccontextmanager
async def open_rig(
    steps: Iterable[Any] = (), *, agent: Mapping[str, Any] | None = None, model: Model | None = None, **limits: Any
) -> AsyncIterator[Rig]:
    """
    A new session whose model follows *steps* (or is *model*); nothing of it is left when the block ends.
    """
    answering = model or ScriptedModel(steps)
    harness = make_harness({"default": answering}, **limits)
    try:
        session = harness.create(read_create({"agent": dict(agent or {})}, 0))
        yield Rig(harness, session, answering)
    finally:
        async with asyncio.timeout(WAIT_S):
            await harness.aclose()
        assert harness.running_turns == 0
