"""
The loop of a turn: its bound, the order of what is sent, and what is in force when.
"""

from typing import Any

import orjson
import pytest

from agent_harness.errors import Conflict, InvalidRequest, NotFound, RateLimited
from agent_harness.llm.base import Ended, ItemAdded, ItemDone, TextDelta
from agent_harness.llm.scripted import Step, call, say, think
from agent_harness.protocol import events as said
from agent_harness.protocol.items import FunctionCall, Usage
from agent_harness.protocol.tools import NamedChoice
from tests.engine.rig import TOOLS, Rig, open_rig

BROKEN = ['{"value": ', '"text"', '{"a":NaN}', '{"a":Infinity}', '{"a":1e999}', "{'a': 1}", '{"a" 1}', '"[1]"']
CALL_TYPES = ("function_call", "function_call_output")


def calls(rig: Rig, number: int = -1) -> list[FunctionCall]:
    """
    The calls in one request.
    """
    return [item for block in rig.requests[number].blocks for item in block.items if isinstance(item, FunctionCall)]


def outputs(rig: Rig, number: int = -1) -> list[str]:
    """
    The outputs in one request, as the model reads them.
    """
    return [text.partition("=")[2] for text in rig.sent(number) if text.startswith("output:")]


def items(rig: Rig, *types: str) -> list[Any]:
    """
    The snapshot's items of the types given.
    """
    return [item for item in rig.snapshot["items"] if item["type"] in types]


# The bound.


@pytest.mark.parametrize("bound", [1, 3])
async def test_a_turn_ends_at_its_bound_without_announcing_the_last_calls_and_the_next_message_works(
    bound: int,
) -> None:
    """
    B150: `response.incomplete` with `max_model_calls`; the session is not failed.
    """
    steps = [say("hm") + call("look", "{}", f"c{number}") for number in range(bound)]
    async with open_rig([*steps, say("new turn")], agent={"max_model_calls": bound}) as rig:
        sent = rig.send()
        for number in range(bound - 1):
            await rig.until(lambda number=number: rig.open == [f"c{number}"])
            rig.result(f"c{number}")
        assert await rig.settled() == "idle"
        record = rig.turn(sent.response_id)
        assert (record["status"], record["incomplete_details"]) == ("incomplete", {"reason": "max_model_calls"})
        assert len(rig.requests) == bound
        last = items(rig, "function_call")[-1]
        assert (last["call_id"], last["status"]) == (f"c{bound - 1}", "incomplete")
        with pytest.raises(NotFound):
            rig.result(f"c{bound - 1}")
        rig.send("more", tools=None)
        assert await rig.settled() == "idle"
        assert len(calls(rig)) == bound - 1
        assert rig.sent()[-2:] == ["assistant:hm", "user:more"]


async def test_a_default_bound_ends_a_turn_that_repeats_itself_without_end() -> None:
    """
    B151: 50 model calls, none configured.
    """

    class Same:
        default_model = "same"

        def __init__(self) -> None:
            self.requests: list[Any] = []

        async def stream(self, request: Any) -> Any:
            self.requests.append(request)
            for part in call("nowhere", '{"a": 1}').parts:
                yield part
            yield Ended()

    async with open_rig(model=Same()) as rig:
        sent = rig.send()
        assert await rig.settled() == "idle"
        assert len(rig.requests) == 50
        assert rig.turn(sent.response_id)["incomplete_details"] == {"reason": "max_model_calls"}


async def test_a_text_at_the_bound_completes_the_turn() -> None:
    """
    B150: the bound is on model calls, not on answers.
    """
    async with open_rig([say("done")], agent={"max_model_calls": 1}) as rig:
        sent = rig.send()
        await rig.settled()
        assert rig.turn(sent.response_id)["status"] == "completed"


async def test_a_steered_message_at_the_bound_enters_before_the_end_and_starts_no_call() -> None:
    """
    B150: it has no call left to enter before; the next turn reads it.
    """
    async with open_rig([say("one"), say("two")], agent={"max_model_calls": 1}) as rig:
        first = rig.send("first")
        await rig.until(lambda: rig.all(said.TextDelta))
        steered = rig.send("steered", delivery="steer")
        await rig.settled()
        assert rig.turn(first.response_id)["status"] == "incomplete"
        assert len(rig.requests) == 1
        assert [item["id"] for item in rig.snapshot["items"]].count(steered.item_id) == 1
        rig.send("second")
        await rig.settled()
        assert rig.sent() == ["user:first", "assistant:one", "user:steered", "user:second"]


