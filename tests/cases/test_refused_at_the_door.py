"""
What a model server would refuse is refused when it is sent, or made to fit: no turn fails for it later.
"""

from typing import Any

import pytest

from agent_harness.testing.strict import Dialect
from tests.cases.rig import DIALECTS, calling

both = pytest.mark.parametrize("dialect", DIALECTS)
ANSWER = {"text": "done"}


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
