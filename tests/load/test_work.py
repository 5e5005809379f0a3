"""
How much work a turn is from socket to socket, counted and not timed: calls of the package's own functions in the
process that serves. A number here may be lowered at any time; to raise one, say why in the commit. The engine alone is
counted in tests/engine/test_work.py.

The model's answers come in one piece each, so that a count is the same each time, whatever else the machine does.
"""

import asyncio
import gc
import sys
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import attrs
import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer

import agent_harness
from agent_harness.config import ProviderSettings
from agent_harness.engine.harness import Harness
from agent_harness.llm.base import Delta, ItemAdded, Request
from agent_harness.protocol.requests import read_events
from agent_harness.server import make_app
from agent_harness.testing.mock_entry import read_entry
from agent_harness.testing.mock_llm import build_answer
from agent_harness.testing.strict import Dialect
from agent_harness.wiring import make_model
from tests.engine.rig import ticks
from tests.llm.raw_upstream import Answer, serve_raw
from tests.support import TOOL, Stream, user

PACKAGE = str(Path(agent_harness.__file__).parent)

TURN_CALLS: dict[Dialect, int] = {"responses": 1_850, "chat": 1_900}
"""Most calls of ours in one tool turn: two model calls, 20 pieces of text, one follower, the client's two requests."""

PIECE_CALLS: dict[Dialect, int] = {"responses": 27, "chat": 30}
"""Most calls of ours from the bytes of one more piece of text to the bytes of its event."""

LATE_TURN = 1.1
"""How much more work turn 200 of a session may be than turn 10."""

DIALECTS: tuple[Dialect, ...] = ("responses", "chat")
CALL = {"tool_calls": [{"name": "look_up", "arguments": '{"widget_id": 1}'}]}


def record(dialect: Dialect, entry: dict[str, Any]) -> Answer:
    """
    An answer in one piece.
    """
    body = {"model": "m", "stream_options": {"include_usage": True}}
    frames = build_answer(dialect, read_entry(entry, "entry"), body, 100).frames
    return Answer((b"".join(frame.data for frame in frames),), end="keep")


def say(dialect: Dialect, pieces: int) -> Answer:
    return record(dialect, {"deltas": [f"word{number} " for number in range(pieces)]})


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """
    Counts the calls of each of the package's functions, by name.
    """
    calls: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            calls[frame.f_code] += 1

    named: Counter[str] = Counter()
    sys.setprofile(note)
    try:
        yield named
    finally:
        sys.setprofile(None)
        for code, count in calls.items():
            named[f"{Path(code.co_filename).name}:{code.co_name}"] += count


@attrs.define
class Site:
    """
    A server before a model server that gives recorded answers, and a session.
    """

    http: ClientSession
    harness: Harness
    path: str

    async def play(self) -> None:
        """
        One tool turn as a client plays it: the message with its stream, and the result.
        """
        async with asyncio.timeout(5):
            async with self.http.post(f"{self.path}/events?stream=true", json=user("hello")) as response:
                stream = Stream(response)
                frames = await stream.until_status("waiting")
                call_id = frames[-1].data["required_actions"][0]["call_id"]
                body = {"type": "function_call_output", "data": {"call_id": call_id, "output": "teal"}}
                async with self.http.post(f"{self.path}/events", json=body) as answer:
                    assert answer.status == 202
                await stream.rest()

    async def say(self) -> None:
        """
        One turn without a call.
        """
        async with asyncio.timeout(5):
            async with self.http.post(f"{self.path}/events?stream=true", json=user("hello")) as response:
                await Stream(response).rest()


@asynccontextmanager
async def open_site(dialect: Dialect, *answers: Answer) -> AsyncIterator[Site]:
    async with serve_raw(*answers) as raw:
        settings = ProviderSettings(api=dialect, base_url=raw.url, api_key_env=None, needs_key=False, model="m")
        async with Harness({"default": make_model(settings)}) as harness:
            async with TestServer(make_app(harness)) as server, ClientSession(server.make_url("/")) as http:
                session = await harness.create_session({"tools": [TOOL]})
                yield Site(http, harness, f"/v1/sessions/{session.id}")


def worst(calls: Counter[str], times: int = 1) -> str:
    """
    Who was called most, for whoever has to look.
    """
    return ", ".join(f"{name} {count / times:g}" for name, count in calls.most_common(25))


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_tool_turn_is_no_more_work_than_it_was(dialect: Dialect) -> None:
    turns = [record(dialect, CALL), say(dialect, 20)]
    async with open_site(dialect, *turns * 7) as site:
        await site.play()
        await site.play()
        with counting() as calls:
            for _ in range(5):
                await site.play()
    count = calls.total() / 5
    assert count <= TURN_CALLS[dialect], worst(calls, 5)


async def count_text(dialect: Dialect, pieces: int) -> Counter[str]:
    async with open_site(dialect, say(dialect, 5), say(dialect, pieces)) as site:
        await site.say()
        with counting() as calls:
            await site.say()
    return calls


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_piece_of_text_is_no_more_work_than_it_was(dialect: Dialect) -> None:
    few, many = await count_text(dialect, 20), await count_text(dialect, 220)
    each = (many.total() - few.total()) / 200
    assert each <= PIECE_CALLS[dialect], worst(many - few, 200)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_late_turn_is_as_little_work_as_an_early_one(dialect: Dialect) -> None:
    counts = []
    async with open_site(dialect, *[record(dialect, CALL), say(dialect, 2)] * 201) as site:
        for number in range(1, 202):
            if number in (10, 200):
                with counting() as calls:
                    await site.play()
                counts.append(calls.total())
            else:
                await site.play()
    early, late = counts
    assert late <= LATE_TURN * early, f"turn 10: {early} calls, turn 200: {late}"


async def test_a_turn_leaves_no_cycles_for_the_collector() -> None:
    """
    The served process looks for cycles seldom: what a turn leaves must go by itself.
    """
    async with open_site("responses", *[record("responses", CALL), say("responses", 20)] * 12) as site:
        await site.play()
        await site.play()
        gc.collect()
        gc.disable()
        try:
            with counting_garbage() as ours:
                for _ in range(10):
                    await site.play()
        finally:
            gc.enable()
    assert not ours


@contextmanager
def counting_garbage() -> Iterator[Counter[str]]:
    """
    Counts, by type, the objects of the package's classes that only the collector could free.
    """
    found: Counter[str] = Counter()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found.update(type(one).__qualname__ for one in gc.garbage if type(one).__module__.startswith("agent_harness"))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


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


@pytest.mark.parametrize("cut", ["interrupt", "delete"])
async def test_a_turn_that_is_cut_leaves_its_session_to_nobody(cut: str) -> None:
    """
    A session that were freed by the collector only would stay for long, with all that it holds.
    """
    gc.collect()
    gc.disable()
    try:
        async with Harness({"default": Hanging()}) as harness:
            session = await harness.create_session()
            session.send(read_events({"type": "message", "data": {"content": "hi"}}))
            await ticks(5)
            assert session.transcript.drafts
            async with asyncio.timeout(5):
                if cut == "interrupt":
                    await session.interrupt()
                await harness.delete(session)
            left = weakref.ref(session)
            del session
            await ticks(5)
            assert left() is None
    finally:
        gc.enable()
