"""
Delivery: queue, steer and reject, in every situation.
"""

import asyncio

from agent_harness.errors import ModelError
from agent_harness.llm.base import ItemAdded, ItemDone, TextDelta
from agent_harness.llm.scripted import Step, call, say
from tests.support import TOOL, heard, types, user

LOOK = '{"widget_id": 1}'


def held(gate, *tail) -> Step:
    return Step((ItemAdded(0, "message"), TextDelta(0, "par"), gate, *(tail or (TextDelta(0, "tial"), ItemDone(0)))))


def said(model, index):
    return [item.get("content", item["type"]) for item in heard(model, index)]


def entered(item_id):
    return lambda frame: frame.event == "session.item" and frame.data["item"]["id"] == item_id


async def test_queued_messages_have_their_own_turns_first_come_first_served(serve):
    api = await serve(call("look_up", LOOK, "c1"), say("one"), say("two"), say("three"))
    talk = await api.open()
    first = await talk.park("first")
    seq = (await talk.snapshot())["seq"]
    second, third = await talk.send("second"), await talk.send("third", delivery="queue")
    assert list(second) == ["queued", "item_id", "response_id", "seq", "waiting_for"]
    assert (second["queued"], second["seq"], third["seq"]) == (True, seq, seq + 1)
    snapshot = await talk.snapshot()
    assert second["waiting_for"] == snapshot["required_actions"] == third["waiting_for"]
    assert len({first["response_id"], second["response_id"], third["response_id"]}) == 3
    assert snapshot["queued"] == [second["item_id"], third["item_id"]]
    assert [item["status"] for item in snapshot["items"]] == ["completed", "action_required", "queued", "queued"]
    assert snapshot["response_id"] == first["response_id"] and snapshot["status"] == "waiting"
    frames = [await talk.stream.next(), await talk.stream.next()]
    assert [(frame.event, frame.data["item"]["status"]) for frame in frames] == [("session.item", "queued")] * 2
    await talk.result("c1")
    frames = await talk.stream.until_status("idle")
    ends = [frame.data["response"]["id"] for frame in frames if frame.event == "response.completed"]
    assert ends == [first["response_id"], second["response_id"], third["response_id"]]
    statuses = [frame.data["response_id"] for frame in frames if frame.event == "session.status"]
    assert statuses == [first["response_id"], second["response_id"], third["response_id"], None]
    assert said(api.model, 1) == ["first", "function_call", "function_call_output"]
    assert said(api.model, 2)[3:] == ["one", "second"] and said(api.model, 3)[5:] == ["two", "third"]


async def test_a_queued_turn_is_published_as_its_status_then_its_message_then_its_beginning(serve):
    gate = asyncio.Event()
    api = await serve(held(gate), say("two"))
    talk = await api.open()
    await talk.send("first")
    second = await talk.send("second")
    await talk.stream.until(entered(second["item_id"]))
    gate.set()
    await talk.stream.until("response.completed")
    frames = [await talk.stream.next() for _ in range(3)]
    assert types(frames) == ["session.status running", "session.item", "response.created"]
    assert frames[0].data["response_id"] == frames[2].data["response"]["id"] == second["response_id"]
    assert frames[1].data["item"]["status"] == "completed" and frames[1].data["item"]["id"] == second["item_id"]
    await talk.stream.until_status("idle")


async def test_the_tools_of_a_queued_message_hold_for_its_turn_only(serve):
    gate = asyncio.Event()
    api = await serve(held(gate), say("two"), say("three"))
    talk = await api.open()
    await talk.send("first")
    await talk.send("second", tools=[TOOL], tool_choice="required")
    await talk.send("third")
    gate.set()
    await talk.stream.until_status("idle")
    assert [[tool.name for tool in request.tools] for request in api.model.requests] == [[], ["look_up"], []]
    assert [request.tool_choice for request in api.model.requests] == [None, "required", None]


async def test_a_failed_or_incomplete_turn_does_not_stop_the_queue(serve):
    gate = asyncio.Event()
    failing = held(gate, ModelError("gone", code="upstream_disconnected"))
    api = await serve(failing, ModelError("no", code="provider_rejected"), say("three"))
    talk = await api.open()
    await talk.send("first")
    await talk.send("second")
    third = await talk.send("third")
    gate.set()
    frames = await talk.stream.until_status("idle")
    ends = [each for each in types(frames) if each in ("response.failed", "response.completed")]
    assert ends == ["response.failed", "response.failed", "response.completed"]
    assert "session.status failed" not in types(frames)
    assert (await talk.snapshot())["last_error"] is None
    assert said(api.model, 2) == ["first", "par", "second", "third"]
    assert frames[-2].data["response"]["id"] == third["response_id"]


async def test_steer_without_a_running_turn_is_like_queue(serve):
    api = await serve(say("hi"))
    talk = await api.open()
    answer = await talk.send(delivery="steer")
    assert list(answer) == ["queued", "item_id", "response_id", "seq"] and answer["queued"] is False
    await talk.stream.until_status("idle")
    assert said(api.model, 0) == ["hello"]


