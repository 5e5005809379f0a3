"""
Messages, the turns that answer them, and the functions that run meanwhile.
"""

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from agent_harness.client import Functions, Result, tool
from agent_harness.config import Limits
from agent_harness.engine.harness import Harness
from agent_harness.errors import Conflict, InvalidRequest, ModelError, NotFound, RequestError
from agent_harness.llm.base import ItemAdded, ItemDone, TextDelta
from agent_harness.llm.scripted import ScriptedModel, Step, call, say
from agent_harness.protocol.events import (
    TERMINAL_EVENTS,
    OutputItemDone,
    ResponseCancelled,
    ResponseCompleted,
    SessionItem,
    SessionStatus,
)
from agent_harness.protocol.items import FunctionCall, FunctionCallOutput, InputText, Message
from agent_harness.protocol.tools import Tool
from agent_harness.server import make_app
from agent_harness.store.base import Store
from agent_harness.store.memory import MemoryStore
from tests.ports import hold_port
from tests.support import heard

LOOK = '{"widget_id": 42}'
WAIT_S = 5.0


def look_up(widget_id: int) -> str:
    """Look up a widget."""
    return f"widget {widget_id} is teal"


def held(gate: asyncio.Event) -> Step:
    return Step((ItemAdded(0, "message"), TextDelta(0, "par"), gate, TextDelta(0, "tial"), ItemDone(0)))


def output_of(result: Result, call_id: str) -> FunctionCallOutput:
    [output] = [item for item in result.items if isinstance(item, FunctionCallOutput) and item.call_id == call_id]
    return output


async def bounded(waitable: Any) -> Any:
    async with asyncio.timeout(WAIT_S):
        return await waitable


async def test_the_events_of_a_turn_come_as_values_up_to_its_terminal_event(serve: Any) -> None:
    served = await serve(say("hello", " there"))
    session = await served.client.sessions.create()
    reply = session.send("hi")
    assert (reply.response_id, reply.item_id, reply.seq) == (None, None, None)
    events = [event async for event in reply]
    told = [event.type for event in events]
    assert told[:3] == ["session.item", "session.status", "response.created"]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "hello there"
    assert isinstance(events[-1], ResponseCompleted) and events[-1].response.id == reply.response_id
    assert isinstance(events[0], SessionItem) and events[0].item.id == reply.item_id
    assert reply.seq == len(events)


async def test_a_wait_that_is_cancelled_can_be_taken_up_again(serve: Any) -> None:
    gate, began = asyncio.Event(), asyncio.Event()
    posts: list[bytes] = []

    @web.middleware
    async def hold(request: web.Request, handler: Any) -> Any:
        if request.path.endswith("/events"):
            posts.append(await request.read())
            answer = await handler(request)
            began.set()
            await gate.wait()
            return answer
        return await handler(request)

    served = await serve(say("hello"), middleware=hold)
    session = await served.client.sessions.create()
    reply = session.send("hi")
    waiting = asyncio.ensure_future(anext(reply))
    await bounded(began.wait())
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.set()
    assert (await bounded(reply.result())).text == "hello"
    assert len(posts) == 2 and len((await session.snapshot()).items or ()) == 2


async def test_run_gives_text_items_and_usage(serve: Any) -> None:
    served = await serve(say("I look it up.") + call("look_up", LOOK, "c1"), say("It is ", "teal."))
    session = await served.client.sessions.create()
    result = await bounded(session.run("What color?", tools=[look_up]))
    assert (result.status, result.text, result.error) == ("completed", "It is teal.", None)
    kinds = [(item.type, item.status) for item in result.items]
    assert kinds == [
        ("message", "completed"),
        ("message", "completed"),
        ("function_call", "completed"),
        ("function_call_output", "completed"),
        ("message", "completed"),
    ]
    assert result.items == (await session.snapshot()).items
    assert result.usage is not None and result.usage.total_tokens == 0
    assert output_of(result, "c1").output == "widget 42 is teal"


async def test_the_model_reads_what_the_function_returned_byte_for_byte(serve: Any) -> None:
    text = 'a\r\n\u2028"\\ é \U0001f600\u0085 end '

    @tool
    async def give() -> str:
        return text

    served = await serve(call("give", "{}", "c1"), say("ok"))
    session = await served.client.sessions.create()
    await bounded(session.run("go", tools=[give]))
    assert heard(served.model, 1)[-1]["output"] == text


