"""
Mutated streams of model servers through a whole harness, in both dialects.

Whatever comes: each turn ends with one terminal event, never by an internal error and with nothing logged as one; all
that is shown can be encoded; announced calls are answered; the session takes the next message and completes it; every
request is one that STRICT takes.

The short form stands in the suite. The full form, as many streams in each dialect as the variable says::

    FUZZ_STREAMS=4000 python -m pytest tests/fuzz/test_upstream_fuzz.py

A stream that fails is told by its seed; ``FUZZ_SEED=1234`` plays that one alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from random import Random
from typing import Any

import orjson
import pytest

from agent_harness.config import Limits, ProviderSettings
from agent_harness.engine.harness import Harness
from agent_harness.engine.session import Session
from agent_harness.llm.chat import ChatModel
from agent_harness.llm.responses import ResponsesModel
from agent_harness.llm.upstream import Upstream
from agent_harness.protocol import events as said
from agent_harness.protocol.encode import dump_json, to_wire
from agent_harness.protocol.requests import read_create, read_events
from agent_harness.testing.strict import Dialect, SessionMemory, StrictOptions, check_request, parse_body
from tests.engine.laws import check_log, check_rest, check_snapshot
from tests.fuzz.mutations import KEEPS_VALUES, annotate, cut_up, mutate
from tests.fuzz.streams import GOOD, good_stream, good_text
from tests.llm.raw_upstream import Answer, serve_raw

WAIT_S = 5.0
BATCH = 250
STREAMS = int(os.environ.get("FUZZ_STREAMS", BATCH))
ONE_SEED = os.environ.get("FUZZ_SEED")
FIRST_SEED = int(os.environ.get("FUZZ_FIRST_SEED", "20000"))
SOCKET_STREAMS = 20
TOOLS = [
    {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}} for name in ("look", "find")
]
DIALECTS: tuple[Dialect, ...] = ("responses", "chat")
# Providers by name: what their settings say, and what STRICT must let pass then.
PROVIDERS: dict[str, tuple[dict[str, Any], StrictOptions]] = {
    "default": ({}, StrictOptions(refuse_nul=True)),
    "merging": ({"merge_user_messages": True}, StrictOptions(refuse_nul=True, merge_user_messages=True)),
    "texts only": (
        {"tool_output_parts": False, "replay_reasoning_content": "turn"},
        StrictOptions(refuse_nul=True, refuse_output_parts=True, drop_reasoning=True),
    ),
}


class PiecesReply:
    """
    A reply whose body comes in these pieces.
    """

    status = 200

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.headers: dict[str, str] = {}
        # An empty one would be the end.
        self.pieces = [piece for piece in pieces if piece]

    async def read_piece(self, deadline: float) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""

    async def read_error(self) -> bytes:
        return b""

    async def aclose(self) -> None:
        pass


class FakeUpstream(Upstream):
    """
    Everything of the real one but the connection: it is given the bytes that come. Keeps the bodies that were sent.
    """

    def __init__(self, settings: ProviderSettings) -> None:
        super().__init__(settings)
        self.answers: list[Sequence[bytes]] = []
        self.bodies: list[bytes] = []

    async def _post(self, path: str, body: bytes, session_id: str) -> PiecesReply:
        self.bodies.append(body)
        await asyncio.sleep(0)
        return PiecesReply(self.answers.pop(0))


def make_model(settings: ProviderSettings, upstream: Upstream | None = None) -> Any:
    return (ResponsesModel if settings.api == "responses" else ChatModel)(settings, upstream)


def make_settings(dialect: Dialect, **given: Any) -> ProviderSettings:
    return ProviderSettings(api=dialect, model="m", api_key_env=None, needs_key=False, retry_base_s=0.0, **given)


class Play:
    """
    One mutated stream in one session, and everything that must hold around it.
    """

    def __init__(self, dialect: Dialect, seed: int, harness: Harness, upstream: FakeUpstream) -> None:
        self.dialect, self.upstream = dialect, upstream
        random = Random(seed)
        kind = random.choice(list(GOOD))
        frames, items = good_stream(dialect, kind)
        mutations, mutated = mutate(random, frames)
        # STRICT judges reasoning by what the server knows that it said.
        self.items = items if KEEPS_VALUES.issuperset(mutations) else []
        self.pieces = cut_up(random, mutated)
        self.what = f"FUZZ_SEED={seed} {dialect}: {kind}, {'+'.join(mutations)}"
        self.harness = harness
        self.provider = random.choice(list(harness.models))
        agent = {"provider": self.provider, "max_output_tokens": 7 if random.random() < 0.3 else None}
        self.session: Session = harness.create(read_create({"agent": agent}, 0))
        self.follower = self.session.follow("0")

    async def play(self) -> None:
        self.upstream.bodies.clear()
        # Behind the mutated stream comes a good one, for the answer to its calls or to a retry.
        self.upstream.answers[:] = [self.pieces, *[good_text(self.dialect, "Good again.")] * 6]
        first = await self.take_turn("What is it?")
        assert first.error is None or first.error.code != "internal_error", first
        self.upstream.answers[:] = [good_text(self.dialect, "And still good.")]
        second = await self.take_turn("And now?")
        assert second.status == "completed", second
        self.check()
        await self.harness.delete(self.session)

    async def take_turn(self, text: str) -> Any:
        """
        One turn to its end, its calls answered the moment they are announced.
        """
        message: Any = read_events({"type": "message", "data": {"content": text}, "tools": TOOLS})
        sent = self.session.send(message)
        async with asyncio.timeout(WAIT_S):
            while self.session.transcript.current == sent.response_id:
                for call_id in list(self.session.transcript.open_calls):
                    data = {"call_id": call_id, "output": f"what {call_id} found"}
                    command: Any = read_events({"type": "function_call_output", "data": data})
                    self.session.submit_all([command.data], ["data.call_id"])
                if self.session.transcript.current == sent.response_id:
                    await self.follower.take()
        return self.session.transcript.turns[sent.response_id]

    def check(self) -> None:
        log = self.session.feed.kept()
        check_log(log)
        check_snapshot(log, self.session)
        check_rest(self.session)
        ended = [event for event in (published.event for published in log) if isinstance(event, said.TERMINAL_EVENTS)]
        assert len(ended) == 2
        for published in log:
            assert published.frame.endswith(b"\n\n")
        dump_json(to_wire(self.session.snapshot()))
        memory = SessionMemory()
        for number, raw in enumerate(self.upstream.bodies):
            body = parse_body(raw)
            memory.last = check_request(self.dialect, body, raw, PROVIDERS[self.provider][1], memory)
            if number == 0:
                memory.answers.remember(self.items)


def seeds(first: int, count: int) -> list[int]:
    return [int(ONE_SEED)] if ONE_SEED else list(range(FIRST_SEED + first, FIRST_SEED + first + count))


@pytest.mark.parametrize("first", [0] if ONE_SEED else range(0, STREAMS, BATCH))
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_mutated_streams_never_wedge_a_session(
    dialect: Dialect, first: int, caplog: pytest.LogCaptureFixture
) -> None:
    """
    B014, B015, B016, B035 to B059, B075 to B105 as kinds: whatever a server gets wrong, the session goes on.
    """
    caplog.set_level(logging.ERROR)
    upstream = FakeUpstream(make_settings(dialect))
    models = {
        name: make_model(make_settings(dialect, max_retries=1, **given), upstream)
        for name, (given, _) in PROVIDERS.items()
    }
    failures: list[str] = []
    async with Harness(models, limits=Limits(replay_events=1_000_000)) as harness:
        for seed in seeds(first, min(BATCH, STREAMS - first)):
            play = Play(dialect, seed, harness, upstream)
            try:
                await play.play()
            except Exception as error:
                failures.append(f"{play.what}: {error!r}"[:500])
            failures += [f"{play.what} logged: {record.getMessage()}"[:500] for record in caplog.records]
            caplog.clear()
    assert not failures, f"{len(failures)} failures:\n" + "\n".join(failures[:40])


@pytest.mark.parametrize("depth", range(225, 260))
async def test_annotation_that_is_nested_as_deep_as_can_be_read_can_be_shown(depth: int) -> None:
    """
    B070
    """
    upstream = FakeUpstream(make_settings("responses"))
    frames = good_stream("responses", "text")[0]
    async with Harness({"default": make_model(make_settings("responses"), upstream)}) as harness:
        play = Play("responses", FIRST_SEED, harness, upstream)
        upstream.answers[:] = [[*frames[:5], annotate(depth), *frames[5:]]]
        await play.take_turn("What is it?")
        for published in play.session.feed.kept():
            assert published.frame.endswith(b"\n\n")
        dump_json(to_wire(play.session.snapshot()))


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("kind", GOOD)
async def test_good_stream_says_the_same_in_whatever_pieces_it_comes(dialect: Dialect, kind: str) -> None:
    """
    B092: byte by byte, and cut at each byte once.
    """
    upstream = FakeUpstream(make_settings(dialect))
    model = make_model(make_settings(dialect), upstream)
    whole = b"".join(good_stream(dialect, kind)[0])
    places = range(1, len(whole), max(1, len(whole) // 50))
    ways = [[whole], [whole[at : at + 1] for at in range(len(whole))], *([whole[:at], whole[at:]] for at in places)]
    told: set[bytes] = set()
    async with Harness({"default": model}) as harness:
        for pieces in ways:
            upstream.answers[:] = [pieces, *[good_text(dialect, "Good.")] * 2]
            session = harness.create(read_create({}, 0))
            follower = session.follow("0")
            message: Any = read_events({"type": "message", "data": {"content": "x"}})
            session.send(message)
            async with asyncio.timeout(WAIT_S):
                while session.response_id is not None:
                    await follower.take()
            items = [
                {key: value for key, value in to_wire(item).items() if key not in ("id", "response_id", "created_at")}
                for item in session.transcript.items()
            ]
            told.add(orjson.dumps(items))
            await harness.delete(session)
    assert len(told) == 1, told


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_mutated_streams_over_a_real_socket_never_wedge_a_session(
    dialect: Dialect, caplog: pytest.LogCaptureFixture
) -> None:
    """
    The same with the real client in between, which has its own ideas of broken streams.
    """
    caplog.set_level(logging.ERROR)
    ends = ("close", "reset", "keep")
    for seed in seeds(0, SOCKET_STREAMS):
        random = Random(seed)
        frames, _ = good_stream(dialect, random.choice(list(GOOD)))
        what, mutated = mutate(random, frames)
        good = Answer((b"".join(good_text(dialect, "Good again.")),), end="keep")
        broken = Answer(cut_up(random, mutated)[:500], end=random.choice(ends))
        async with serve_raw(broken, good) as raw:
            settings = make_settings(dialect, base_url=raw.url, max_retries=1)
            async with Harness({"default": make_model(settings)}, limits=Limits(replay_events=1_000_000)) as harness:
                play = Play(dialect, seed, harness, FakeUpstream(settings))
                first = await play.take_turn("What is it?")
                second = await play.take_turn("And now?")
                play.upstream.bodies = raw.bodies
                play.items = []
                assert first.error is None or first.error.code != "internal_error", (seed, what, first)
                assert second.status == "completed", (seed, what, second)
                play.check()
    assert not caplog.records