async def test_a_steered_message_enters_before_the_next_model_call_after_all_outputs(serve):
    two = call("look_up", LOOK, "c1") + call("look_up", LOOK, "c2")
    api = await serve(two, say("done"))
    talk = await api.open()
    first = await talk.park("first")
    steered = await talk.send("hurry", delivery="steer")
    assert steered["queued"] is True and steered["response_id"] == first["response_id"]
    snapshot = await talk.snapshot()
    assert steered["waiting_for"] == snapshot["required_actions"] and len(snapshot["required_actions"]) == 2
    assert snapshot["queued"] == [steered["item_id"]] and snapshot["items"][-1]["status"] == "queued"
    await talk.result("c2", "two")
    await talk.result("c1", "one")
    frames = await talk.stream.until_status("idle")
    assert types(frames).count("response.completed") == 1
    told = [frame.data["item"]["status"] for frame in frames if entered(steered["item_id"])(frame)]
    assert told == ["queued", "completed"]
    assert [item.get("call_id", item.get("content")) for item in heard(api.model, 1)] == [
        "first",
        "c1",
        "c2",
        "c1",
        "c2",
        "hurry",
    ]
    assert [item["type"] for item in await talk.items()].count("message") == 3
    assert (await talk.snapshot())["queued"] == []


async def test_a_turn_that_would_stop_makes_one_more_call_for_a_steered_message(serve):
    gate = asyncio.Event()
    api = await serve(held(gate), say("two"))
    talk = await api.open()
    first = await talk.send("first")
    await talk.stream.until("response.output_text.delta")
    one = await talk.send("also", delivery="steer")
    other = await talk.send("and", delivery="steer")
    assert one["response_id"] == other["response_id"] == first["response_id"] and one["waiting_for"] == []
    gate.set()
    frames = await talk.stream.until_status("idle")
    assert len(api.model.requests) == 2
    assert said(api.model, 1) == ["first", "partial", "also", "and"]
    assert types(frames).count("response.completed") == 1 and types(frames)[-2] == "response.completed"
    assert len((await api.get(f"{talk.path}/responses"))["data"]) == 1


async def test_the_tools_of_a_steered_message_replace_the_turns_from_then_on(serve):
    other = {"type": "function", "name": "other"}
    api = await serve(call("look_up", LOOK, "c1"), call("other", "{}", "c2"), say("done"), say("next"))
    talk = await api.open()
    await talk.park()
    await talk.send("use the other", delivery="steer", tools=[other])
    await talk.result("c1")
    await talk.stream.until_status("waiting")
    await talk.result("c2")
    await talk.stream.until_status("idle")
    await talk.turn()
    names = [[tool.name for tool in request.tools] for request in api.model.requests]
    assert names == [["look_up"], ["other"], ["other"], []]


async def test_a_steered_message_without_tools_leaves_the_turns_tools(serve):
    api = await serve(call("look_up", LOOK, "c1"), say("done"))
    talk = await api.open()
    await talk.park()
    await talk.send("hurry", delivery="steer")
    await talk.result("c1")
    await talk.stream.until_status("idle")
    assert [[tool.name for tool in request.tools] for request in api.model.requests] == [["look_up"]] * 2


async def test_an_empty_list_of_tools_in_a_steered_message_takes_the_turns_away(serve):
    api = await serve(call("look_up", LOOK, "c1"), say("done"))
    talk = await api.open()
    await talk.park()
    await talk.send("no more", delivery="steer", tools=[])
    await talk.result("c1")
    await talk.stream.until_status("idle")
    assert [[tool.name for tool in request.tools] for request in api.model.requests] == [["look_up"], []]


async def test_a_steered_message_enters_a_failing_turn_before_its_end_and_starts_none(serve):
    gate = asyncio.Event()
    api = await serve(held(gate, ModelError("gone", code="upstream_disconnected")), say("next"))
    talk = await api.open()
    first = await talk.send("first")
    steered = await talk.send("also", delivery="steer")
    await talk.stream.until(entered(steered["item_id"]))
    gate.set()
    frames = await talk.stream.until_status("failed")
    assert types(frames)[-4:] == [
        "response.output_item.done",
        "session.item",
        "response.failed",
        "session.status failed",
    ]
    assert frames[-3].data["item"]["id"] == steered["item_id"] and frames[-3].data["item"]["status"] == "completed"
    snapshot = await talk.snapshot()
    assert snapshot["queued"] == [] and len(api.model.requests) == 1
    assert [item["response_id"] for item in snapshot["items"]] == [first["response_id"]] * 3
    await talk.turn("next")
    assert said(api.model, 1) == ["first", "par", "also", "next"]


