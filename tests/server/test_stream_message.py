"""
``POST …/events?stream=true``: one message's own stream.
"""

import asyncio

from agent_harness.errors import ModelError
from agent_harness.llm.base import ItemAdded, ItemDone, TextDelta
from agent_harness.llm.scripted import Step, call, say
from tests.support import DONE, TOOL, types

LOOK = '{"widget_id": 1}'


def held(gate, *tail) -> Step:
    return Step((ItemAdded(0, "message"), TextDelta(0, "par"), gate, *(tail or (TextDelta(0, "tial"), ItemDone(0)))))


async def test_a_streamed_message_begins_with_a_status_that_names_item_and_response(serve):
    api = await serve(say("hi"))
    talk = await api.open()
    frames = await talk.turn()
    opening = frames[0]
    assert opening.raw.startswith(b"event: session.status\nretry: 1000\ndata: ") and opening.id is None
    items = await talk.items()
    assert opening.data["item_id"] == items[0]["id"] and opening.data["response_id"] == items[0]["response_id"]
    assert opening.seq == 0 and opening.data["status"] == "running"
    assert types(frames) == [
        "session.status running", "session.item", "session.status running", "response.created",
        "response.output_item.added", "response.output_text.delta", "response.output_text.done",
        "response.output_item.done", "response.completed", "session.status idle", DONE,
    ]  # fmt: skip
    assert [frame.id for frame in frames[1:-1]] == list(range(1, 10))
    await talk.stream.until_status("idle")
    assert [frame.raw for frame in frames[1:-1]] == [frame.raw for frame in talk.stream.frames[1:]]


async def test_a_streamed_message_goes_through_waiting_to_its_end(serve):
    api = await serve(call("look_up", LOOK, "c1"), say("done"))
    talk = await api.open()
    stream = await talk.send_streamed(tools=[TOOL])
    frames = await stream.until_status("waiting")
    assert frames[-1].data["required_actions"][0]["call_id"] == "c1"
    await talk.result("c1")
    assert types(await stream.rest())[-3:] == ["response.completed", "session.status idle", DONE]


async def test_a_queued_message_s_stream_holds_its_own_response_only(serve):
    gate = asyncio.Event()
    api = await serve(held(gate), say("two"), say("three"))
    talk = await api.open()
    first = await talk.send("first")
    await talk.stream.until("response.output_text.delta")
    stream = await talk.send_streamed("second")
    opening = await stream.next()
    own = opening.data["response_id"]
    assert own != first["response_id"] and opening.data["queued"] == [opening.data["item_id"]]
    third = await talk.send("third")
    gate.set()
    frames = await stream.rest()
    assert types(frames) == [
        "session.item", "session.status running", "session.item", "response.created",
        "response.output_item.added", "response.output_text.delta", "response.output_text.done",
        "response.output_item.done", "response.completed", "session.status running", DONE,
    ]  # fmt: skip
    assert [frames[n].data["item"]["status"] for n in (0, 2)] == ["queued", "completed"]
    assert frames[1].data["response_id"] == own and frames[8].data["response"]["id"] == own
    assert frames[9].data["response_id"] == third["response_id"]
    ids = [frame.id for frame in frames[:-1]]
    assert ids == sorted(ids) and ids[9] == ids[8] + 1


async def test_a_failed_response_closes_its_stream_with_failed(serve):
    api = await serve(ModelError("no", code="rate_limited"))
    talk = await api.open()
    assert types(await talk.turn())[-3:] == ["response.failed", "session.status failed", DONE]


async def test_an_interrupted_response_closes_its_stream_with_idle(serve):
    gate = asyncio.Event()
    api = await serve(held(gate))
    talk = await api.open()
    stream = await talk.send_streamed()
    await stream.until("response.output_text.delta")
    await talk.interrupt()
    assert types(await stream.rest()) == [
        "response.output_item.done", "session.item", "response.cancelled", "session.status idle", DONE,
    ]  # fmt: skip


async def test_the_stream_of_a_dropped_message_ends_with_done_and_no_status(serve):
    api = await serve(call("look_up", LOOK, "c1"))
    talk = await api.open()
    await talk.park()
    stream = await talk.send_streamed("second")
    opening = await stream.next()
    await talk.interrupt(clear_queue=True)
    frames = await stream.rest()
    assert types(frames) == ["session.item", "session.item", "response.cancelled", DONE]
    assert frames[1].data["item"]["status"] == "cancelled"
    assert frames[2].data["response"]["id"] == opening.data["response_id"]


async def test_the_stream_of_a_steered_message_holds_the_running_turn_from_then_on(serve):
    gate = asyncio.Event()
    api = await serve(held(gate), say("more"))
    talk = await api.open()
    first = await talk.send("first")
    await talk.stream.until("response.output_text.delta")
    stream = await talk.send_streamed("also", delivery="steer")
    opening = await stream.next()
    assert opening.data["response_id"] == first["response_id"] and opening.data["queued"] == [opening.data["item_id"]]
    gate.set()
    frames = await stream.rest()
    assert types(frames)[0] == "session.item" and types(frames)[-3:] == [
        "response.completed",
        "session.status idle",
        DONE,
    ]
    assert "response.created" not in types(frames)
    await talk.stream.until_status("idle")
    assert [frame.id for frame in frames[:-1]] == list(range(frames[0].id, talk.stream.frames[-1].id + 1))


async def test_the_stream_of_a_steered_message_that_is_dropped_ends_with_done(serve):
    api = await serve(call("look_up", LOOK, "c1"))
    talk = await api.open()
    await talk.park()
    stream = await talk.send_streamed("also", delivery="steer")
    opening = await stream.next()
    await talk.interrupt(clear_queue=True)
    frames = await stream.rest()
    assert types(frames)[-1] == DONE
    mine = [frame.data["item"]["status"] for frame in frames
            if frame.event == "session.item" and frame.data["item"]["id"] == opening.data["item_id"]]  # fmt: skip
    assert mine == ["queued", "cancelled"]


async def test_the_stream_of_a_message_ends_with_its_session(serve):
    api = await serve(call("look_up", LOOK, "c1"))
    talk = await api.open()
    running = await talk.send_streamed(tools=[TOOL])
    await running.until_status("waiting")
    queued = await talk.send_streamed("second")
    await queued.next()
    await api.ask("DELETE", talk.path)
    assert types(await running.rest())[-3:] == ["response.cancelled", "session.status idle", DONE]
    assert types(await queued.rest()) == ["session.item", "session.item", "response.cancelled", DONE]


async def test_updates_and_other_turns_are_not_in_a_message_s_stream(serve):
    gate = asyncio.Event()
    api = await serve(held(gate), say("two"))
    talk = await api.open()
    stream = await talk.send_streamed("first")
    await stream.until("response.output_text.delta")
    await api.ask("PATCH", talk.path, json={"metadata": {"a": "b"}})
    second = await talk.send("second")
    gate.set()
    frames = await stream.rest()
    assert "session.updated" not in types(frames) and "session.item" not in types(frames)
    assert types(frames)[-3:] == ["response.completed", "session.status running", DONE]
    assert frames[-2].data["response_id"] == second["response_id"]


async def test_a_message_s_stream_can_be_resumed_on_the_session_s_stream(serve):
    gate = asyncio.Event()
    api = await serve(held(gate))
    talk = await api.open()
    stream = await talk.send_streamed()
    opening = await stream.next()
    stream.close()
    again = await talk.follow(last_id=opening.seq, until="idle")
    gate.set()
    frames = await again.rest()
    assert [frame.id for frame in frames if frame.id] == list(range(1, frames[-2].id + 1))
