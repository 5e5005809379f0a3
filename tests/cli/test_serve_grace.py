"""
What ``serve --grace`` leaves turns that run when a signal stops the server: real processes, and a model server that is
silent until it is told to go on.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from agent_harness.llm.scripted import ScriptedModel
from agent_harness.testing.mock_llm import make_mock_app
from tests.cases.rig import TOOLS, Case, begun, calling
from tests.processes import Program, start
from tests.support import DONE, WAIT_S, Api, Frame

GRACE_S = 1.5
DEFAULT_S = 3.0
"""What it is without the option; also twice `GRACE_S`, so that one bound tells both from it."""

LONG_S = 60.0

signals = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)

Serve = Callable[..., Any]


@pytest.fixture
def serve(aiohttp_client: Any) -> Serve:
    """
    ``async with serve(grace_s, *entries) as (program, case)``: a server process, and a session whose model answers by
    these entries.
    """

    @asynccontextmanager
    async def run(grace_s: float, *entries: dict[str, Any]) -> AsyncIterator[tuple[Program, Case]]:
        mock = await aiohttp_client(make_mock_app())
        options = ("--port", "0", "--no-key", "--model", "mock", "--grace", str(grace_s))
        timeout = aiohttp.ClientTimeout(total=WAIT_S)
        async with start("serve", *options, OPENAI_BASE_URL=str(mock.make_url("/v1"))) as program:
            async with aiohttp.ClientSession(program.url, timeout=timeout) as client:
                served: Any = client
                api = Api(served, ScriptedModel())
                case = Case(api, (await api.create(agent={"tools": TOOLS}))["id"])
                case.dialect, case.mock = "responses", mock
                await case.script(*entries)
                case.stream = await case.follow(after=0)
                yield program, case

    return run


def in_the_answer() -> dict[str, Any]:
    return {"deltas": ["Hel", "lo"], "block": begun("responses")}


def text_of(frames: list[Frame]) -> str:
    return "".join(each.data["delta"] for each in frames if each.event == "response.output_text.delta")


async def stop(program: Program, case: Case, number: int) -> float:
    """
    Send the signal and wait until the server takes no more; when it was sent.
    """
    sent_at = time.monotonic()
    program.process.send_signal(number)
    async with asyncio.timeout(WAIT_S):
        while (await case.api.get("/health"))["status"] != "shutting_down":
            pass
    return sent_at


async def check_end(program: Program, case: Case, event: str) -> None:
    """
    The turn ended once, by *event*; so did its stream and the process, well.
    """
    frames = [*case.stream.frames, *await case.stream.rest()]
    ends = [each.event for each in frames if each.event in ("response.completed", "response.cancelled")]
    assert ends == [event] and frames[-1].data == DONE
    assert await program.end() == (0, "", "")


@signals
@pytest.mark.parametrize("parked", [False, True], ids=["in the answer", "on a call"])
async def test_without_grace_a_turn_is_interrupted_at_once(serve: Serve, number: int, parked: bool) -> None:
    """B152."""
    async with serve(0, calling("c1") if parked else in_the_answer()) as (program, case):
        await case.send("go")
        await (case.waiting() if parked else case.stream.until("response.output_text.delta"))
        began = time.monotonic()
        program.process.send_signal(number)
        await case.stream.until("response.cancelled")
        assert time.monotonic() - began < DEFAULT_S - 0.1
        await check_end(program, case, "response.cancelled")
        assert text_of(case.stream.frames) == ("" if parked else "Hel")


@signals
async def test_an_answer_that_ends_within_the_grace_is_delivered_whole(serve: Serve, number: int) -> None:
    """
    B152: and nothing waits for the rest of the grace.
    """
    async with serve(LONG_S, in_the_answer()) as (program, case):
        await case.send("go")
        await case.stream.until("response.output_text.delta")
        await stop(program, case, number)
        await case.release()
        await check_end(program, case, "response.completed")
        assert text_of(case.stream.frames) == "Hello"


@signals
async def test_a_call_that_is_answered_within_the_grace_leads_to_the_turns_end(serve: Serve, number: int) -> None:
    """B152."""
    async with serve(LONG_S, calling("c1"), {"text": "Hello"}) as (program, case):
        await case.send("go")
        await case.waiting()
        await stop(program, case, number)
        await case.result("c1", "teal")
        await check_end(program, case, "response.completed")
        assert text_of(case.stream.frames) == "Hello"
        assert (await case.requests())[-1].of("output") == [("c1", "teal")]


@signals
@pytest.mark.parametrize("parked", [False, True], ids=["in the answer", "on a call"])
async def test_a_turn_that_does_not_end_within_the_grace_is_interrupted_after_it(
    serve: Serve, number: int, parked: bool
) -> None:
    """
    B152: not before, and not much later.
    """
    async with serve(GRACE_S, calling("c1") if parked else in_the_answer()) as (program, case):
        await case.send("go")
        await (case.waiting() if parked else case.stream.until("response.output_text.delta"))
        began = await stop(program, case, number)
        frames = await case.stream.until("response.cancelled")
        taken = time.monotonic() - began
        assert GRACE_S - 0.1 < taken < DEFAULT_S - 0.1, taken
        outputs = [each.data["item"] for each in frames if each.event == "response.output_item.done"][1:]
        assert [(item["type"], item["call_id"], item["origin"]) for item in outputs] == (
            [("function_call_output", "c1", "harness")] if parked else []
        )
        await check_end(program, case, "response.cancelled")
        assert text_of(case.stream.frames) == ("" if parked else "Hel")
