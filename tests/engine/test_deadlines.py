"""
Deadlines of calls: whichever is kept first, the result or the deadline, stands.
"""

import time

import pytest

from agent_harness.errors import Conflict
from agent_harness.llm.scripted import call, say
from agent_harness.protocol import events as said
from tests.engine.rig import Rig, open_rig, ticks

LOOK = {"type": "function", "name": "look"}
FIND = {"type": "function", "name": "find"}
SHORT = 0.02
LONGER = 1.0  # for a call that is answered before, on a busy machine too


def output_of(rig: Rig, call_id: str) -> str:
    """
    What the model read as the output of a call, in its last request.
    """
    found = [text for text in rig.sent() if text.startswith(f"output:{call_id}=")]
    assert len(found) == 1
    return found[0].partition("=")[2]


def late(rig: Rig, call_id: str) -> Conflict:
    """
    The refusal that a result gets which came too late.
    """
    with pytest.raises(Conflict) as refused:
        rig.result(call_id, "late")
    assert refused.value.code == "call_closed"
    return refused.value


@pytest.mark.parametrize("where", ["flat tool", "nested tool", "agent's tool", "agent"])
async def test_a_call_that_nobody_answers_is_closed_and_the_turn_goes_on(where: str) -> None:
    """
    B142: after the deadline a synthetic output, the next model call, and nothing left in maps.
    """
    nested = {"type": "function", "function": {"name": "look"}, "timeout_s": SHORT}
    tools = {"flat tool": [{**LOOK, "timeout_s": SHORT}], "nested tool": [nested], "agent": [LOOK]}.get(where)
    agent = {"agent": {"tool_timeout_s": SHORT}, "agent's tool": {"tools": [{**LOOK, "timeout_s": SHORT}]}}.get(where)
    async with open_rig([call("look", "{}", "c1"), say("go on")], agent=agent) as rig:
        rig.send(tools=tools)
        await rig.announced()
        assert await rig.settled() == "idle"
        text = output_of(rig, "c1")
        assert text.startswith("Error: ")
        assert "timed out" in text
        closed = [item for item in rig.snapshot["items"] if item["type"].startswith("function_call")]
        assert [item["status"] for item in closed] == ["incomplete", "completed"]
        assert (closed[1]["origin"], closed[1]["is_error"]) == ("harness", True)
        assert late(rig, "c1").extra["closed_by"] == "deadline"
        assert len(rig.requests) == 2


async def test_the_deadline_is_told_with_the_open_call_and_counts_from_its_announcement() -> None:
    """
    B142: `expires_at` in snapshots and statuses is what the tool says, else what the agent says, else null.
    """
    tools = [{**LOOK, "timeout_s": 100}, FIND]
    async with open_rig([call("look", "{}", "c1") + call("find", "{}", "c2")], agent={"tool_timeout_s": 200}) as rig:
        before = time.time()
        rig.send(tools=tools)
        await rig.waiting(2)
        first, second = rig.snapshot["required_actions"]
        assert before + 100 <= first["expires_at"] + 0.001 <= time.time() + 100.002
        assert before + 200 <= second["expires_at"] + 0.001 <= time.time() + 200.002
        told = rig.all(said.SessionStatus)[-1].required_actions
        assert [action.expires_at for action in told] == [first["expires_at"], second["expires_at"]]
        await rig.interrupt()
        await rig.settled()


async def test_no_deadline_where_the_agent_has_none() -> None:
    """
    B142: `tool_timeout_s: null` means that a call waits as long as it takes; a tool's own timeout still holds.
    """
    tools = [LOOK, {**FIND, "timeout_s": SHORT}]
    steps = [call("look", "{}", "c1") + call("find", "{}", "c2"), say("done")]
    async with open_rig(steps, agent={"tool_timeout_s": None}) as rig:
        rig.send(tools=tools)
        await rig.announced(2)
        await rig.until(lambda: rig.open == ["c1"])
        assert rig.snapshot["required_actions"][0]["expires_at"] is None
        assert rig.snapshot["status"] == "waiting"
        rig.result("c1", "at last")
        assert await rig.settled() == "idle"
        assert output_of(rig, "c1") == "at last"


@pytest.mark.parametrize("short", ["look", "find"])
async def test_the_deadline_of_one_call_leaves_its_sibling_open(short: str) -> None:
    """
    B142, B020: one call of two times out; the model is asked when the other is answered, once, outputs in call order.
    """
    tools = [{**tool, "timeout_s": SHORT} if tool["name"] == short else tool for tool in (LOOK, FIND)]
    expired, other = ("c1", "c2") if short == "look" else ("c2", "c1")
    async with open_rig([call("look", "{}", "c1") + call("find", "{}", "c2"), say("done")]) as rig:
        rig.send(tools=tools)
        await rig.announced(2)
        await rig.until(lambda: rig.open == [other])
        assert len(rig.requests) == 1
        assert late(rig, expired).extra["closed_by"] == "deadline"
        rig.result(other, "in time")
        assert await rig.settled() == "idle"
        assert output_of(rig, other) == "in time"
        assert "timed out" in output_of(rig, expired)
        outputs = [text.partition("=")[0] for text in rig.sent(1) if text.startswith("output:")]
        assert outputs == ["output:c1", "output:c2"]


