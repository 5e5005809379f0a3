"""
Pages of items, turn records, and the next request.
"""

import asyncio

from agent_harness.llm.base import ArgumentsDelta, Ended, ItemAdded, ItemDone, TextDelta
from agent_harness.llm.scripted import Step, call, say
from agent_harness.protocol.items import Usage
from tests.support import TOOL, heard

RECORD = ["id", "object", "status", "model", "created_at", "completed_at", "usage", "error", "incomplete_details"]


async def test_the_items_page_holds_the_settled_transcript_only(serve):
    gate = asyncio.Event()
    held = Step((ItemAdded(0, "message"), TextDelta(0, "par"), gate, TextDelta(0, "tial"), ItemDone(0)))
    api = await serve(say("one"), held, say("three"))
    talk = await api.open()
    await talk.turn("first")
    await talk.send("second")
    waiting = await talk.send("third")
    await talk.stream.until(lambda frame: frame.event == "response.output_text.delta" and frame.data["delta"] == "par")
    shown = await talk.items()
    assert [item["status"] for item in shown] == ["completed", "completed", "completed", "in_progress", "queued"]
    assert shown[3]["content"] == [{"type": "output_text", "text": "par", "annotations": []}]
    assert shown[4]["id"] == waiting["item_id"]
    page = await api.get(f"{talk.path}/items")
    assert page["data"] == shown[:3]
    assert (page["first_id"], page["last_id"], page["has_more"]) == (shown[0]["id"], shown[2]["id"], False)
    gate.set()
    await talk.stream.until_status("idle")
    assert (await api.get(f"{talk.path}/items?limit=100"))["data"] == await talk.items()


async def test_items_can_be_paged_in_both_orders(serve):
    api = await serve(*[say(str(n)) for n in range(4)])
    talk = await api.open()
    for n in range(4):
        await talk.turn(f"say {n}")
    items = await talk.items()
    for order, expected in (("asc", items), ("desc", items[::-1])):
        read, after = [], ""
        while True:
            page = await api.get(f"{talk.path}/items?limit=3&order={order}{after}")
            read += page["data"]
            if not page["has_more"]:
                break
            after = f"&after={page['last_id']}"
        assert read == expected
    default = await api.get(f"{talk.path}/items?limit=2")
    assert default["data"] == items[:2] and default["has_more"] is True


async def test_an_open_call_is_settled_and_listed(serve):
    api = await serve(call("look_up", '{"widget_id": 1}', "c1"), say("done"))
    talk = await api.open()
    await talk.park()
    assert [item["status"] for item in (await api.get(f"{talk.path}/items"))["data"]] == [
        "completed",
        "action_required",
    ]


async def test_turn_records_tell_how_each_turn_went(serve):
    usage = Usage(input_tokens=10, output_tokens=5, total_tokens=15, cached_tokens=4)
    api = await serve(
        say("one") + Step((Ended(usage=usage),)),
        say("cut") + Step((Ended("max_output_tokens"),)),
        call("look_up", '{"widget_id": 1}', "c1"),
    )
    talk = await api.open(agent={"model": "m-1"})
    first = (await talk.turn())[0].data["response_id"]
    await talk.turn()
    running = await talk.park()
    waiting = await talk.send("later")
    page = await api.get(f"{talk.path}/responses")
    records = {record["id"]: record for record in page["data"]}
    assert all(list(record) == RECORD and record["object"] == "response" for record in page["data"])
    assert len(records) == 4 and page["has_more"] is False
    assert records[first] == await api.get(f"{talk.path}/responses/{first}")
    one, cut, parked, queued = sorted(records.values(), key=lambda record: list(records).index(record["id"]))
    assert (one["status"], one["model"], one["error"], one["incomplete_details"]) == ("completed", "m-1", None, None)
    assert one["usage"] == {
        "input_tokens": 10, "output_tokens": 5, "total_tokens": 15,
        "input_tokens_details": {"cached_tokens": 4}, "output_tokens_details": {"reasoning_tokens": None},
    }  # fmt: skip
    assert isinstance(one["created_at"], int) and isinstance(one["completed_at"], int)
    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (parked["id"], parked["status"], parked["completed_at"]) == (running["response_id"], "in_progress", None)
    assert (queued["id"], queued["status"]) == (waiting["response_id"], "queued")
    await api.refused("GET", f"{talk.path}/responses/resp_none", status=404, code="unknown_response")