async def test_parts_can_be_said_and_returned(serve: Any) -> None:
    def look() -> list[Any]:
        return [InputText("seen"), {"type": "input_image", "image_url": "data:image/png;base64,AA=="}]

    served = await serve(call("look", "{}", "c1"), say("ok"))
    session = await served.client.sessions.create()
    said = [InputText("one"), {"type": "input_text", "text": "two"}]
    result = await bounded(session.run(said, tools=[look]))
    assert isinstance(result.items[0], Message) and result.items[0].content == (InputText("one"), InputText("two"))
    output = output_of(result, "c1").output
    assert output[0] == InputText("seen") and not isinstance(output, str) and output[1].type == "input_image"


async def test_an_exception_is_an_error_output_and_the_turn_goes_on(serve: Any) -> None:
    def fail() -> None:
        raise ValueError("no widget today")

    served = await serve(call("fail", "{}", "c1"), say("sorry"))
    session = await served.client.sessions.create()
    result = await bounded(session.run("go", tools=[fail]))
    output = output_of(result, "c1")
    assert (result.status, result.text) == ("completed", "sorry")
    assert (output.output, output.is_error, output.origin) == ("ValueError: no widget today", True, "client")
    assert [item.status for item in result.items if isinstance(item, FunctionCall)] == ["failed"]


async def test_a_failed_turn_is_a_result_with_its_error_and_raises_nothing(serve: Any) -> None:
    served = await serve(ModelError("no such key", code="provider_auth"))
    session = await served.client.sessions.create()
    result = await bounded(session.run("go"))
    assert result.status == "failed" and result.error is not None
    assert (result.error.code, result.error.message, result.text) == ("provider_auth", "no such key", "")


async def test_a_cut_turn_is_a_result_with_its_reason(serve: Any) -> None:
    served = await serve(call("look_up", LOOK, "c1"))
    session = await served.client.sessions.create(agent={"max_model_calls": 1})
    result = await bounded(session.run("go", tools=[look_up]))
    assert (result.status, result.incomplete_reason) == ("incomplete", "max_model_calls")


async def test_a_refused_message_raises_what_the_server_raised(serve: Any) -> None:
    gate = asyncio.Event()
    served = await serve(held(gate))
    session = await served.client.sessions.create()
    with pytest.raises(InvalidRequest, match="not offered") as caught:
        await bounded(session.run("go", tool_choice="required"))
    assert caught.value.param == "tool_choice"
    async with session.send("go") as reply:
        await bounded(anext(reply))
        with pytest.raises(Conflict) as refused:
            await bounded(session.run("no", delivery="reject"))
    assert refused.value.code == "turn_in_progress"
    gate.set()


@pytest.mark.parametrize("content", [5, None, b"text", {"type": "input_text", "text": "hi"}])
async def test_what_is_neither_text_nor_parts_is_said_before_anything_is_sent(serve: Any, content: Any) -> None:
    served = await serve()
    session = await served.client.sessions.create()
    with pytest.raises(TypeError, match="content is a text or a list of parts, not "):
        await bounded(session.run(content))
    with pytest.raises(TypeError, match="content is a text or a list of parts, not "):
        session.send(content)
    if content is not None:
        with pytest.raises(TypeError, match="output is a text or a list of parts, not "):
            await bounded(session.submit("call_1", content))


async def test_a_tool_choice_can_be_a_value_or_a_dictionary(serve: Any) -> None:
    served = await serve(say("one"), say("two"))
    session = await served.client.sessions.create()
    await bounded(session.run("go", tools=[look_up], tool_choice={"type": "function", "name": "look_up"}))
    await bounded(session.run("go", tools=[look_up], tool_choice="none"))
    assert [request.tool_choice for request in served.model.requests][1] == "none"


