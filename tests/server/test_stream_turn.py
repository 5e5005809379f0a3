"""
What a turn looks like on the stream: every event, its order and its fields.
"""

import asyncio

import pytest

from agent_harness.errors import ModelError
from agent_harness.llm.base import Ended, ItemAdded, ItemDone, RefusalDelta, Retrying, TextDelta
from agent_harness.llm.scripted import Step, call, say, think
from agent_harness.protocol.items import Usage
from tests.support import TOOL, heard, types

LOOK = '{"widget_id": 42}'


def shape(frame) -> list[str]:
    return list(frame.data)


async def test_a_turn_with_one_client_tool_is_told_event_by_event_as_documented(serve):
    """B121: between call and result the status is waiting; one terminal event, then one status."""
    usage = Usage(input_tokens=5, output_tokens=7, total_tokens=12)
    api = await serve(call("look_up", LOOK, "c1"), say("It is", " blue.") + Step((Ended(usage=usage),)))
    talk = await api.open(agent={"model": "m-1"})
    sent = await talk.park("what is widget 42?")
    await talk.result("c1", "blue")
    await talk.stream.until_status("idle")
    frames = talk.stream.frames[1:]
    assert types(frames) == [
        "session.item",
        "session.status running",
        "response.created",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "session.status waiting",
        "response.output_item.done",
        "response.output_item.done",
        "session.status running",
        "response.output_item.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.output_item.done",
        "response.completed",
        "session.status idle",
    ]
    turn = sent["response_id"]
    item = ["type", "seq", "at", "response_id", "output_index", "item"]
    status = ["type", "seq", "at", "status", "response_id", "required_actions", "queued", "last_error"]
    delta = ["type", "seq", "response_id", "item_id", "output_index"]
    for index, fields in {
        0: ["type", "seq", "at", "item"], 1: status, 2: ["type", "seq", "response"], 3: item, 4: [*delta, "delta"],
        6: [*delta, "arguments"], 7: item, 8: status, 9: item, 10: item, 11: status, 12: item,
        13: [*delta, "content_index", "delta"], 15: [*delta, "content_index", "text"], 16: item,
        17: ["type", "seq", "response"], 18: status,
    }.items():  # fmt: skip
        assert set(shape(frames[index])) == set(fields), (index, frames[index].data)
    items = await talk.items()
    assert [frames[n].data["item"] for n in (0, 9, 10, 16)] == items
    assert next(item["id"] for item in items) == sent["item_id"]
    assert set(items[0]) == {"id", "type", "status", "response_id", "created_at", "role", "content", "origin"}
    assert set(items[1]) == {"id", "type", "status", "response_id", "created_at", "call_id", "name", "arguments"}
    assert set(items[2]) == {
        "id",
        "type",
        "status",
        "response_id",
        "created_at",
        "call_id",
        "output",
        "is_error",
        "origin",
    }
    running, waiting, resumed, idle = (frames[n].data for n in (1, 8, 11, 18))
    action = {"type": "function_call", "response_id": turn, "call_id": "c1", "name": "look_up", "arguments": LOOK}
    assert waiting["required_actions"] == [action | {"expires_at": waiting["required_actions"][0]["expires_at"]}]
    for each, response_id in ((running, turn), (waiting, turn), (resumed, turn), (idle, None)):
        assert (each["response_id"], each["queued"], each["last_error"]) == (response_id, [], None)
        assert each is waiting or each["required_actions"] == []
    added, done = frames[3].data["item"], frames[7].data["item"]
    assert (added["status"], added["arguments"], added["call_id"], added["name"]) == (
        "in_progress",
        "",
        "c1",
        "look_up",
    )
    assert done == added | {"status": "action_required", "arguments": LOOK}
    assert frames[9].data["item"] == done | {"status": "completed"}
    assert "".join(frames[n].data["delta"] for n in (4, 5)) == frames[6].data["arguments"] == LOOK
    assert frames[12].data["item"]["status"] == "in_progress" and frames[12].data["item"]["content"] == []
    assert [frames[n].data["delta"] for n in (13, 14)] == ["It is", " blue."] and frames[15].data[
        "text"
    ] == "It is blue."
    assert [frames[n].data["output_index"] for n in (3, 7, 9, 10, 12, 16)] == [0, 0, 0, 1, 2, 2]
    created, completed = frames[2].data["response"], frames[17].data["response"]
    assert (created["id"], created["object"], created["status"], created["model"]) == (
        turn,
        "response",
        "in_progress",
        "m-1",
    )
    assert created["completed_at"] is created["usage"] is created["error"] is created["incomplete_details"] is None
    assert completed == await api.get(f"{talk.path}/responses/{turn}")
    assert completed["status"] == "completed" and completed["usage"]["total_tokens"] == 12
    assert "replayed" not in frames[7].data


