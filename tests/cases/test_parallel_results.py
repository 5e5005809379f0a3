"""
Results of several calls of one answer: the model is asked again once all are there, and never before.
"""

from typing import Any

import pytest

from agent_harness.testing.strict import Dialect
from tests.cases.rig import DIALECTS, Case, Clock, calling

both = pytest.mark.parametrize("dialect", DIALECTS)
ANSWER = {"text": "done"}


async def park(case: Case) -> None:
    await case.send()
    await case.waiting()


async def is_waiting_for(case: Case, *call_ids: str) -> None:
    """
    Nothing was asked since the calls, and these are open.
    """
    snapshot = await case.snapshot()
    assert snapshot["status"] == "waiting"
    assert [action["call_id"] for action in snapshot["required_actions"]] == list(call_ids)
    assert not [item for item in snapshot["items"] if item.get("origin") == "harness"]
    assert len(await case.requests()) == 1
    assert (await case.tell_mock("/stats"))["open"] == 0


@both
@pytest.mark.parametrize("seconds", [0.05, 0.3, 1.0, 4.0])
async def test_time_alone_never_asks_the_model(play: Any, clock: Clock, dialect: Dialect, seconds: float) -> None:
    """
    B020, B021: the last result comes late; nothing is sent until then, and one request with all of them after it.
    """
    case = await play(dialect, calling("c1", "c2", "c3"), ANSWER)
    await park(case)
    await case.result("c1", "one")
    await case.result("c2", "two")
    clock.put_forward(seconds)
    await case.settle()
    await is_waiting_for(case, "c3")
    await case.result("c3", "three")
    assert await case.rests() == "idle"
    _, second = await case.requests()
    assert (second.status, second.of("output")) == (200, [("c1", "one"), ("c2", "two"), ("c3", "three")])


@both
@pytest.mark.parametrize("order", [["c3", "c1", "c2"], ["c2", "c3", "c1"]], ids="".join)
async def test_outputs_are_sent_in_call_order_and_stay_so(play: Any, dialect: Dialect, order: list[str]) -> None:
    """
    B023: whatever order they came in; the next request begins with the same bytes, which STRICT compares.
    """
    case = await play(dialect, calling("c1", "c2", "c3"), calling("d1", "d2"), ANSWER)
    await park(case)
    for call_id in order:
        await case.result(call_id, f"of {call_id}")
    await case.waiting()
    for call_id in ("d2", "d1"):
        await case.result(call_id, f"of {call_id}")
    assert await case.rests() == "idle"
    _, second, third = await case.requests()
    assert [second.status, third.status] == [200, 200]
    expected = [(call_id, f"of {call_id}") for call_id in ("c1", "c2", "c3", "d1", "d2")]
    assert (second.of("output"), third.of("output")) == (expected[:3], expected)
    assert third.said[: len(second.said)] == second.said


@both
async def test_a_result_for_an_answered_call_is_refused_alone(play: Any, dialect: Dialect) -> None:
    """
    B026: 409, nothing else changes, and the other call's result is taken. In a batch, one refusal refuses all.
    """
    case = await play(dialect, calling("c1", "c2"), ANSWER)
    await park(case)
    await case.result("c1", "A")
    data = [{"call_id": "c1", "output": "other"}, {"call_id": "c2", "output": "B"}]
    events = [{"type": "function_call_output", "data": each} for each in data]
    await case.refused(events[0], status=409, code="call_already_answered", param="data.call_id")
    await case.refused({"events": events}, status=409, code="call_already_answered", param="events[0].data.call_id")
    await is_waiting_for(case, "c2")
    await case.result("c2", "B")
    assert await case.rests() == "idle"
    assert (await case.requests())[1].of("output") == [("c1", "A"), ("c2", "B")]


@both
async def test_some_of_the_results_are_kept_and_the_others_waited_for(
    play: Any, clock: Clock, dialect: Dialect
) -> None:
    """
    B027: a batch with one of two, and no placeholder for the other.
    """
    case = await play(dialect, calling("c1", "c2"), ANSWER)
    await park(case)
    answer = await case.post({"events": [{"type": "function_call_output", "data": {"call_id": "c1", "output": "A"}}]})
    assert [result["accepted"] for result in answer["results"]] == [True]
    clock.put_forward(1.0)
    await case.settle()
    await is_waiting_for(case, "c2")
    await case.result("c2", "B")
    assert await case.rests() == "idle"
    assert (await case.requests())[1].of("output") == [("c1", "A"), ("c2", "B")]


@both
async def test_a_result_is_told_before_the_slowest_call_has_one(play: Any, dialect: Dialect) -> None:
    """
    B029: by the frames directly behind the post, with the others still open.
    """
    case = await play(dialect, calling("c1", "c2", "c3"), ANSWER)
    await park(case)
    seq = (await case.result("c3", "C"))["seq"]
    frames = [await case.stream.next(), await case.stream.next()]
    assert [frame.id for frame in frames if frame] == [seq + 1, seq + 2]
    items = [frame.data["item"] for frame in frames if frame]
    assert [(item["type"], item["call_id"], item["status"]) for item in items] == [
        ("function_call", "c3", "completed"),
        ("function_call_output", "c3", "completed"),
    ]
    await is_waiting_for(case, "c1", "c2")


@both
async def test_a_call_that_failed_leaves_its_sibling_open(play: Any, clock: Clock, dialect: Dialect) -> None:
    """
    B030.
    """
    case = await play(dialect, calling("c1", "c2"), ANSWER)
    await park(case)
    await case.result("c1", "boom", is_error=True)
    clock.put_forward(2.0)
    await case.settle()
    await is_waiting_for(case, "c2")
    await case.result("c2", "ok")
    assert await case.rests() == "idle"
    _, second = await case.requests()
    assert (second.status, second.of("output")) == (200, [("c1", "Error: boom"), ("c2", "ok")])
