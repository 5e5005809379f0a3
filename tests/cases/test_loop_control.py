"""
Where the loop ends: tools that do not exist, bounds on model calls, calls that repeat; and what stays the same in all
of a session's requests.
"""

from typing import Any

import pytest

from agent_harness.testing.strict import Dialect
from tests.cases.rig import DIALECTS, TOOLS, begun, calling

both = pytest.mark.parametrize("dialect", DIALECTS)
ANSWER = {"text": "done"}


@both
async def test_a_tool_that_is_not_offered_is_answered_by_the_harness(play: Any, dialect: Dialect) -> None:
    """
    B147: never given to the client, an error that names what there is, and the turn completes. It counts as an answer.
    """
    unknown = {"tool_calls": [{"call_id": "c1", "name": "get_date", "arguments": "{}"}]}
    case = await play(dialect, unknown, ANSWER, unknown, agent={"max_model_calls": 2})
    sent = await case.send()
    assert await case.rests() == "idle"
    assert (await case.record(sent))["status"] == "completed"
    _, second = await case.requests()
    [(call_id, output)] = second.of("output")
    assert (second.status, call_id) == (200, "c1")
    assert output.startswith("Error: ")
    assert "look" in output and "find" in output
    assert not [frame for frame in case.stream.frames if frame.data.get("status") == "waiting"]


@both
async def test_unknown_tools_count_against_the_bound_on_model_calls(play: Any, dialect: Dialect) -> None:
    """
    B147, B150: a model that calls nothing else is not asked for ever.
    """
    unknown = {"tool_calls": [{"name": "get_date", "arguments": "{}"}]}
    case = await play(dialect, *[unknown] * 3, ANSWER, agent={"max_model_calls": 3})
    sent = await case.send()
    assert await case.rests() == "idle"
    assert (await case.record(sent))["incomplete_details"] == {"reason": "max_model_calls"}
    assert len(await case.requests()) == 3
    assert (await case.says())["status"] == "completed"


@both
async def test_the_bound_ends_the_turn_and_not_the_session(play: Any, dialect: Dialect) -> None:
    """
    B150: three requests, a terminal event that says why, the last calls never announced; the next message works.
    """
    case = await play(dialect, *[calling(f"c{n}") for n in range(3)], ANSWER, agent={"max_model_calls": 3})
    sent = await case.send()
    for call_id in ("c0", "c1"):
        assert [action["call_id"] for action in await case.waiting()] == [call_id]
        await case.result(call_id)
    assert await case.rests() == "idle"
    record = await case.record(sent)
    assert (record["status"], record["incomplete_details"]) == ("incomplete", {"reason": "max_model_calls"})
    assert [frame.event for frame in case.stream.frames].count("response.incomplete") == 1
    snapshot = await case.snapshot()
    assert snapshot["required_actions"] == []
    assert [item["status"] for item in snapshot["items"] if item["type"] == "function_call"][-1] == "incomplete"
    assert len(await case.requests()) == 3
    assert (await case.says())["status"] == "completed"
    last = (await case.requests())[-1]
    assert (last.status, [call_id for call_id, _ in last.of("output")]) == (200, ["c0", "c1"])


async def test_a_call_that_repeats_without_end_is_ended_by_the_default_bound(play: Any) -> None:
    """
    B151: 50 model calls where the agent says nothing; repeated calls are not flagged.
    """
    case = await play("responses")
    await case.tell_mock("/mock/set_fallback", {"response": {"tool_calls": [{"name": "look", "arguments": '{"a":1}'}]}})
    sent = await case.send()
    while (frame := (await case.stream.until("session.status"))[-1]).data["status"] != "idle":
        for action in frame.data["required_actions"]:
            await case.result(action["call_id"])
    assert (await case.record(sent))["incomplete_details"] == {"reason": "max_model_calls"}
    assert len(await case.requests()) == 50


@both
async def test_every_kind_of_request_has_the_same_instructions_tools_and_settings(play: Any, dialect: Dialect) -> None:
    """
    B170: the first, one after a result, after a retry, with a steered message, for a queued message, after an interrupt
    and after a failure.
    """
    agent = {"instructions": "Be brief.", "temperature": 0.5, "top_p": 0.9, "max_output_tokens": 99}
    entries = [
        calling("c1"),
        {"error": "busy", "status_code": 503},
        {"text": "a", "block": begun(dialect)},
        {"text": "b"},
        {"text": "c"},
        {"text": "d", "block": True},
        {"error": "no", "status_code": 400},
        ANSWER,
    ]
    case = await play(dialect, *entries, agent=agent)
    await case.send("first")
    await case.waiting()
    await case.result("c1")
    await case.parked(1)
    await case.send("steered", delivery="steer")
    await case.send("queued")
    await case.release()
    assert await case.rests() == "idle"
    await case.send("interrupted")
    await case.parked(1)
    await case.interrupt()
    assert await case.rests() == "idle"
    assert (await case.says("refused"))["status"] == "failed"
    assert (await case.says("last"))["status"] == "completed"
    requests = await case.requests()
    assert len(requests) == len(entries)
    key = "input" if dialect == "responses" else "messages"
    rests = [{name: value for name, value in request.body.items() if name != key} for request in requests]
    assert all(rest == rests[0] for rest in rests)
    assert rests[0]["temperature"] == 0.5
    assert len(rests[0]["tools"]) == len(TOOLS)
    if dialect == "responses":
        assert rests[0]["instructions"] == "Be brief."
    else:
        first = {"role": "system", "content": "Be brief."}
        assert all(request.body["messages"][0] == first for request in requests)