# Order.


async def test_outputs_are_sent_in_call_order_in_every_request() -> None:
    """
    B023, B006, B005: whatever order they came in; each item once; the past is never rewritten.
    """
    three = call("look", "{}", "c1") + call("find", "{}", "c2") + call("look", "{}", "c3")
    async with open_rig([three, call("look", "{}", "c4"), say("done"), say("later")]) as rig:
        rig.send("go")
        await rig.waiting(3)
        for call_id in ("c3", "c1", "c2"):
            rig.result(call_id, call_id.upper())
        await rig.until(lambda: rig.open == ["c4"])
        rig.result("c4", "C4")
        await rig.settled()
        rig.send("5*33?", tools=None)
        await rig.settled()
        first = ["user:go", "call:c1", "call:c2", "call:c3", "output:c1=C1", "output:c2=C2", "output:c3=C3"]
        assert rig.sent(1) == first
        assert rig.sent(2) == [*first, "call:c4", "output:c4=C4"]
        assert rig.sent(3) == [*first, "call:c4", "output:c4=C4", "assistant:done", "user:5*33?"]
        assert rig.requests[3].tools == ()


async def test_the_model_is_called_when_the_last_open_call_is_closed_and_not_before() -> None:
    """
    B020, B021, B027, B029, B030: a result is told at once, nothing is filled in, an error cancels no sibling.
    """
    three = call("look", "{}", "c1") + call("find", "{}", "c2") + call("look", "{}", "c3")
    async with open_rig([three, say("done")]) as rig:
        rig.send()
        await rig.waiting(3)
        seq = rig.result("c3", "three").seq
        assert [published.event.item.call_id for published in rig.log if published.seq > seq] == ["c3", "c3"]
        rig.batch({"call_id": "c1", "output": "boom", "is_error": True})
        for _ in range(5):
            await rig.until(lambda: True)
        assert (rig.open, len(rig.requests)) == (["c2"], 1)
        rig.result("c2", "")
        await rig.settled()
        assert len(rig.requests) == 2
        assert outputs(rig) == ["Error: boom", "", "three"]
        statuses = {item["call_id"]: item["status"] for item in items(rig, "function_call")}
        assert statuses == {"c1": "failed", "c2": "completed", "c3": "completed"}


async def test_a_message_never_comes_between_a_call_and_its_output() -> None:
    """
    B132, B144, B123: it waits for its turn and says for which calls; the result is found by id.
    """
    async with open_rig([call("look", "{}", "c1"), say("done"), say("joke")]) as rig:
        rig.send("go")
        await rig.waiting()
        sent = rig.send("joke?")
        assert sent.queued
        assert [action.call_id for action in sent.waiting_for] == ["c1"]
        rig.result("c1", "R")
        await rig.settled()
        assert rig.sent(1) == ["user:go", "call:c1", "output:c1=R"]
        assert rig.sent(2) == [*rig.sent(1), "assistant:done", "user:joke?"]


async def test_queued_messages_run_in_the_order_they_came() -> None:
    """
    B131, B135, B134: each its own turn, reading the whole of the turns before.
    """
    async with open_rig([say(text) for text in "abc"]) as rig:
        sent = [rig.send(text) for text in "ABC"]
        assert [answer.queued for answer in sent] == [False, True, True]
        assert rig.snapshot["queued"] == [answer.item_id for answer in sent[1:]]
        await rig.settled()
        assert rig.sent(2) == ["user:A", "assistant:a", "user:B", "assistant:b", "user:C"]
        assert len({answer.response_id for answer in sent}) == 3


async def test_steered_messages_enter_in_order_after_all_outputs_of_the_running_turn() -> None:
    """
    B135, B132, B145: and before what is queued, whichever came first.
    """
    async with open_rig([call("look", "{}", "c1"), say("done"), say("next")]) as rig:
        first = rig.send("go")
        await rig.waiting()
        queued = rig.send("queued")
        steered = [rig.send(text, delivery="steer") for text in ("s1", "s2")]
        assert [answer.response_id for answer in steered] == [first.response_id] * 2
        assert rig.snapshot["queued"] == [queued.item_id, *[answer.item_id for answer in steered]]
        rig.result("c1", "R")
        await rig.settled()
        assert rig.sent(1) == ["user:go", "call:c1", "output:c1=R", "user:s1", "user:s2"]
        assert rig.sent(2) == [*rig.sent(1), "assistant:done", "user:queued"]
        assert len(rig.all(said.ResponseCompleted)) == 2