async def test_a_steered_message_enters_an_interrupted_turn_before_its_end_and_starts_none(serve):
    api = await serve(call("look_up", LOOK, "c1"), say("next"))
    talk = await api.open()
    await talk.park("first")
    steered = await talk.send("also", delivery="steer")
    await talk.interrupt()
    frames = await talk.stream.until_status("idle")
    told = [frame.data["item"]["status"] for frame in frames if entered(steered["item_id"])(frame)]
    assert told == ["queued", "completed"] and types(frames)[-2:] == ["response.cancelled", "session.status idle"]
    assert len(api.model.requests) == 1 and (await talk.snapshot())["queued"] == []
    await talk.turn("next")
    assert "also" in said(api.model, 1) and said(api.model, 1)[-1] == "next"


async def test_a_message_steered_into_a_turn_at_the_bound_of_its_model_calls_enters_it_and_starts_none(serve):
    gate = asyncio.Event()
    api = await serve(held(gate), say("next"))
    talk = await api.open(agent={"max_model_calls": 1})
    await talk.send("first")
    steered = await talk.send("also", delivery="steer")
    await talk.stream.until(entered(steered["item_id"]))
    gate.set()
    frames = await talk.stream.until_status("idle")
    assert types(frames)[-3:] == ["session.item", "response.incomplete", "session.status idle"]
    assert frames[-2].data["response"]["incomplete_details"] == {"reason": "max_model_calls"}
    await talk.turn("next")
    assert said(api.model, 1) == ["first", "partial", "also", "next"]


async def test_a_steered_message_does_not_overtake_the_queue_nor_the_queue_it(serve):
    gate = asyncio.Event()
    api = await serve(held(gate), say("two"), say("three"))
    talk = await api.open()
    await talk.send("first")
    queued = await talk.send("queued")
    steered = await talk.send("steered", delivery="steer")
    assert (await talk.snapshot())["queued"] == [queued["item_id"], steered["item_id"]]
    gate.set()
    await talk.stream.until_status("idle")
    assert said(api.model, 1) == ["first", "partial", "steered"]
    assert said(api.model, 2) == ["first", "partial", "steered", "two", "queued"]


async def test_reject_takes_a_message_only_when_nothing_runs_waits_or_is_queued(serve):
    gate = asyncio.Event()
    api = await serve(say("one"), held(gate), call("look_up", LOOK, "c1"), say("done"), say("last"))
    talk = await api.open()
    refusal = user("no", delivery="reject")
    assert (await talk.send("first", delivery="reject"))["queued"] is False
    await talk.stream.until_status("idle")
    await talk.send("second")
    await talk.stream.until("response.output_text.delta")
    await talk.refused(refusal, status=409, code="turn_in_progress")
    await talk.send("third", tools=[TOOL])
    await talk.refused(refusal, status=409, code="turn_in_progress")
    gate.set()
    await talk.stream.until_status("waiting")
    await talk.refused(refusal, status=409, code="turn_in_progress")
    await talk.result("c1")
    await talk.stream.until_status("idle")
    assert (await talk.send("last", delivery="reject"))["queued"] is False
    await talk.stream.until_status("idle")
    assert "no" not in said(api.model, 4)


async def test_queue_full_refuses_queue_and_steer_and_changes_nothing(serve):
    api = await serve(call("look_up", LOOK, "c1"), *[say("x")] * 4, queued_messages=2)
    talk = await api.open()
    await talk.park()
    await talk.send("one")
    await talk.send("two", delivery="steer")
    for delivery in ("queue", "steer"):
        await talk.refused(user("three", delivery=delivery), status=429, code="queue_full")
    await talk.refused(user("three", delivery="reject"), status=409, code="turn_in_progress")
    await talk.result("c1")
    await talk.stream.until_status("idle")
    assert (await talk.send("three"))["queued"] is False


async def test_the_message_after_a_failed_turn_clears_the_failure(serve):
    gate = asyncio.Event()
    api = await serve(ModelError("no such key", code="provider_auth"), held(gate))
    talk = await api.open()
    await talk.send("first")
    frames = await talk.stream.until_status("failed")
    error = {"code": "provider_auth", "message": "no such key"}
    assert frames[-1].data["last_error"] == error and frames[-2].data["response"]["error"] == error
    assert frames[-2].event == "response.failed" and frames[-2].data["response"]["status"] == "failed"
    snapshot = await talk.snapshot()
    assert (snapshot["status"], snapshot["last_error"], snapshot["response_id"]) == ("failed", error, None)
    await talk.send("second")
    running = await talk.snapshot()
    assert (running["status"], running["last_error"]) == ("running", None)
    gate.set()
    frames = await talk.stream.until_status("idle")
    assert all(frame.data["last_error"] is None for frame in frames if frame.event == "session.status")
    assert said(api.model, 1) == ["first", "second"]


async def test_an_unknown_provider_fails_the_turn_by_name(serve):
    api = await serve(say("ok"))
    talk = await api.open(agent={"provider": "nowhere"})
    await talk.send()
    frames = await talk.stream.until_status("failed")
    assert frames[-2].data["response"]["error"]["code"] == "provider_not_found"
    assert (await api.ask("PATCH", talk.path, json={"agent": {"provider": None}})).status == 200
    await talk.send("again")
    await talk.stream.until_status("idle")
    assert said(api.model, 0) == ["hello", "again"]
