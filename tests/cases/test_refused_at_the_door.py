"""
What a model server would refuse is refused when it is sent, or made to fit: no turn fails for it later.
"""

from typing import Any

import pytest

from agent_harness.testing.strict import Dialect
from tests.cases.rig import DIALECTS, calling

both = pytest.mark.parametrize("dialect", DIALECTS)
ANSWER = {"text": "done"}
TOO_LONG = (
    [{"type": "input_text", "text": "x" * 10_485_761}],
    [{"type": "input_text", "text": "x" * 8_000_000}, {"type": "input_text", "text": "y" * 3_000_000}],
    [{"type": "input_file", "file_url": "https://x/" + "z" * 10_485_761}],
)


def tools(prefix: str, count: int) -> list[dict[str, Any]]:
    return [{"type": "function", "name": f"{prefix}_{number}"} for number in range(count)]


@both
async def test_patch_that_would_give_a_running_or_waiting_turn_too_many_tools_is_refused_and_both_turns_end(
    play: Any, dialect: Dialect
) -> None:
    """
    STRICT's bound of 128 holds for the sum, whenever a part of it changes.
    """
    agent = {"tools": tools("old", 10)}
    case = await play(dialect, calling("c1"), ANSWER, ANSWER, agent=agent)
    look = {"type": "function", "name": "look"}
    running = await case.send(tools=[*tools("run", 100), look])
    await case.waiting()
    queued = await case.send(tools=tools("wait", 100))

    error = await case.api.refused(
        "PATCH",
        case.path,
        json={"agent": {"tools": tools("new", 100), "instructions": "changed"}},
        status=400,
        code="invalid_tool",
        param="agent.tools",
    )

    assert f"{running['response_id']} brings 101, which makes 201" in error["message"]
    assert f"{queued['item_id']} brings 100, which makes 200" in error["message"]
    assert (await case.snapshot())["agent"]["instructions"] is None
    await case.result("c1")
    assert await case.rests() == "idle"
    requests = await case.requests()
    assert [request.status for request in requests] == [200] * 3
    assert [len(request.body["tools"]) for request in requests] == [111, 111, 110]
    assert (await case.api.ask("PATCH", case.path, json={"agent": {"tools": tools("new", 100)}})).status == 200


@both
@pytest.mark.parametrize("output", TOO_LONG, ids=["one", "two", "url"])
async def test_list_over_the_limit_of_an_output_is_refused_and_its_call_can_still_be_answered(
    play: Any, dialect: Dialect, output: Any
) -> None:
    """
    B066, of lists: STRICT 7 bounds the sum of their texts, and the one string that Chat Completions makes of them.
    """
    case = await play(dialect, calling("c1"), ANSWER, ANSWER)
    await case.send()
    await case.waiting()
    body = {"type": "function_call_output", "data": {"call_id": "c1", "output": output}}

    error = await case.refused(body, status=413, code="request_too_large", param="data.output")

    assert "10,000,000" in error["message"]
    await case.result("c1", [{"type": "input_text", "text": "x" * 10_000_000}], is_error=True)
    assert await case.rests() == "idle"
    assert [request.status for request in await case.requests()] == [200, 200]


@both
async def test_past_with_a_list_over_the_limit_of_an_output_begins_no_session(play: Any, dialect: Dialect) -> None:
    """
    B066, in ``items``.
    """
    case = await play(dialect)
    items = [
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": TOO_LONG[1]},
    ]
    await case.api.refused(
        "POST",
        "/v1/sessions",
        json={"items": items},
        status=413,
        code="request_too_large",
        param="items[1].output",
    )