async def test_a_turn_that_would_stop_makes_one_more_call_for_a_steered_message() -> None:
    """
    B135: it came while the last answer was written.
    """
    async with open_rig([say("a"), say("b")]) as rig:
        sent = rig.send("go")
        await rig.until(lambda: rig.all(said.TextDelta))
        rig.send("wait", delivery="steer")
        await rig.settled()
        assert rig.sent(1) == ["user:go", "assistant:a", "user:wait"]
        assert [event.response.id for event in rig.all(said.ResponseCompleted)] == [sent.response_id]


async def test_a_steered_message_with_no_turn_running_starts_one_and_reject_refuses_while_one_runs() -> None:
    """
    B131: `reject` is a conflict whenever a turn runs, waits or is queued.
    """
    async with open_rig([call("look", "{}", "c1"), say("b"), say("c")]) as rig:
        assert rig.send("go", delivery="steer").queued is False
        for _ in range(2):
            seq = rig.session.feed.seq
            with pytest.raises(Conflict) as refused:
                rig.send("no", delivery="reject")
            assert (refused.value.code, rig.session.feed.seq) == ("turn_in_progress", seq)
            await rig.waiting()
        rig.result("c1")
        await rig.settled()
        assert rig.send("yes", delivery="reject").queued is False
        await rig.settled()


async def test_a_full_queue_refuses_and_changes_nothing() -> None:
    """
    B131: steered and queued messages count alike.
    """
    async with open_rig([call("look", "{}", "c1")], queued_messages=2) as rig:
        rig.send()
        await rig.waiting()
        rig.send("a"), rig.send("b", delivery="steer")
        seq = rig.session.feed.seq
        for delivery in ("queue", "steer"):
            with pytest.raises(RateLimited) as refused:
                rig.send("c", delivery=delivery)
            assert (refused.value.code, rig.session.feed.seq) == ("queue_full", seq)
        await rig.interrupt(clear_queue=True)
        await rig.settled()


# What is offered and asked for.


async def test_a_forced_tool_choice_holds_for_the_first_model_call_of_its_turn() -> None:
    """
    B151's kind: a choice that forced every call would never end. `none` holds throughout.
    """
    async with open_rig([call("look", "{}", "c1"), say("a"), say("b"), say("c")]) as rig:
        rig.send(tool_choice={"type": "function", "name": "look"})
        await rig.waiting()
        rig.result("c1")
        await rig.settled()
        rig.send(tool_choice="none")
        await rig.settled()
        rig.send(tool_choice="required")
        await rig.settled()
        first, second, third, fourth = (request.tool_choice for request in rig.requests)
        assert first == NamedChoice("look")
        assert second in ("auto", None)
        assert (third, fourth) == ("none", "required")


async def test_a_choice_of_what_is_not_offered_is_refused() -> None:
    async with open_rig([]) as rig:
        for choice, tools in (({"type": "function", "name": "other"}, None), ("required", [])):
            with pytest.raises(InvalidRequest) as refused:
                rig.send(tool_choice=choice, tools=tools)
            assert refused.value.param == "tool_choice"
        assert rig.session.feed.seq == 0


async def test_the_messages_tools_win_on_a_name_and_hold_for_its_turn_only() -> None:
    """
    B145's kind: the agent's tools are there in each turn, the message's in its own.
    """
    mine = {"type": "function", "name": "look", "description": "the agent's"}
    theirs = {"type": "function", "name": "look", "description": "the message's"}
    other = {"type": "function", "name": "find"}
    async with open_rig([say("a"), say("b")], agent={"tools": [mine]}) as rig:
        rig.send(tools=[theirs, other])
        rig.send(tools=None)
        await rig.settled()
        offered = [[(tool.name, tool.description) for tool in request.tools] for request in rig.requests]
        assert sorted(offered[0], key=str) == [("find", None), ("look", "the message's")]
        assert offered[1] == [("look", "the agent's")]


