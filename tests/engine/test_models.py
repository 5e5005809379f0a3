"""
Models that fail: the turn ends once and says why, nothing is stuck, and the next message completes.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agent_harness.engine.harness import Harness
from agent_harness.errors import ModelError
from agent_harness.llm.base import (
    Ended,
    ItemAdded,
    ItemDone,
    Request,
    Retrying,
    TextDelta,
)
from agent_harness.llm.scripted import Step, call, say, think
from agent_harness.protocol import events as said
from agent_harness.protocol.requests import read_events
from tests.engine.odd import BEGINNINGS, DOWN, TEXT, OddModel, check_failure, raising, yielding
from tests.engine.rig import open_rig, ticks

KEPT = {
    "text": ["assistant:Half an ans"],
    "a whole call": ["assistant:Let me see."],
    "reasoning and text": ["assistant:Half"],
}


@pytest.mark.parametrize("beginning", BEGINNINGS)
async def test_a_failure_anywhere_in_an_answer_fails_the_turn_and_announces_no_call(beginning: str) -> None:
    """
    B130's kind: text stays as an incomplete message, half and whole calls of the cut answer vanish.
    """
    async with open_rig(model=OddModel(raising(DOWN, *BEGINNINGS[beginning]))) as rig:
        await check_failure(rig, "provider_unavailable")
        assert not any(event.item.status == "action_required" for event in rig.all(said.OutputItemDone))
        assert not any(text.startswith(("call:", "output:", "reasoning")) for text in rig.sent())
        kept = [text for text in rig.sent() if text.startswith("assistant:") and text != "assistant:fine"]
        assert kept == KEPT.get(beginning, [])


@pytest.mark.parametrize("beginning", BEGINNINGS)
async def test_an_answer_that_stops_without_its_end_was_cut(beginning: str) -> None:
    """
    The model contract, 4: the turn fails with `upstream_disconnected`.
    """
    async with open_rig(model=OddModel(yielding(*BEGINNINGS[beginning]))) as rig:
        await check_failure(rig, "upstream_disconnected")


@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter"])
@pytest.mark.parametrize("beginning", BEGINNINGS)
async def test_an_answer_that_was_cut_ends_the_turn_incomplete(beginning: str, reason: Any) -> None:
    """
    wire.md: in an answer that was cut no call is announced.
    """
    async with open_rig(model=OddModel(yielding(*BEGINNINGS[beginning], Ended(reason)))) as rig:
        sent = rig.send()
        assert await rig.settled() == "idle"
        record = rig.turn(sent.response_id)
        assert (record["status"], record["incomplete_details"]) == ("incomplete", {"reason": reason})
        items = [item for item in rig.snapshot["items"] if item["type"] != "message" or item["origin"] == "model"]
        assert all(item["status"] == "incomplete" for item in items)
        rig.send()
        await rig.settled()
        assert not any(text.startswith(("call:", "output:", "reasoning")) for text in rig.sent())


async def test_a_failure_in_the_second_answer_keeps_the_first_with_its_outputs() -> None:
    """
    B130: between the last result and the second answer.
    """
    async with open_rig([think("hm") + call("look", "{}", "c1"), DOWN, say("fine")]) as rig:
        sent = rig.send("go")
        await rig.waiting()
        rig.result("c1", "R")
        assert await rig.settled() == "failed"
        assert rig.turn(sent.response_id)["status"] == "failed"
        assert rig.snapshot["last_error"]["code"] == "provider_unavailable"
        rig.send("again")
        assert await rig.settled() == "idle"
        assert rig.sent() == ["user:go", "reasoning", "call:c1", "output:c1=R", "user:again"]


ODD = [RuntimeError("boom"), KeyError("x"), TimeoutError(), OSError(5, "io"), AssertionError(), RecursionError()]
ODD += [StopIteration(), StopAsyncIteration(), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), Exception("\ud800")]


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("beginning", ["nothing", "text", "a whole call"])
async def test_an_exception_that_no_model_should_raise_fails_the_turn_as_internal_error(
    error: Exception, beginning: str, caplog: pytest.LogCaptureFixture
) -> None:
    """
    The model contract, 5. It is logged, and its words are not told.
    """
    async with open_rig(model=OddModel(raising(error, *BEGINNINGS[beginning]))) as rig:
        await check_failure(rig, "internal_error")
        assert any(record.exc_info for record in caplog.records if record.levelno >= logging.ERROR)
        assert "boom" not in str([event.response for event in rig.all(said.ResponseFailed)])


async def test_a_cancellation_out_of_the_model_itself_fails_the_turn() -> None:
    """
    A library that raises CancelledError for reasons of its own leaves no session stuck.
    """
    async with open_rig(model=OddModel(raising(asyncio.CancelledError(), *TEXT))) as rig:
        await check_failure(rig, "internal_error")


@pytest.mark.parametrize("beginning", ["nothing", "text", "a whole call"])
async def test_a_model_that_cancels_its_own_task_fails_the_turn(beginning: str) -> None:
    async def stream(request: Request) -> AsyncIterator[Any]:
        for delta in BEGINNINGS[beginning]:
            await asyncio.sleep(0)
            yield delta
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        yield Ended()

    async with open_rig(model=OddModel(stream)) as rig:
        await check_failure(rig, "internal_error")


async def test_a_task_that_is_cancelled_from_outside_while_calls_are_open_fails_the_turn() -> None:
    """
    No open call is left, and a late result is told who closed it.
    """
    async with open_rig([call("look", "{}", "c1") + call("find", "{}", "c2"), say("fine")]) as rig:
        sent = rig.send()
        await rig.waiting(2)
        rig.result("c2", "kept")
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
        assert await rig.settled() == "failed"
        assert rig.turn(sent.response_id)["error"]["code"] == "internal_error"
        rig.send()
        assert await rig.settled() == "idle"
        outputs = [text for text in rig.sent() if text.startswith("output:")]
        assert outputs[0].startswith("output:c1=Error: ")
        assert outputs[1] == "output:c2=kept"


@pytest.mark.parametrize("swallows", [1, 3])
async def test_a_model_that_swallows_cancellation_writes_nothing_after_the_interrupt(swallows: int) -> None:
    """
    The model contract, 7, broken: what it still says reaches no follower and no later request.
    """
    left = asyncio.Event()

    async def stream(request: Request) -> AsyncIterator[Any]:
        yield ItemAdded(0, "message")
        yield TextDelta(0, "before")
        for _ in range(swallows):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                left.set()
                break
        yield TextDelta(0, "after")
        yield from_call
        yield Ended()

    from_call = ItemAdded(1, "function_call", "c1", "look")
    async with open_rig(model=OddModel(stream)) as rig:
        rig.send("go")
        await rig.until(lambda: rig.all(said.TextDelta))
        queued = rig.send("queued")
        assert (await rig.interrupt()).interrupted
        assert left.is_set()
        assert await rig.finished(queued.response_id) == "completed"
        await rig.settled()
        assert rig.sent()[:2] == ["user:go", "assistant:before"]
        assert [event.delta for event in rig.all(said.TextDelta)] == ["before", "fine"]


async def test_a_model_that_swallows_cancellation_and_ends_well_ends_no_other_turn() -> None:
    """
    Its `Ended` comes while the queued turn runs, and is not taken for that one's.
    """
    gate = asyncio.Event()

    async def stubborn(request: Request) -> AsyncIterator[Any]:
        yield ItemAdded(0, "function_call", "c1", "look")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await gate.wait()
        yield ItemDone(0, arguments="{}")
        yield Ended()

    async def slow(request: Request) -> AsyncIterator[Any]:
        yield ItemAdded(0, "message")
        gate.set()
        await ticks(10)
        yield TextDelta(0, "slow")
        yield Ended()

    async with open_rig(model=OddModel(stubborn, slow)) as rig:
        rig.send("go")
        await rig.until(lambda: rig.all(said.OutputItemAdded))
        queued = rig.send("queued")
        await rig.interrupt()
        assert await rig.finished(queued.response_id) == "completed"
        await rig.settled()
        assert [item["status"] for item in rig.snapshot["items"] if item["type"] == "function_call"] == ["incomplete"]
        answer = rig.snapshot["items"][-1]
        assert (answer["status"], [part["text"] for part in answer["content"]]) == ("completed", ["slow"])


async def test_a_stream_that_fails_to_close_leaves_no_session_stuck() -> None:
    """
    The model contract, 7, broken after a good answer.
    """

    async def stream(request: Request) -> AsyncIterator[Any]:
        try:
            for part in call("look", "{}", "c1").parts:
                yield part
            yield Ended()
        finally:
            raise RuntimeError("cannot close")

    async with open_rig(model=OddModel(stream)) as rig:
        rig.send()
        await rig.finished()
        await rig.settled()
        rig.send()
        assert await rig.settled() == "idle"


async def test_a_model_that_fails_before_it_streams_fails_the_turn() -> None:
    """
    `stream` itself raises, returns nothing, or the provider does not exist.
    """

    def raises(request: Request) -> AsyncIterator[Any]:
        raise RuntimeError("no stream")

    def nothing(request: Request) -> Any:
        return None

    for behaviour in (raises, nothing):
        async with open_rig(model=OddModel(behaviour)) as rig:
            await check_failure(rig, "internal_error")
    async with open_rig(agent={"provider": "elsewhere"}) as rig:
        rig.send()
        assert await rig.settled() == "failed"
        assert rig.snapshot["last_error"]["code"] == "provider_not_found"
        rig.update(provider=None)
        rig.model.steps.append(say("fine"))
        rig.send()
        assert await rig.settled() == "idle"


async def test_an_error_of_a_model_whose_words_are_no_words_fails_the_turn() -> None:
    error = ModelError(None, code="rate_limited")  # type: ignore[arg-type]
    async with open_rig(model=OddModel(raising(error))) as rig:
        sent = rig.send()
        assert await rig.settled() == "failed"
        assert rig.turn(sent.response_id)["status"] == "failed"
        rig.send()
        assert await rig.settled() == "idle"


async def test_a_retry_is_told_and_is_no_new_model_call() -> None:
    """
    wire.md: `response.retrying`; the bound counts answers asked for.
    """
    steps = [Step((Retrying(1, 0.5, "busy\0"), Retrying(2, 1.0, "busy"), *say("a").parts))]
    async with open_rig(steps, agent={"max_model_calls": 1}) as rig:
        sent = rig.send()
        assert await rig.settled() == "idle"
        assert [(event.attempt, event.delay_s) for event in rig.all(said.ResponseRetrying)] == [(1, 0.5), (2, 1.0)]
        assert rig.all(said.ResponseRetrying)[0].reason == "busy\ufffd"
        assert rig.session.transcript.turns[sent.response_id].model_calls == 1


async def test_text_of_the_model_is_kept_in_a_form_that_every_request_may_carry() -> None:
    """
    B068's twin: U+0000 and lone surrogates become U+FFFD, in event, snapshot and request alike.
    """
    async with open_rig([say("a\0b", "c\ud800d"), say("fine")]) as rig:
        rig.send()
        await rig.settled()
        assert [event.delta for event in rig.all(said.TextDelta)] == ["a\ufffdb", "c\ufffdd"]
        rig.send()
        await rig.settled()
        assert rig.sent()[1] == "assistant:a\ufffdbc\ufffdd"


async def test_the_status_after_a_failed_turn_tells_what_the_snapshot_shows() -> None:
    """
    wire.md: the next message clears `last_error`, a queued one as well; a session that runs on shows none.
    """
    async with open_rig([DOWN, say("fine"), DOWN]) as rig:
        first = rig.send()
        rig.send()
        await rig.finished(first.response_id)
        assert rig.snapshot["last_error"] is None
        await rig.settled()
        told = [(event.status, event.last_error) for event in rig.all(said.SessionStatus)]
        assert told == [("running", None), ("running", None), ("idle", None)]
        rig.send()
        assert await rig.settled() == "failed"
        status = rig.all(said.SessionStatus)[-1]
        assert (status.status, status.last_error.code) == ("failed", rig.snapshot["last_error"]["code"])


async def test_a_harness_that_closes_closes_its_models_when_their_streams_have_let_go() -> None:
    """
    B155: what a model holds (its connections) goes with the harness; one that holds nothing needs no `aclose`.
    """
    streaming = asyncio.Event()
    told: list[str] = []

    async def hang(request: Request) -> AsyncIterator[Any]:
        streaming.set()
        try:
            await asyncio.Event().wait()
            yield
        finally:
            told.append("let go")

    class Closing(OddModel):
        async def aclose(self) -> None:
            told.append("closed")

    models = {"running": Closing(hang), "unused": Closing(), "nothing to close": OddModel()}
    harness = Harness(models, default_provider="running")
    session = await harness.create_session()
    session.send(read_events({"type": "message", "data": {"content": "go"}}))
    async with asyncio.timeout(5):
        await streaming.wait()
        await harness.aclose()
    assert told == ["let go", "closed", "closed"]
