"""
Models for tests that fail or break their contract.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from agent_harness.errors import ModelError
from agent_harness.llm.base import (
    ArgumentsDelta,
    Delta,
    Ended,
    ItemAdded,
    ItemDone,
    Request,
    Retrying,
    SummaryDelta,
    TextDelta,
)
from agent_harness.llm.scripted import say, think
from tests.engine.rig import Rig

__all__ = ["BEGINNINGS", "CALL", "DOWN", "REASONING", "TEXT", "OddModel", "check_failure", "raising", "yielding"]

Behaviour = Callable[[Request], AsyncIterator[Any]]
DOWN = ModelError("The provider is down.", code="provider_unavailable")


class OddModel:
    """
    Answers by the behaviours given, one a request; then says "fine".
    """

    default_model = "odd"

    def __init__(self, *behaviours: Behaviour) -> None:
        self.behaviours = list(behaviours)
        self.requests: list[Request] = []

    def stream(self, request: Request) -> Any:
        self.requests.append(request)
        return self.behaviours.pop(0)(request) if self.behaviours else fine(request)

    def body(self, request: Request) -> bytes:
        return b"{}"


async def fine(request: Request) -> AsyncIterator[Delta]:
    for part in say("fine").parts:
        await asyncio.sleep(0)
        yield part  # type: ignore[misc]
    yield Ended()


def yielding(*deltas: Any) -> Behaviour:
    """
    A behaviour that yields *deltas* and stops.
    """

    async def stream(request: Request) -> AsyncIterator[Any]:
        for delta in deltas:
            await asyncio.sleep(0)
            yield delta

    return stream


def raising(error: BaseException, *deltas: Any) -> Behaviour:
    """
    A behaviour that yields *deltas* and raises.
    """

    async def stream(request: Request) -> AsyncIterator[Any]:
        for delta in deltas:
            await asyncio.sleep(0)
            yield delta
        await asyncio.sleep(0)
        raise error

    return stream


async def check_failure(rig: Rig, code: str) -> None:
    """
    Send a message whose turn fails with *code*, then one that completes.
    """
    sent = rig.send("first")
    queued = rig.send("queued")
    assert await rig.finished(sent.response_id) == "failed"
    record = rig.turn(sent.response_id)
    assert record["error"]["code"] == code
    assert record["error"]["message"]
    assert await rig.finished(queued.response_id) == "completed", "a failed turn does not stop the queue"
    assert await rig.settled() == "idle"
    last = rig.send("next", tools=None)
    await rig.settled()
    assert rig.turn(last.response_id)["status"] == "completed"
    assert rig.snapshot["last_error"] is None


TEXT = (ItemAdded(0, "message"), TextDelta(0, "Half an ans"))
CALL = (ItemAdded(0, "function_call", "c1", "look"), ArgumentsDelta(0, '{"a'))
BOTH = (*say("Let me see.").parts, ItemAdded(1, "function_call", "c1", "look"), ItemDone(1, arguments="{}"))
REASONING = (ItemAdded(0, "reasoning"), SummaryDelta(0, "hm"))
WHOLE_REASONING = think("hm", {"id": "rs_1", "encrypted_content": "secret"}).parts
BEGINNINGS: dict[str, tuple[Any, ...]] = {
    "nothing": (),
    "a retry": (Retrying(1, 0.0, "busy"),),
    "an empty message": (ItemAdded(0, "message"),),
    "text": TEXT,
    "arguments": CALL,
    "a whole call": BOTH,
    "reasoning": REASONING,
    "reasoning and text": (
        *WHOLE_REASONING,
        ItemAdded(1, "message"),
        TextDelta(1, "Half"),
        ItemDone(1, hidden={"id": "m"}),
    ),
}