async def test_all_calls_of_one_answer_are_announced_in_call_order_and_waiting_comes_right_after(serve):
    api = await serve(say("let me see") + call("look_up", LOOK, "c1") + call("look_up", LOOK, "c2"), say("done"))
    talk = await api.open()
    await talk.park()
    frames = talk.stream.frames[-4:]
    assert types(frames) == ["response.output_item.done"] * 3 + ["session.status waiting"]
    assert [frame.data["item"].get("call_id") for frame in frames[:3]] == [None, "c1", "c2"]
    assert [frame.data["item"]["status"] for frame in frames[:3]] == ["completed", "action_required", "action_required"]
    assert [action["call_id"] for action in frames[3].data["required_actions"]] == ["c1", "c2"]


async def test_status_is_not_published_when_only_its_lists_change(serve):
    api = await serve(call("look_up", LOOK, "c1") + call("look_up", LOOK, "c2"), say("done"), say("two"))
    talk = await api.open()
    await talk.park()
    await talk.result("c1")
    await talk.send("queued")
    await talk.send("steered", delivery="steer")
    await talk.result("c2")
    frames = await talk.stream.until_status("running")
    assert types(frames) == [
        "response.output_item.done", "response.output_item.done", "session.item", "session.item",
        "response.output_item.done", "response.output_item.done", "session.status running",
    ]  # fmt: skip


async def test_a_call_the_harness_answers_is_told_at_its_place_and_never_announced(serve):
    step = call("look_up", LOOK, "c1") + call("nope", "{}", "c2") + call("look_up", LOOK, "c3")
    api = await serve(step, say("done"))
    talk = await api.open()
    await talk.park()
    frames = talk.stream.frames[-5:]
    told = [
        (frame.data["item"]["type"], frame.data["item"]["call_id"], frame.data["item"]["status"])
        for frame in frames[:4]
    ]
    assert told == [
        ("function_call", "c1", "action_required"), ("function_call", "c2", "failed"),
        ("function_call_output", "c2", "completed"), ("function_call", "c3", "action_required"),
    ]  # fmt: skip
    assert [action["call_id"] for action in frames[4].data["required_actions"]] == ["c1", "c3"]
    assert frames[2].data["item"]["origin"] == "harness" and frames[2].data["item"]["is_error"] is True
    await talk.result("c3")
    await talk.result("c1")
    await talk.stream.until_status("idle")
    outputs = [item["call_id"] for item in heard(api.model, 1) if item["type"] == "function_call_output"]
    assert outputs == ["c1", "c2", "c3"]


@pytest.mark.parametrize("end", [
    Ended("max_output_tokens"), Ended("content_filter"), ModelError("reset", code="upstream_disconnected"),
    ModelError("silent", code="upstream_idle"),
])  # fmt: skip
async def test_no_call_of_a_cut_answer_is_announced(serve, end):
    step = say("let me see") + call("look_up", LOOK, "c1") + call("look_up", LOOK, "c2") + Step((end,))
    api = await serve(step, say("next"))
    talk = await api.open(agent={"tools": [TOOL]})
    frames = await talk.turn("first")
    done = [frame.data["item"] for frame in frames if frame.event == "response.output_item.done"]
    assert [(item["type"], item["status"]) for item in done] == [
        ("message", "incomplete"), ("function_call", "incomplete"), ("function_call", "incomplete"),
    ]  # fmt: skip
    failed = isinstance(end, ModelError)
    record = frames[-3].data["response"]
    assert types(frames)[-3:-1] == (
        ["response.failed", "session.status failed"] if failed else ["response.incomplete", "session.status idle"]
    )
    assert record["error"] == ({"code": end.code, "message": end.message} if failed else None)
    assert record["incomplete_details"] == (None if failed else {"reason": end.reason})
    assert "session.status waiting" not in types(frames)
    await talk.turn("next")
    assert [item["content"] for item in heard(api.model, 1)] == ["first", "let me see", "next"]


async def test_an_answer_that_stops_without_an_end_fails_the_turn(serve):
    class Cut:
        default_model = "cut"

        async def stream(self, request):
            yield ItemAdded(0, "message")
            yield TextDelta(0, "par")

        def body(self, request):
            return b"{}"

    api = await serve(models={"cut": Cut()})
    talk = await api.open(agent={"provider": "cut"})
    frames = await talk.turn()
    assert frames[-3].data["response"]["error"]["code"] == "upstream_disconnected"


async def test_a_model_that_breaks_fails_the_turn_as_internal_error_without_details(serve, caplog):
    def broken(request):
        raise ZeroDivisionError("secret detail")

    api = await serve(broken, say("next"))
    talk = await api.open()
    frames = await talk.turn()
    error = frames[-3].data["response"]["error"]
    assert error["code"] == "internal_error" and "secret" not in error["message"]
    assert "secret detail" in caplog.text
    assert types(await talk.turn())[-3] == "response.completed"


