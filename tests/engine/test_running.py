"""
A message run in process, with Python functions as tools.
"""

import asyncio
import gc

import pytest

from agent_harness.engine.harness import Harness
from agent_harness.errors import ModelError, RequestError
from agent_harness.llm.scripted import ScriptedModel, call, say
from agent_harness.store.memory import MemoryStore
from tests.engine.rig import ticks

WAIT_S = 5.0


def heard(model: ScriptedModel) -> bytes:
    return model.body(model.requests[-1])


async def test_the_events_of_a_run_hold_the_text_and_end_with_the_status() -> None:
    async with Harness({"default": ScriptedModel([say("hello ", "there")])}) as harness:
        session = await harness.create_session({"model": "default"})
        events = [event async for event in session.run("hi")]
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "hello there"
    assert [event.type for event in events][:3] == ["session.item", "session.status", "response.created"]
    assert [event.type for event in events][-2:] == ["response.completed", "session.status"]


async def test_functions_sync_and_async_answer_their_calls_in_process() -> None:
    def color(widget_id: int) -> dict[str, str]:
        return {"color": f"teal-{widget_id}"}

    async def size(widget_id: int) -> str:
        return f"{widget_id} cm"

    both = call("color", '{"widget_id": 4}', "c1") + call("size", '{"widget_id": 2}', "c2")
    model = ScriptedModel([both, say("done")])
    async with Harness({"default": model}) as harness:
        session = await harness.create_session()
        async with asyncio.timeout(WAIT_S):
            events = [event async for event in session.run("hi", tools=[color, size])]
    assert events[-2].type == "response.completed"
    assert b"teal-4" in heard(model) and b"2 cm" in heard(model)


async def test_a_function_that_raises_gives_the_model_an_error_without_its_traceback() -> None:
    def fail() -> str:
        raise RuntimeError("out of paint")

    model = ScriptedModel([call("fail", "{}", "c1"), say("sorry")])
    async with Harness({"default": model}) as harness:
        session = await harness.create_session()
        async with asyncio.timeout(WAIT_S):
            _ = [event async for event in session.run("hi", tools=[fail])]
    assert b"RuntimeError: out of paint" in heard(model) and b"Traceback" not in heard(model)


async def test_a_call_of_a_definition_is_answered_with_submit() -> None:
    model = ScriptedModel([call("look", "{}", "c1"), say("done")])
    async with Harness({"default": model}) as harness:
        session = await harness.create_session()
        async with asyncio.timeout(WAIT_S):
            async for event in session.run("hi", tools=[{"type": "function", "name": "look"}]):
                if event.type == "session.status" and event.status == "waiting":
                    session.submit("c1", "found it")
    assert b"found it" in heard(model)


async def test_an_interrupt_cancels_the_function_that_runs_and_ends_the_run() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ""

    async with Harness({"default": ScriptedModel([call("wait", "{}", "c1")])}) as harness:
        session = await harness.create_session()

        async def interrupt() -> None:
            await started.wait()
            await session.interrupt()

        task = asyncio.create_task(interrupt())
        async with asyncio.timeout(WAIT_S):
            events = [event async for event in session.run("hi", tools=[wait])]
            await task
            await cancelled.wait()
    assert events[-2].type == "response.cancelled"


async def test_leaving_a_run_early_cancels_its_functions_and_leaves_the_call_open() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    async with Harness({"default": ScriptedModel([call("wait", "{}", "c1")])}) as harness:
        session = await harness.create_session()
        run = session.run("hi", tools=[wait])
        async with asyncio.timeout(WAIT_S):
            async for event in run:
                if event.type == "session.status" and event.status == "waiting":
                    await started.wait()
                    break
            await run.aclose()
            await cancelled.wait()
        assert session.status == "waiting"


async def test_a_function_that_ends_while_the_session_is_left_for_the_next_start_ends_quietly() -> None:
    gate, told = asyncio.Event(), []

    async def look() -> str:
        await gate.wait()
        return "late"

    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
    async with Harness({"default": ScriptedModel([call("look", "{}", "c1")])}, store=MemoryStore()) as harness:
        session = await harness.create_session()
        run = session.run("hi", tools=[look])
        async with asyncio.timeout(WAIT_S):
            async for event in run:
                if event.type == "session.status" and event.status == "waiting":
                    break
        session.suspend()
        gate.set()
        await ticks(5)
        await run.aclose()
    gc.collect()
    assert not told


async def test_a_failed_turn_is_an_event_and_a_refused_message_an_exception() -> None:
    model = ScriptedModel([ModelError("no", code="provider_rejected")])
    async with Harness({"default": model}) as harness:
        session = await harness.create_session()
        events = [event async for event in session.run("hi")]
        assert [event.type for event in events][-2:] == ["response.failed", "session.status"]
        with pytest.raises(RequestError) as refused:
            _ = [event async for event in session.run("hi", tools=[{"type": "function"}])]
        assert refused.value.code == "invalid_tool"


def test_one_process_may_run_harnesses_in_one_loop_after_another() -> None:
    """
    B164: nothing is bound to an old loop.
    """

    async def turn() -> str:
        async with Harness({"default": ScriptedModel([say("again")])}) as harness:
            session = await harness.create_session()
            events = [event async for event in session.run("hi")]
            return events[-2].type

    assert [asyncio.run(turn()) for _ in range(3)] == ["response.completed"] * 3


async def test_a_harness_that_was_never_closed_warns() -> None:
    harness = Harness({"default": ScriptedModel([])})
    await harness.create_session()
    sweeper = harness._sweeper
    assert sweeper is not None
    sweeper.cancel()
    with pytest.warns(ResourceWarning, match="never closed"):
        harness.__del__()
    await harness.aclose()
    await harness.aclose()
