"""
Results that come early, twice, late, from elsewhere, or never.
"""

import asyncio
from typing import Any

import aiohttp
import pytest

from agent_harness.testing.strict import Dialect
from tests.cases.rig import DIALECTS, Case, calling
from tests.support import WAIT_S

both = pytest.mark.parametrize("dialect", DIALECTS)
ANSWER = {"text": "done"}


def result(call_id: str, output: Any = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "data": {"call_id": call_id, "output": output}}


async def park(case: Case) -> None:
    await case.send()
    await case.waiting()


@both
async def test_a_call_can_be_answered_from_the_moment_it_is_announced(play: Any, dialect: Dialect) -> None:
    """
    B138: 150 rounds of two calls in each dialect, each answered the instant its frame is read; none is lost, and the
    model is asked once a round.
    """
    rounds = 150
    entries = [calling(f"a{n}", f"b{n}") for n in range(rounds)]
    case = await play(dialect, *entries, ANSWER, agent={"max_model_calls": rounds + 1})
    await case.send()
    for _ in range(2 * rounds):
        frames = await case.stream.until(lambda frame: frame.data.get("item", {}).get("status") == "action_required")
        await case.result(frames[-1].data["item"]["call_id"], "now")
    assert await case.rests() == "idle"
    requests = await case.requests()
    assert [request.status for request in requests] == [200] * (rounds + 1)
    assert [call_id for call_id, _ in requests[-1].of("output")] == [f"{a}{n}" for n in range(rounds) for a in "ab"]


@both
async def test_a_result_that_comes_before_the_answer_has_ended_is_told_so(play: Any, dialect: Dialect) -> None:
    """
    B138: while upstream still streams, a call is not announced; its result is a 404 ``unknown_call`` that changes
    nothing, and the same result is taken once it is.
    """
    # The end of the answer is held back: all of the call is out.
    entry = calling("c1", block=7 if dialect == "responses" else 4)
    case = await play(dialect, entry, ANSWER)
    await case.send()
    await case.parked(1)
    await case.stream.until("response.function_call_arguments.delta")
    await case.refused(result("c1"), status=404, code="unknown_call", param="data.call_id")
    assert (await case.snapshot())["required_actions"] == []
    await case.release()
    assert [action["call_id"] for action in await case.waiting()] == ["c1"]
    await case.result("c1")
    assert await case.rests() == "idle"
    assert (await case.requests())[1].of("output") == [("c1", "ok")]


@both
async def test_a_result_for_no_call_is_refused_and_names_the_open_ones(play: Any, dialect: Dialect) -> None:
    """
    B140: 404, with the open calls in its words; to an idle session and to none as well.
    """
    case = await play(dialect, calling("c1"), ANSWER)
    await case.refused(result("c1"), status=404, code="unknown_call", param="data.call_id")
    await park(case)
    error = await case.refused(result("nope"), status=404, code="unknown_call", param="data.call_id")
    assert "c1" in error["message"]
    await case.api.refused(
        "POST", "/v1/sessions/sess_none/events", json=result("c1"), status=404, code="unknown_session"
    )
    await case.result("c1")
    assert await case.rests() == "idle"
    assert (await case.requests())[1].of("output") == [("c1", "ok")]


@both
async def test_of_results_for_one_call_the_first_is_kept(play: Any, dialect: Dialect) -> None:
    """
    B141: the same again is a 202 with ``duplicate``, another one a 409; one by one and all at once, before and after
    the turn.
    """
    case = await play(dialect, calling("c1", "c2"), ANSWER)
    await park(case)
    assert (await case.result("c1", "A"))["duplicate"] is False
    assert (await case.result("c1", "A"))["duplicate"] is True
    await case.refused(result("c1", "B"), status=409, code="call_already_answered", param="data.call_id")
    path = f"{case.path}/events"
    answers = await asyncio.gather(*(case.api.ask("POST", path, json=result("c2", each)) for each in "CDCDCD"))
    assert sorted(answer.status for answer in answers) == [202] * 3 + [409] * 3
    taken = [answer.body for answer in answers if answer.status == 202]
    assert [answer["duplicate"] for answer in taken].count(False) == 1
    assert await case.rests() == "idle"
    requests = await case.requests()
    assert len(requests) == 2
    kept = requests[1].of("output")
    assert kept in ([("c1", "A"), ("c2", "C")], [("c1", "A"), ("c2", "D")])
    assert (await case.result(*kept[1]))["duplicate"] is True
    assert len(await case.requests()) == 2


@both
async def test_a_client_that_never_answers_is_not_waited_for_beyond_the_deadline(play: Any, dialect: Dialect) -> None:
    """
    B142: the model reads that the call timed out and the turn goes on; a late result is told who closed the call.
    """
    case = await play(dialect, calling("c1", "c2"), ANSWER, agent={"tool_timeout_s": 0.05})
    await case.send()
    assert await case.rests() == "idle"
    snapshot = await case.snapshot()
    assert snapshot["required_actions"] == []
    _, second = await case.requests()
    assert second.status == 200
    assert [call_id for call_id, _ in second.of("output")] == ["c1", "c2"]
    assert all("timed out" in output for _, output in second.of("output"))
    error = await case.refused(result("c1"), status=409, code="call_closed", param="data.call_id")
    assert error["closed_by"] == "deadline"


@both
async def test_a_call_is_found_by_its_id_and_not_by_its_place(play: Any, dialect: Dialect) -> None:
    """
    B144: behind it stand a sibling with its output, a waiting message and a steered one.
    """
    case = await play(dialect, calling("c1", "c2"), ANSWER, {"text": "queued"})
    await case.send("go")
    await case.waiting()
    await case.send("later")
    await case.send("mind", delivery="steer")
    await case.result("c2", "two")
    await case.result("c1", "one")
    assert await case.rests() == "idle"
    _, second, third = await case.requests()
    assert [second.status, third.status] == [200, 200]
    outputs = [("output", "c1", "one"), ("output", "c2", "two")]
    assert [entry for entry in second.said if entry[0] != "call"] == [("user", "go"), *outputs, ("user", "mind")]
    assert third.said[-2:] == [("assistant", "done"), ("user", "later")]


@both
async def test_a_result_may_come_from_another_client(play: Any, dialect: Dialect) -> None:
    """
    B145: over a connection of its own, after the one that sent the message has left.
    """
    case = await play(dialect, calling("c1"), ANSWER)
    await park(case)
    case.stream.close()
    url = case.api.client.make_url(f"{case.path}/events")
    async with asyncio.timeout(WAIT_S), aiohttp.ClientSession() as other:
        async with other.post(url, json=result("c1", "from afar")) as answer:
            assert answer.status == 202
        async with other.get(case.api.client.make_url(f"{case.path}/stream?after=0&until=idle")) as stream:
            assert (await stream.read()).endswith(b"data: [DONE]\n\n")
    assert (await case.requests())[1].of("output") == [("c1", "from afar")]