async def test_a_turn_record_of_another_session_is_not_found(serve):
    api = await serve(say("one"))
    talk, other = await api.open(), await api.open()
    response_id = (await talk.turn())[0].data["response_id"]
    await api.refused("GET", f"{other.path}/responses/{response_id}", status=404, code="unknown_response")


async def test_turn_records_can_be_paged(serve):
    api = await serve(*[say(str(n)) for n in range(3)])
    talk = await api.open()
    ids = [(await talk.turn())[0].data["response_id"] for _ in range(3)]
    for order, expected in (("asc", ids), ("desc", ids[::-1])):
        page = await api.get(f"{talk.path}/responses?order={order}&limit=2")
        assert [record["id"] for record in page["data"]] == expected[:2] and page["has_more"] is True
        rest = await api.get(f"{talk.path}/responses?order={order}&limit=2&after={page['last_id']}")
        assert [record["id"] for record in rest["data"]] == expected[2:] and rest["has_more"] is False


async def test_usage_of_the_session_is_the_sum_and_null_where_nothing_was_reported(serve):
    api = await serve(
        say("one") + Step((Ended(usage=Usage(input_tokens=10, output_tokens=5, total_tokens=15)),)),
        say("two") + Step((Ended(usage=Usage(input_tokens=1, reasoning_tokens=2)),)),
    )
    talk = await api.open()
    await talk.turn()
    await talk.turn()
    assert (await talk.snapshot())["usage"] == {
        "input_tokens": 11, "output_tokens": 5, "total_tokens": 15,
        "input_tokens_details": {"cached_tokens": None}, "output_tokens_details": {"reasoning_tokens": 2},
    }  # fmt: skip


async def test_the_request_preview_is_the_next_call_and_changes_nothing(serve):
    two = call("look_up", '{"widget_id": 1}', "c1") + call("look_up", '{"widget_id": 2}', "c2")
    api = await serve(two, say("done"))
    talk = await api.open(agent={"instructions": "Be brief.", "model": "m-1"})
    assert (await talk.request_body())["input"] == []
    await talk.park("look")
    before = await talk.raw()
    calls = [
        {"type": "message", "role": "user", "content": "look"},
        {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": '{"widget_id": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "look_up", "arguments": '{"widget_id": 2}'},
    ]
    open_calls = await talk.request_body()
    assert open_calls == {"model": "m-1", "instructions": "Be brief.", "input": calls, "tools": ["look_up"]}
    assert await talk.request_body() == open_calls and await talk.raw() == before
    await talk.result("c2", "two")
    half = await talk.request_body()
    assert half["input"] == [*calls, {"type": "function_call_output", "call_id": "c2", "output": "two"}]
    assert len(api.model.requests) == 1
    await talk.send("hurry", delivery="steer")
    steered = await talk.request_body()
    assert steered["input"][-1] == {"type": "message", "role": "user", "content": "hurry"}
    await talk.result("c1", "one")
    await talk.stream.until_status("idle")
    assert heard(api.model, 1) == [
        *calls,
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": "two"},
        {"type": "message", "role": "user", "content": "hurry"},
    ]
    assert (await talk.request_body())["tools"] == []


async def test_the_preview_of_a_running_answer_leaves_out_what_is_in_progress(serve):
    gate = asyncio.Event()
    parts = (
        ItemAdded(0, "function_call", "c1", "look_up"),
        ArgumentsDelta(0, '{"wid'),
        gate,
        ArgumentsDelta(0, 'get_id": 1}'),
    )
    api = await serve(Step(parts), say("done"))
    talk = await api.open(agent={"tools": [TOOL]})
    await talk.send("look")
    await talk.stream.until("response.function_call_arguments.delta")
    assert (await talk.request_body())["input"] == [{"type": "message", "role": "user", "content": "look"}]
    gate.set()
    await talk.stream.until_status("waiting")
    await talk.result("c1")
    await talk.stream.until_status("idle")
    assert [item["type"] for item in heard(api.model, 1)] == ["message", "function_call", "function_call_output"]
