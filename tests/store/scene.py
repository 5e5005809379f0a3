"""
A conversation that can be played from any moment on: a client that does what has not been done yet, and a model that
answers by what it is asked alone.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from agent_harness.config import Limits
from agent_harness.engine.harness import Harness
from agent_harness.engine.session import Session
from agent_harness.llm.base import Delta, Ended, Request
from agent_harness.llm.scripted import call, say, think
from agent_harness.protocol.items import FunctionCallOutput, Usage
from agent_harness.protocol.requests import read_events
from agent_harness.store.base import Change, Store
from agent_harness.store.memory import MemoryStore
from tests.engine.laws import check_requests, check_rest
from tests.engine.rig import brief

__all__ = ["Responder", "check_end", "conversation", "open_harness", "play", "replayed", "send", "until"]

WAIT_S = 5.0
HIDDEN = {"id": "rs_theirs", "encrypted_content": "secret"}
ANSWER = think("hm", HIDDEN) + say("Let me", " see.") + call("look", '{"a":  1}', "c1") + call("find", "{}", "c2")


class Responder:
    """
    Two calls for a message that begins with "two", else a word; keeps the requests.
    """

    default_model = "responder"

    def __init__(self, requests: list[Request] | None = None) -> None:
        self.requests: list[Request] = [] if requests is None else requests

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        self.requests.append(request)
        last = request.blocks[-1]
        text = brief(last.items[0])
        step = ANSWER if text.startswith("user:two") else say("I heard ", text if last.is_user else "results")
        for part in step.parts:
            await asyncio.sleep(0)
            yield part  # type: ignore[misc]
        yield Ended(usage=Usage(1, 2, 3))

    def body(self, request: Request) -> bytes:
        return b"{}"


def open_harness(store: Store, model: Any = None, **limits: Any) -> Harness:
    return Harness(
        {"default": model or Responder()}, limits=Limits(**{"replay_events": 1_000_000, **limits}), store=store
    )


def send(session: Session, text: str, **extra: Any) -> Any:
    tools = [{"type": "function", "name": name} for name in ("look", "find")]
    return session.send(read_events({"type": "message", "data": {"content": text}, "tools": tools, **extra}))


async def until(session: Session, *statuses: str) -> None:
    follower = session.follow()
    async with asyncio.timeout(WAIT_S):
        while session.status not in statuses:
            assert await follower.take(), "the stream ended"
    follower.close()


async def play(session: Session) -> None:
    """
    What the client does, from the beginning or wherever the session stands, to the end: a message that leads to calls,
    one steered and one queued while they are open, their results.
    """
    _ensure(session, "two things")
    if session.transcript.outputs:
        await _answer(session)
        return
    await until(session, "waiting", "idle")
    _ensure(session, "also", delivery="steer")
    _ensure(session, "next")
    await _answer(session)


def _ensure(session: Session, text: str, **extra: Any) -> None:
    if f"user:{text}" not in [brief(item) for item in session.transcript.items()]:
        send(session, text, **extra)


async def _answer(session: Session) -> None:
    while True:
        await until(session, "waiting", "idle")
        open_calls = session.transcript.open_calls
        if not open_calls:
            return
        name = session.transcript.call_item(open_calls[0]).name
        session.submit(open_calls[0], f"of {name}")


def conversation(session: Session) -> list[Any]:
    """
    What was said, without ids and without what was cut.
    """
    said: list[Any] = []
    for item in session.transcript.items():
        if item.status == "incomplete":
            continue
        if item.type == "function_call":
            said.append((item.name, item.arguments, item.status))
        elif isinstance(item, FunctionCallOutput):
            said.append((item.output, item.is_error, item.origin))
        else:
            said.append((brief(item), item.status, getattr(item, "provenance", None)))
    return said


def check_end(session: Session, requests: Sequence[Request] = ()) -> None:
    """
    The session is at rest, whole, and each request was right and began with the one before it.
    """
    check_rest(session, task=False)
    check_requests(requests)
    assert [turn.status for turn in session.transcript.turns.values()] == ["completed"] * len(session.transcript.turns)


def replayed(lists: Iterable[Sequence[Change]]) -> MemoryStore:
    """
    A store that was given these lists.
    """
    store = MemoryStore()
    for changes in lists:
        store.apply(changes)
    return store