async def test_reasoning_refusals_and_retries_have_events_of_their_own(serve):
    hidden = {"id": "rs_upstream", "encrypted_content": "cipher"}
    refusal = Step((ItemAdded(0, "message"), RefusalDelta(0, "I "), RefusalDelta(0, "won't"), ItemDone(0)))
    retry = Step((Retrying(1, 0.5, "rate_limited"),))
    api = await serve(retry + think("hmm", hidden) + refusal)
    talk = await api.open()
    frames = await talk.turn()
    assert types(frames)[4:-3] == [
        "response.retrying",
        "response.output_item.added", "response.reasoning_summary_text.delta", "response.reasoning_summary_text.done",
        "response.output_item.added", "response.refusal.delta", "response.refusal.delta", "response.refusal.done",
        "response.output_item.done", "response.output_item.done",
    ]  # fmt: skip
    by_type = {frame.event: frame.data for frame in frames if frame.event}
    retrying = by_type["response.retrying"]
    assert (retrying["attempt"], retrying["delay_s"], retrying["reason"]) == (1, 0.5, "rate_limited")
    summary = by_type["response.reasoning_summary_text.done"]
    assert (summary["summary_index"], summary["text"], summary["output_index"]) == (0, "hmm", 0)
    assert (
        by_type["response.refusal.done"]["refusal"] == "I won't"
        and by_type["response.refusal.done"]["content_index"] == 0
    )
    items = await talk.items()
    assert items[1]["type"] == "reasoning" and items[1]["summary"] == [{"type": "summary_text", "text": "hmm"}]
    assert items[2]["content"] == [{"type": "refusal", "refusal": "I won't"}]
    raw = await talk.raw() + b"".join(frame.raw for frame in frames)
    assert b"cipher" not in raw and b"rs_upstream" not in raw


async def test_the_last_published_states_are_the_snapshots_items_in_order_of_first_appearance(serve):
    gate = asyncio.Event()
    held = Step((ItemAdded(0, "message"), TextDelta(0, "par"), gate, TextDelta(0, "tial"), ItemDone(0)))
    api = await serve(
        think("hmm") + call("look_up", LOOK, "c1") + call("nope", "{}", "c2") + call("look_up", LOOK, "c3"),
        held,
        say("two"),
        say("three"),
        call("look_up", LOOK, "c4"),
    )
    past = [{"type": "message", "role": "user", "content": "before"}]
    talk = await api.open(items=past)
    await talk.park()
    await talk.send("queued")
    await talk.send("steered", delivery="steer")
    await talk.result("c3")
    await talk.result("c1", "boom", is_error=True)
    await talk.stream.until("response.output_text.delta")
    await talk.send("third")
    dropped = await talk.send("fourth", tools=[TOOL])
    gate.set()
    await talk.stream.until_status("waiting")
    await talk.send("dropped")
    await talk.interrupt(clear_queue=True)
    await talk.stream.until("response.cancelled")
    await talk.stream.until("response.cancelled")
    await talk.stream.until_status("idle")
    state: dict[str, dict] = {}
    for frame in talk.stream.frames:
        item = frame.data.get("item")
        if item is None:
            continue
        if item["status"] == "queued":
            continue
        if item["status"] == "cancelled":
            state.pop(item["id"], None)
        else:
            state[item["id"]] = item
    items = await talk.items()
    assert [item["content"][0]["text"] for item in items[:1]] == ["before"]
    assert list(state.values()) == items[1:]
    assert dropped["item_id"] in state
    statuses = {item["call_id"]: item["status"] for item in items if item["type"] == "function_call"}
    assert statuses == {"c1": "failed", "c2": "failed", "c3": "completed", "c4": "incomplete"}


async def test_each_turn_ends_with_one_terminal_event_and_one_status(serve):
    api = await serve(
        say("one"),
        ModelError("no", code="provider_auth"),
        say("cut") + Step((Ended("content_filter"),)),
        call("look_up", LOOK, "c1"),
    )
    talk = await api.open()
    for n in range(4):
        stream = await talk.send_streamed(str(n), tools=[TOOL])
        if n == 3:
            await stream.until_status("waiting")
            await talk.interrupt()
        await stream.rest()
    await talk.stream.until("response.cancelled")
    await talk.stream.until_status("idle")
    told = types(talk.stream.frames)
    ends = [
        index
        for index, each in enumerate(told)
        if each in ("response.completed", "response.failed", "response.incomplete", "response.cancelled")
    ]
    assert [told[index] for index in ends] == [
        "response.completed",
        "response.failed",
        "response.incomplete",
        "response.cancelled",
    ]
    assert [told[index + 1] for index in ends] == [
        f"session.status {each}" for each in ("idle", "failed", "idle", "idle")
    ]
    assert not any("output" in each for index in ends for each in told[index + 1 : index + 3])


async def test_output_index_counts_the_items_of_the_turn_over_all_its_model_calls(serve):
    api = await serve(say("a") + call("look_up", LOOK, "c1"), call("look_up", LOOK, "c2"), say("done"), say("new turn"))
    talk = await api.open()
    await talk.park()
    await talk.result("c1")
    await talk.stream.until_status("waiting")
    await talk.result("c2")
    await talk.stream.until_status("idle")
    index = {}
    for frame in talk.stream.frames:
        if frame.event in ("response.output_item.added", "response.output_item.done"):
            assert index.setdefault(frame.data["item"]["id"], frame.data["output_index"]) == frame.data["output_index"]
    assert sorted(index.values()) == list(range(6))
    assert {
        frame.data["output_index"] for frame in await talk.turn() if frame.event == "response.output_item.done"
    } == {0}