async def test_different_deadlines_fire_each_in_its_time() -> None:
    """
    B142: the later deadline is not forgotten when the earlier one has passed, nor when an earlier call was answered.
    """
    tools = [{"type": "function", "name": name, "timeout_s": after} for name, after in (("a", LONGER), ("b", SHORT))]
    steps = [call("a", "{}", "c1") + call("b", "{}", "c2") + call("a", "{}", "c3"), say("done")]
    async with open_rig(steps) as rig:
        rig.send(tools=tools)
        await rig.announced(3)
        rig.result("c1", "quick")
        await rig.until(lambda: "c2" not in rig.open)
        assert await rig.settled() == "idle"
        assert output_of(rig, "c1") == "quick"
        assert "timed out" in output_of(rig, "c2")
        assert "timed out" in output_of(rig, "c3")


async def test_deadlines_that_pass_together_close_in_call_order_with_one_status() -> None:
    """
    B142: all that are late are closed, then the session runs on.
    """
    steps = [call("look", "{}", "c1") + call("find", "{}", "c2") + call("look", "{}", "c3"), say("done")]
    async with open_rig(steps, agent={"tool_timeout_s": SHORT}) as rig:
        rig.send()
        await rig.announced(3)
        assert await rig.settled() == "idle"
        statuses = [event.status for event in rig.all(said.SessionStatus)]
        assert statuses == ["running", "waiting", "running", "idle"]
        closed = [text.partition("=")[0] for text in rig.sent(1) if text.startswith("output:")]
        assert closed == ["output:c1", "output:c2", "output:c3"]


async def test_a_result_that_is_kept_before_the_deadline_stands() -> None:
    """
    B142, B141: the deadline passes later and changes nothing; the call is answered once.
    """
    tools = [{**LOOK, "timeout_s": LONGER}, FIND]
    async with open_rig([call("look", "{}", "c1") + call("find", "{}", "c2"), say("done")]) as rig:
        rig.send(tools=tools)
        await rig.waiting(2)
        expires_at = rig.snapshot["required_actions"][0]["expires_at"]
        rig.result("c1", "first")
        time.sleep(max(0.0, expires_at - time.time()) + SHORT)  # noqa: ASYNC251 - the deadline passes
        await ticks(5)
        assert rig.result("c1", "first").duplicate is True
        with pytest.raises(Conflict) as refused:
            rig.result("c1", "second")
        assert refused.value.code == "call_already_answered"
        rig.result("c2", "second")
        assert await rig.settled() == "idle"
        assert output_of(rig, "c1") == "first"


async def test_a_result_that_is_kept_before_a_passed_deadline_was_noticed_wins() -> None:
    """
    B142: whatever is kept first wins, and the clock alone keeps nothing.
    """
    tools = [{**LOOK, "timeout_s": LONGER}]
    async with open_rig([call("look", "{}", "c1"), say("done")]) as rig:
        rig.send(tools=tools)
        await rig.waiting()
        time.sleep(LONGER + SHORT)  # noqa: ASYNC251 - the deadline passes while nothing else can run
        assert rig.result("c1", "just so").duplicate is False
        assert await rig.settled() == "idle"
        assert output_of(rig, "c1") == "just so"


async def test_an_interrupt_before_the_deadline_closes_the_call_for_good() -> None:
    """
    B142: the deadline of a call that the interrupt closed does nothing, not even in the turn after.
    """
    tools = [{**LOOK, "timeout_s": LONGER}]
    async with open_rig([call("look", "{}", "c1"), call("look", "{}", "c2"), say("done")]) as rig:
        rig.send(tools=tools)
        await rig.waiting()
        await rig.interrupt()
        rig.send(tools=[LOOK])
        assert await rig.waiting() == ["c2"]
        time.sleep(LONGER + SHORT)  # noqa: ASYNC251 - the first call's deadline passes
        rig.result("c2", "ok")
        assert await rig.settled() == "idle"
        assert late(rig, "c1").extra["closed_by"] == "interrupt"


async def test_a_deadline_of_the_agent_changed_while_the_model_answers_is_in_force_from_the_next_model_call() -> None:
    """
    wire.md, PATCH: in force from the next model call; calls already made keep what they had.
    """
    steps = [call("look", "{}", "c1"), call("look", "{}", "c2"), say("done")]
    async with open_rig(steps, agent={"tool_timeout_s": 500}) as rig:
        rig.send(tools=[LOOK])
        await rig.until(lambda: rig.all(said.OutputItemAdded))
        rig.update(tool_timeout_s=1000)
        await rig.waiting()
        assert rig.snapshot["required_actions"][0]["expires_at"] < time.time() + 600
        rig.result("c1")
        await rig.until(lambda: rig.open == ["c2"])
        assert rig.snapshot["required_actions"][0]["expires_at"] > time.time() + 900
        rig.result("c2")
        await rig.settled()