async def test_steered_tools_replace_the_turns_from_the_next_model_call_on() -> None:
    async with open_rig([call("look", "{}", "c1"), call("look", "{}", "c2"), say("c")]) as rig:
        rig.send()
        await rig.waiting()
        rig.send("only find", delivery="steer", tools=[{"type": "function", "name": "find"}])
        rig.result("c1", "still answerable")
        await rig.settled()
        offered = [[tool.name for tool in request.tools] for request in rig.requests]
        assert offered == [["look", "find"], ["find"], ["find"]]
        assert outputs(rig)[0] == "still answerable"
        assert "find" in outputs(rig)[1]


async def test_usage_is_the_sum_over_the_turns_model_calls_and_the_sessions_over_its_turns() -> None:
    """
    What was not reported is null, not 0.
    """
    some = Usage(input_tokens=10, output_tokens=2, total_tokens=12, cached_tokens=5)
    more = Usage(input_tokens=20, output_tokens=3, total_tokens=23)
    steps = [
        Step((*call("nope", "{}", "c1").parts, Ended(usage=some))),
        Step((*say("a").parts, Ended(usage=more))),
        Step((*say("b").parts, Ended(usage=some))),
    ]
    async with open_rig(steps) as rig:
        first, second = rig.send(), rig.send()
        await rig.settled()
        usage = rig.turn(first.response_id)["usage"]
        assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (30, 5, 35)
        assert usage["input_tokens_details"] == {"cached_tokens": 5}
        assert usage["output_tokens_details"] == {"reasoning_tokens": None}
        assert rig.turn(second.response_id)["usage"]["total_tokens"] == 12
        assert rig.snapshot["usage"]["total_tokens"] == 47


async def test_an_answer_without_items_ends_its_turn() -> None:
    """
    design.md, step: an answer that ends without a call, without items too, ends the turn.
    """
    empty = Step((Ended(),))
    silent = Step((ItemAdded(0, "message"), TextDelta(0, ""), ItemDone(0)))
    async with open_rig([empty, silent, think("hm"), say("at last")]) as rig:
        for _ in range(4):
            sent = rig.send()
            await rig.settled()
            assert rig.turn(sent.response_id)["status"] == "completed"
        assert rig.sent() == ["user:hello"] * 4


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "look"}])
async def test_a_steered_choice_is_judged_by_what_its_turn_offers(choice: Any) -> None:
    """
    wire.md, steer: without `tools` the turn's stay; with `tools` those are what there is.
    """
    async with open_rig([call("look", "{}", "c1"), say("done")]) as rig:
        rig.send()
        await rig.waiting()
        with pytest.raises(InvalidRequest):
            rig.send("other", delivery="steer", tools=[], tool_choice=choice)
        assert rig.send("steered", delivery="steer", tools=None, tool_choice=choice).queued
        rig.result("c1")
        await rig.settled()
        assert rig.sent()[-1] == "user:steered"


@pytest.mark.parametrize("tools", [None, [], [{"type": "function", "name": "find"}]])
@pytest.mark.parametrize("choice", [None, "none"])
async def test_the_preview_is_the_body_that_the_next_model_call_has(tools: Any, choice: Any) -> None:
    """
    wire.md, GET request: what a waiting steered message brings is in it.
    """
    async with open_rig([say("a") + call("look", "{}", "c1"), say("done")]) as rig:
        rig.send()
        await rig.waiting()
        for number, given in enumerate((TOOLS[:1], tools)):
            rig.send(f"s{number}", delivery="steer", tools=given, tool_choice=choice)
        rig.result("c1", "R")
        preview = rig.session.preview_body()
        await rig.settled()
        assert rig.model.body(rig.requests[-1]) == preview


async def test_the_preview_at_rest_offers_what_a_message_without_tools_would_be_offered() -> None:
    """
    wire.md: a message's tools hold for the turn it starts, and only for it.
    """
    agent = {"tools": [{"type": "function", "name": "mine"}], "tool_choice": "none"}
    async with open_rig([say("a"), say("b")], agent=agent) as rig:
        for tools, choice in ((TOOLS, "auto"), (None, None)):
            rig.send(tools=tools, tool_choice=choice)
            await rig.settled()
            seq = rig.session.feed.seq
            preview = orjson.loads(rig.session.preview_body())
            assert (preview["tools"], rig.session.feed.seq) == (["mine"], seq)
        assert [len(request.tools) for request in rig.requests] == [3, 1]
        assert [request.tool_choice for request in rig.requests] == ["auto", "none"]
