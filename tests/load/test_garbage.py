"""
What only the collector of cycles could free. The served process has it look seldom, so turns, refusals, failures and
clients that leave must go by themselves: a cycle of ours would keep what it holds for long, whole sessions among it.
"""

import asyncio
import gc
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from agent_harness.engine.harness import Harness
from agent_harness.llm.base import Delta, ItemAdded, Request
from agent_harness.protocol.requests import read_events
from agent_harness.store.memory import MemoryStore
from agent_harness.testing.strict import Dialect
from tests.engine.rig import ticks
from tests.llm.raw_upstream import Answer
from tests.load.rig import CALL, DIALECTS, Site, open_site, record, say
from tests.support import Stream, user

TIMES = 5


@contextmanager
def counting_garbage() -> Iterator[Counter[str]]:
    """
    Counts, by type, the objects of the package's classes and the frames of its functions that only the collector could
    free.
    """
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found.update(name for one in gc.garbage if (name := name_ours(one)))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def name_ours(one: object) -> str | None:
    """
    What it is, if it is the package's own.
    """
    if isinstance(one, FrameType):
        return one.f_code.co_qualname if one.f_globals.get("__name__", "").startswith("agent_harness") else None
    kind = type(one)
    return kind.__qualname__ if kind.__module__.startswith("agent_harness") else None


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_turn_leaves_nothing(dialect: Dialect) -> None:
    async with open_site(dialect, *[record(dialect, CALL), say(dialect, 20)] * 12) as site:
        await site.play()
        await site.play()
        with counting_garbage() as ours:
            for _ in range(10):
                await site.play()
    assert not ours


async def leave(site: Site) -> None:
    """
    A client that leaves its stream while the turn is parked; it posts the result, and the turn goes on without it.
    """
    async with site.http.post(f"{site.path}/events?stream=true", json=user("hello")) as response:
        frames = await Stream(response).until_status("waiting")
        assert response.connection is not None and response.connection.transport is not None
        response.connection.transport.abort()
    await ticks(5)
    call_id = frames[-1].data["required_actions"][0]["call_id"]
    body = {"type": "function_call_output", "data": {"call_id": call_id, "output": "teal"}}
    async with site.http.post(f"{site.path}/events", json=body) as answer:
        assert answer.status == 202
    while site.session.feed.followers or site.session.status != "idle":
        await ticks(1)


async def test_a_client_that_leaves_leaves_nothing() -> None:
    async with open_site("responses", *[record("responses", CALL), say("responses", 1_000)] * 7) as site:
        async with asyncio.timeout(20):
            await leave(site)
            with counting_garbage() as ours:
                for _ in range(TIMES):
                    await leave(site)
    assert not ours


@pytest.mark.parametrize(
    "method, path, body, status",
    [
        ("POST", "/events", {"type": "message", "data": {"content": 5}}, 400),
        ("POST", "/events", {"type": "message", "data": {"content": [{"type": "input_text"}, {"type": "no"}]}}, 400),
        ("POST", "/events", "no object", 400),
        ("POST", "/events", {"type": "function_call_output", "data": {"call_id": "call_no", "output": ""}}, 404),
        ("PUT", "/events", None, 405),
        ("GET", "/nothing", None, 404),
    ],
)
async def test_a_refusal_leaves_nothing(method: str, path: str, body: object, status: int) -> None:
    async with open_site("responses", say("responses", 1)) as site:

        async def ask() -> None:
            async with site.http.request(method, site.path + path, json=body) as answer:
                assert answer.status == status
                await answer.read()

        await ask()
        with counting_garbage() as ours:
            for _ in range(TIMES):
                await ask()
    assert not ours


def reset(text: Answer, share: float = 1.0) -> Answer:
    (data,) = text.pieces
    return Answer((data[: int(share * len(data))],), end="reset")


FAILURES: dict[str, tuple[Callable[[Dialect], list[Answer]], str]] = {
    "a reset behind the end": (lambda dialect: [reset(say(dialect, 2))], "completed"),
    "a reset inside the answer": (lambda dialect: [reset(say(dialect, 2), 0.5)], "failed"),
    "no answer": (lambda _: [Answer(end="drop")], "failed"),
    "one that passes": (lambda dialect: [Answer((b"{}",), status=500), say(dialect, 2)] * 20, "completed"),
    "one that does not": (lambda _: [Answer((b"{}",), status=503)], "failed"),
    "a refusal": (lambda _: [Answer((b'{"error": {"message": "no"}}',), status=400)], "failed"),
    "nonsense": (lambda _: [Answer((b"data: nonsense\n\n",))], "failed"),
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", FAILURES)
async def test_a_failure_of_the_model_server_leaves_nothing(name: str, dialect: Dialect) -> None:
    make, outcome = FAILURES[name]
    async with open_site(dialect, *make(dialect), retry_base_s=0.001) as site:
        await site.say()
        with counting_garbage() as ours:
            for _ in range(TIMES):
                await site.say()
    assert {turn.status for turn in site.session.transcript.turns.values()} == {outcome}
    assert not ours


class Hanging:
    """
    A model that begins to speak and never ends.
    """

    default_model = "m"

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        """
        See the class.
        """
        yield ItemAdded(0, "message")
        await asyncio.Event().wait()

    def body(self, request: Request) -> bytes:
        """
        None.
        """
        return b""


@pytest.mark.parametrize("store", [None, MemoryStore], ids=["in memory", "with a store"])
@pytest.mark.parametrize("cut", ["interrupt", "delete"])
async def test_a_turn_that_is_cut_leaves_its_session_to_nobody(cut: str, store: type[MemoryStore] | None) -> None:
    """
    A session that were freed by the collector only would stay for long, with all that it holds.
    """
    gc.collect()
    gc.disable()
    try:
        async with Harness({"default": Hanging()}, store=store and store()) as harness:
            session = await harness.create_session()
            session.send(read_events({"type": "message", "data": {"content": "hi"}}))
            async with asyncio.timeout(5):
                while not session.transcript.drafts:
                    await ticks(1)
            async with asyncio.timeout(5):
                if cut == "interrupt":
                    await session.interrupt()
                await harness.delete(session)
            left = weakref.ref(session)
            del session
            await harness.committed()
            await ticks(5)
            assert left() is None
    finally:
        gc.enable()