async def test_calls_of_definitions_are_left_to_be_submitted(serve: Any) -> None:
    plain = {"type": "function", "function": {"name": "plain"}}
    served = await serve(call("plain", "{}", "c1") + call("typed", "{}", "c2") + call("look_up", LOOK, "c3"), say("ok"))
    session = await served.client.sessions.create()
    async with asyncio.timeout(WAIT_S):
        reply = session.send("go", tools=[plain, Tool(name="typed"), look_up])
        async for event in reply:
            if isinstance(event, OutputItemDone) and event.item.status == "action_required":
                call_id, name = event.item.call_id, event.item.name
                if name != "look_up":
                    accepted = await session.submit(call_id, "by hand", is_error=name == "typed")
                    assert (accepted.call_id, accepted.duplicate) == (call_id, False)
    result = await reply.result()
    assert [output_of(result, call_id).output for call_id in ("c1", "c2")] == ["by hand", "by hand"]
    assert output_of(result, "c2").is_error and output_of(result, "c3").output == "widget 42 is teal"
    assert (await session.submit("c1", "by hand")).duplicate
    with pytest.raises(Conflict):
        await session.submit("c1", "otherwise")
    with pytest.raises(NotFound):
        await session.submit("c9", "nothing")


async def test_calls_run_together_up_to_the_limit(serve: Any) -> None:
    running, most, gate, full = 0, 0, asyncio.Event(), asyncio.Event()

    async def work(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await gate.wait()
        running -= 1
        return number

    calls = call("work", '{"number": 0}', "c0")
    for number in range(1, 7):
        calls += call("work", f'{{"number": {number}}}', f"c{number}")
    served = await serve(calls, say("done"))
    session = await served.client.sessions.create()
    task = asyncio.ensure_future(session.run("go", tools=Functions([work], limit=3)))
    await bounded(full.wait())
    gate.set()
    result = await bounded(task)
    assert most == 3 and [output_of(result, f"c{number}").output for number in range(7)] == list("0123456")


def make_sleeper() -> tuple[Any, asyncio.Event, asyncio.Event]:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def sleep_long() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    return sleep_long, begun, ended


async def test_an_interrupt_cancels_the_function_that_runs(serve: Any) -> None:
    function, begun, ended = make_sleeper()
    served = await serve(call("sleep_long", "{}", "c1"))
    session = await served.client.sessions.create()
    task = asyncio.ensure_future(session.run("go", tools=[function]))
    await bounded(begun.wait())
    interrupted = await bounded(session.interrupt())
    result = await bounded(task)
    await bounded(ended.wait())
    assert interrupted.interrupted and interrupted.response_id == result.response_id
    assert result.status == "cancelled" and output_of(result, "c1").origin == "harness"


async def test_a_deadline_cancels_the_function_that_runs_and_the_turn_goes_on(serve: Any) -> None:
    function, begun, ended = make_sleeper()
    served = await serve(call("sleep_long", "{}", "c1"), say("too slow"))
    session = await served.client.sessions.create()
    result = await bounded(session.run("go", tools=[tool(function, timeout_s=0.5)]))
    await bounded(ended.wait())
    assert begun.is_set() and (result.status, result.text) == ("completed", "too slow")


async def test_a_result_from_elsewhere_cancels_the_function_that_runs(serve: Any) -> None:
    function, begun, ended = make_sleeper()
    served = await serve(call("sleep_long", "{}", "c1"), say("ok"))
    session = await served.client.sessions.create()
    other = await served.client.sessions.get(session.id)
    task = asyncio.ensure_future(session.run("go", tools=[function]))
    await bounded(begun.wait())
    await bounded(other.submit("c1", "by another"))
    result = await bounded(task)
    await bounded(ended.wait())
    assert output_of(result, "c1").output == "by another"


@pytest.mark.parametrize("how", ["interrupt", "other result", "delete"])
async def test_a_result_that_comes_too_late_is_nobodys_fault(serve: Any, how: str) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def stubborn() -> str:
        begun.set()
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                gate.set()
        return "late"

    served = await serve(call("stubborn", "{}", "c1"), say("ok"))
    session = await served.client.sessions.create()
    task = asyncio.ensure_future(session.run("go", tools=[stubborn]))
    await bounded(begun.wait())
    if how == "interrupt":
        await bounded(session.interrupt())
    elif how == "delete":
        await bounded(served.client.sessions.delete(session.id))
    else:
        await bounded(session.submit("c1", "by another"))
    result = await bounded(task)
    assert result.status == ("completed" if how == "other result" else "cancelled")


async def test_leaving_early_cancels_the_functions_but_not_the_turn(serve: Any) -> None:
    function, begun, ended = make_sleeper()
    served = await serve(call("sleep_long", "{}", "c1"), say("ok"))
    session = await served.client.sessions.create()
    async for event in session.send("go", tools=[function]):
        if isinstance(event, SessionStatus) and event.status == "waiting":
            await bounded(begun.wait())
            break
    gc.collect()
    await bounded(ended.wait())
    snapshot = await session.snapshot()
    assert snapshot.status == "waiting" and [action.call_id for action in snapshot.required_actions] == ["c1"]
    await session.submit("c1", "by hand")
    async with session.follow(after=snapshot.seq) as events:
        last = [event async for event in until_end(events)][-1]
    assert isinstance(last, ResponseCompleted)


async def until_end(events: Any) -> Any:
    async with asyncio.timeout(WAIT_S):
        async for event in events:
            yield event
            if isinstance(event, TERMINAL_EVENTS):
                return


@pytest.mark.parametrize("how", ["aclose", "async with"])
async def test_leaving_early_can_be_said(serve: Any, how: str) -> None:
    function, begun, ended = make_sleeper()
    served = await serve(call("sleep_long", "{}", "c1"), say("ok"))
    session = await served.client.sessions.create()
    reply = session.send("go", tools=[function])
    async with asyncio.timeout(WAIT_S):
        async for event in reply:
            if isinstance(event, SessionStatus) and event.status == "waiting":
                break
        await begun.wait()
    if how == "aclose":
        await reply.aclose()
    else:
        async with reply:
            pass
    await bounded(ended.wait())
    assert [event async for event in reply] == []
    with pytest.raises(RuntimeError, match="left before its turn ended"):
        await reply.result()


async def test_a_queued_message_has_its_own_events_only(serve: Any) -> None:
    gate = asyncio.Event()
    served = await serve(held(gate), say("second"))
    session = await served.client.sessions.create()
    first = session.send("one")
    await bounded(anext(first))
    second = session.send("two")
    entered = await bounded(anext(second))
    assert second.queued and isinstance(entered, SessionItem) and entered.item.status == "queued"
    gate.set()
    results = await bounded(asyncio.gather(first.result(), second.result()))
    assert [result.text for result in results] == ["partial", "second"]
    assert [len(result.items) for result in results] == [2, 2]


async def test_a_message_dropped_from_the_queue_ends_cancelled(serve: Any) -> None:
    served = await serve(held(asyncio.Event()))
    session = await served.client.sessions.create()
    first, second = session.send("one"), session.send("two")
    await bounded(anext(first))
    await bounded(anext(second))
    interrupted = await bounded(session.interrupt(clear_queue=True))
    results = await bounded(asyncio.gather(first.result(), second.result()))
    assert [result.status for result in results] == ["cancelled", "cancelled"]
    assert interrupted.dropped == (second.item_id,)


async def test_a_steered_message_joins_the_running_turn_and_a_call_still_runs_once(serve: Any) -> None:
    ran: list[int] = []
    gate = asyncio.Event()

    def count() -> int:
        ran.append(1)
        return len(ran)

    def wait_then_call() -> Step:
        return Step((gate, *call("count", "{}", "c1").parts))

    served = await serve(held(gate), wait_then_call(), say("done"))
    session = await served.client.sessions.create()
    first = session.send("one", tools=[count])
    await bounded(anext(first))
    second = session.send("two", tools=[count], delivery="steer")
    await bounded(anext(second))
    gate.set()
    results = await bounded(asyncio.gather(first.result(), second.result()))
    assert results[0].response_id == results[1].response_id == first.response_id
    assert len(ran) == 1 and {result.text for result in results} == {"done"}


async def test_an_interrupt_of_another_turn_stops_nothing(serve: Any) -> None:
    served = await serve(say("ok"))
    session = await served.client.sessions.create()
    interrupted = await session.interrupt("resp_other")
    assert (interrupted.interrupted, interrupted.response_id, interrupted.dropped) == (False, None, ())


async def test_outputs_of_eight_megabytes_pass_both_ways(serve: Any) -> None:
    text = "é" * 4_000_000

    def give() -> str:
        return text

    served = await serve(call("give", "{}", "c1"), say("ok"))
    session = await served.client.sessions.create()
    result = await bounded(session.run("go", tools=[give]))
    assert result.status == "completed" and output_of(result, "c1").output == text


async def test_an_output_that_the_server_refuses_is_replaced_by_the_reason(serve: Any) -> None:
    served = await serve(call("give", "{}", "c1"), say("ok"), body_bytes=50_000)
    session = await served.client.sessions.create()
    result = await bounded(session.run("go", tools=[tool(lambda: "x" * 60_000, name="give")]))
    output = output_of(result, "c1")
    assert result.status == "completed" and output.is_error
    assert "The result could not be taken: The body is over the limit of 50,000 bytes" in str(output.output)


async def test_a_result_that_cannot_be_posted_at_all_is_raised_where_events_are_read(serve: Any) -> None:
    @web.middleware
    async def refuse(request: web.Request, handler: Any) -> Any:
        if request.method == "POST" and b"function_call_output" in await request.read():
            return web.json_response({"error": {"code": "wrong_key", "message": "who are you?"}}, status=401)
        return await handler(request)

    served = await serve(call("look_up", LOOK, "c1"), middleware=refuse)
    session = await served.client.sessions.create()
    with pytest.raises(RequestError, match="who are you") as caught:
        await bounded(session.run("go", tools=[look_up]))
    assert caught.value.code == "wrong_key"


async def test_a_session_that_is_deleted_ends_its_reply_cancelled(serve: Any) -> None:
    served = await serve(held(asyncio.Event()))
    session = await served.client.sessions.create()
    reply = session.send("go")
    await bounded(anext(reply))
    await served.client.sessions.delete(session.id)
    events = [event async for event in until_end(reply)]
    assert isinstance(events[-1], ResponseCancelled)
    with pytest.raises(NotFound):
        await bounded(session.run("again"))


@asynccontextmanager
async def serve_state(port: int, store: Store, *steps: Any) -> AsyncIterator[None]:
    harness = Harness({"default": ScriptedModel(list(steps))}, limits=Limits(grace_s=0), store=store)
    runner = web.AppRunner(make_app(harness), access_log=None, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield
    finally:
        await harness.drain()
        await runner.cleanup()


async def test_a_run_goes_on_where_the_server_is_stopped_and_started_again_with_its_state(connect: Any) -> None:
    store, begun, gate = MemoryStore(), asyncio.Event(), asyncio.Event()

    async def look() -> str:
        begun.set()
        await gate.wait()
        return "teal"

    with hold_port() as port:
        client = connect(f"http://127.0.0.1:{port}")
        async with asyncio.timeout(WAIT_S):
            async with serve_state(port, store, call("look", "{}", "c1")):
                session = await client.sessions.create()
                running = asyncio.create_task(session.run("color?", tools=[look]))
                await begun.wait()
            gate.set()
            async with serve_state(port, store, say("It is teal."), say("Next.")):
                result = await running
                assert (result.status, result.text) == ("completed", "It is teal.")
                assert (await session.run("and now?")).text == "Next."


async def test_a_server_that_ends_every_stream_is_given_up(pretend: Any) -> None:
    status = {"type": "session.status", "seq": 1, "status": "running", "response_id": "resp_1", "required_actions": []}
    body = f"event: session.status\ndata: {json.dumps(status)}\n\ndata: [DONE]\n\n"

    async def handle(request: web.Request) -> web.Response:
        if request.method == "POST":
            taken = {"queued": False, "item_id": "msg_1", "response_id": "resp_1", "seq": 1}
            return web.json_response({"id": "sess_1", **taken}, status=202)
        if request.path.endswith("/stream"):
            return web.Response(text=body, content_type="text/event-stream")
        return web.json_response({"id": "sess_1", "status": "running"})

    client = await pretend(handle, patience_s=0.2)
    session = await client.sessions.get("sess_1")
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(ConnectionError, match="the server ended the stream"):
            await session.run("hi")
