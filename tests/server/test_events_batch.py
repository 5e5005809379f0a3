"""
Batches of results.
"""

from agent_harness.llm.scripted import Step, call, say
from tests.support import heard, user

LOOK = '{"widget_id": 1}'


def output(call_id: str, value="ok", **extra) -> dict:
    return {"type": "function_call_output", "data": {"call_id": call_id, "output": value, **extra}}


async def parked(serve, *ids: str):
    step = Step(())
    for call_id in ids:
        step += call("look_up", LOOK, call_id)
    talk = await (await serve(step, say("done"))).open()
    await talk.park()
    return talk


def outputs(model, index: int) -> list[tuple[str, str]]:
    return [(item["call_id"], item["output"]) for item in heard(model, index) if item["type"] == "function_call_output"]


async def test_a_batch_of_64_results_is_taken_in_order(serve):
    ids = [f"c{n}" for n in range(64)]
    talk = await parked(serve, *ids)
    seq = (await talk.snapshot())["seq"]
    answer = await talk.post({"events": [output(call_id, call_id) for call_id in reversed(ids)]})
    assert list(answer) == ["results"]
    assert [result["call_id"] for result in answer["results"]] == ids[::-1]
    assert all(result["accepted"] and not result["duplicate"] and result["seq"] == seq for result in answer["results"])
    await talk.stream.until_status("idle")
    assert outputs(talk.api.model, 1) == [(call_id, call_id) for call_id in ids]
    assert {item["id"] for item in await talk.items()} >= {result["item_id"] for result in answer["results"]}


async def test_a_batch_that_answers_some_calls_leaves_the_rest_open(serve):
    """B027."""
    talk = await parked(serve, "c1", "c2")
    await talk.post({"events": [output("c1", "A")]})
    snapshot = await talk.snapshot()
    assert [action["call_id"] for action in snapshot["required_actions"]] == ["c2"] and snapshot["status"] == "waiting"
    assert len(talk.api.model.requests) == 1


async def test_one_refusal_refuses_the_whole_batch(serve):
    talk = await parked(serve, "c1", "c2", "c3")
    await talk.result("c3", "C")
    good = output("c1")
    for bad, status, code, param in (
        (output("nope"), 404, "unknown_call", "events[1].data.call_id"),
        (output("c3", "other"), 409, "call_already_answered", "events[1].data.call_id"),
        (output("c1", "again"), 400, "invalid_value", "events[1].data.call_id"),
        (output("c1"), 400, "invalid_value", "events[1].data.call_id"),
        (output("c2", 1), 400, "invalid_value", "events[1].data.output"),
        ({"type": "function_call_output", "data": {"output": "x"}}, 400, "missing_field", "events[1].data.call_id"),
        ({"type": "function_call_output"}, 400, "missing_field", "events[1].data"),
        (output("c2") | {"x": 1}, 400, "unknown_field", "events[1].x"),
        (user("hi"), 400, "invalid_value", "events[1].type"),
        ({"type": "interrupt"}, 400, "invalid_value", "events[1].type"),
        ({"type": "nope"}, 400, "unknown_event_type", "events[1].type"),
        ({"data": {}}, 400, "missing_field", "events[1].type"),
        ("x", 400, "invalid_value", "events[1]"),
        (output("c2", "x" * 10_000_001), 413, "request_too_large", "events[1].data.output"),
    ):
        await talk.refused({"events": [good, bad]}, status=status, code=code, param=param)
    await talk.post({"events": [good, output("c2")]})
    await talk.stream.until_status("idle")
    assert outputs(talk.api.model, 1) == [("c1", "ok"), ("c2", "ok"), ("c3", "C")]


async def test_a_refusal_by_state_names_the_first_bad_result(serve):
    talk = await parked(serve, "c1")
    body = {"events": [output("c1"), output("no1"), output("no2")]}
    await talk.refused(body, status=404, code="unknown_call", param="events[1].data.call_id")


async def test_an_equal_repeat_in_a_batch_is_no_refusal(serve):
    talk = await parked(serve, "c1", "c2")
    first = await talk.result("c1", "A")
    answer = await talk.post({"events": [output("c2", "B"), output("c1", "A")]})
    assert [(result["call_id"], result["duplicate"]) for result in answer["results"]] == [("c2", False), ("c1", True)]
    assert answer["results"][1]["item_id"] == first["item_id"]
    await talk.stream.until_status("idle")
    again = await talk.post({"events": [output("c1", "A"), output("c2", "B")]})
    assert [result["duplicate"] for result in again["results"]] == [True, True]
    assert outputs(talk.api.model, 1) == [("c1", "A"), ("c2", "B")] and len(talk.api.model.requests) == 2


async def test_a_batch_holds_1_to_64_results_and_nothing_stands_beside_it(serve):
    talk = await parked(serve, "c1")
    for events in ([], [output(f"c{n}") for n in range(65)], {}, "x", None, 1):
        await talk.refused({"events": events}, status=400, code="invalid_value", param="events")
    body = {"events": [output("c1")], "type": "function_call_output"}
    await talk.refused(body, status=400, code="unknown_field", param="type")
