"""
An interrupt at every step of a turn: it ends once, leaves no open call, and the next message completes.
"""

import asyncio
from typing import Any

import pytest

from agent_harness.errors import Conflict, NotFound
from agent_harness.llm.base import ArgumentsDelta, ItemAdded, ItemDone, TextDelta
from agent_harness.llm.scripted import ScriptedModel, Step, call, say
from agent_harness.protocol import events as said
from tests.engine.rig import Rig, open_rig, ticks


class Steps:
    """
    A two-call turn that halts where an interrupt is to come.
    """

    def __init__(self, halt_at: str) -> None:
        self.gate, self.halt_at = asyncio.Event(), halt_at

    def halt(self, name: str) -> tuple[asyncio.Event, ...]:
        return (self.gate,) if name == self.halt_at else ()

    def model(self) -> ScriptedModel:
        first = Step(
            (
                *self.halt("before the first delta"),
                ItemAdded(0, "message"),
                TextDelta(0, "I will "),
                *self.halt("mid-text"),
                TextDelta(0, "push."),
                ItemDone(0),
                ItemAdded(1, "function_call", "c1", "look"),
                ArgumentsDelta(1, '{"a"'),
                *self.halt("mid-arguments"),
                ArgumentsDelta(1, ": 1}"),
                ItemDone(1),
                ItemAdded(2, "function_call", "c2", "find"),
                ItemDone(2, arguments="{}"),
                *self.halt("before the end of the answer"),
            )
        )
        second = Step(
            (
                *self.halt("during the second model call"),
                ItemAdded(0, "message"),
                TextDelta(0, "Done"),
                *self.halt("mid-text of the second answer"),
                ItemDone(0),
            )
        )
        return ScriptedModel([first, second])


MOMENTS = [
    "in the same tick",
    "before the first delta",
    "mid-text",
    "mid-arguments",
    "before the end of the answer",
    "both calls open",
    "one answered",
    "after the last result",
    "during the second model call",
    "mid-text of the second answer",
    "after completion",
]


async def reach(rig: Rig, moment: str) -> None:
    """
    Go on until *moment* of the turn has come.
    """
    if moment == "in the same tick":
        return
    if moment == "before the first delta":
        return await rig.asked()
    if moment == "mid-text":
        return await rig.until(lambda: rig.all(said.TextDelta))
    if moment == "mid-arguments":
        return await rig.until(lambda: rig.all(said.ArgumentsDelta))
    if moment == "before the end of the answer":
        return await rig.until(lambda: len(rig.all(said.ArgumentsDone)) == 2)
    await rig.waiting(2)
    if moment == "both calls open":
        return None
    rig.result("c1", "A")
    if moment == "one answered":
        return await ticks(5)
    rig.result("c2", "B")
    if moment == "after the last result":
        return None
    if moment == "during the second model call":
        await rig.asked(2)
        return await ticks(3)
    if moment == "mid-text of the second answer":
        return await rig.until(lambda: [event for event in rig.all(said.TextDelta) if event.delta == "Done"])
    await rig.finished()
    return None


def markers(items: list[Any]) -> list[str]:
    """
    The texts of the harness's own messages that tell of an interrupt.
    """
    own = [item for item in items if item["type"] == "message" and item["origin"] == "harness"]
    assert all(item["role"] == "user" for item in own)
    return [item["content"][0]["text"] for item in own if "interrupted" in item["content"][0]["text"]]


WAITING = ["nothing", "a queued message", "a steered message", "both"]


@pytest.mark.parametrize("clear_queue", [False, True])
@pytest.mark.parametrize("behind", WAITING)
@pytest.mark.parametrize("moment", MOMENTS)
async def test_an_interrupt_at_any_moment_ends_the_turn_once_and_the_next_message_completes(
    moment: str, behind: str, clear_queue: bool
) -> None:
    """
    B130, B001, B126, B128: whenever it comes, and whatever waits behind the turn.
    """
    async with open_rig(model=Steps(moment).model()) as rig:
        first = rig.send("first")
        await reach(rig, moment)
        runs = moment != "after completion"
        steered = rig.send("steered", delivery="steer") if runs and behind in ("a steered message", "both") else None
        queued = rig.send("queued") if runs and behind in ("a queued message", "both") else None
        waiting = [sent.item_id for sent in (steered, queued) if sent is not None]
        calls_before = len(rig.requests)
        rig.model.steps.clear()
        rig.model.steps.extend([say("one more"), say("one more")])

        answer = await rig.interrupt(clear_queue=clear_queue)

        assert answer.interrupted is runs
        assert answer.response_id == (first.response_id if runs else None)
        assert list(answer.dropped) == (waiting if clear_queue else [])
        assert rig.turn(first.response_id)["status"] == ("cancelled" if runs else "completed")
        assert rig.open == []
        if queued is not None:
            assert await rig.finished(queued.response_id) == ("cancelled" if clear_queue else "completed")
        await rig.settled()
        assert len(markers(rig.snapshot["items"])) == (1 if runs else 0)
        assert len(rig.requests) == calls_before + (queued is not None and not clear_queue)

        last = rig.send("and now?", tools=None)
        assert await rig.finished(last.response_id) == "completed"
        await rig.settled()
        texts = rig.sent()
        assert texts.count("user:first") == texts.count("user:and now?") == 1
        assert ("user:queued" in texts) == (queued is not None and not clear_queue)
        assert ("user:steered" in texts) == (steered is not None and not clear_queue)
        assert sum("interrupted" in text for text in texts if text.startswith("user:")) == (1 if runs else 0)


async def test_a_call_that_was_open_gets_one_output_that_tells_of_the_interrupt() -> None:
    """
    B001: request 2 holds the call, one output for it, then the new message; a third message works too.
    """
    async with open_rig([call("look", "{}", "c1"), say("fine"), say("still fine")]) as rig:
        rig.send("go")
        await rig.waiting()
        await rig.interrupt()
        rig.send("retry")
        assert await rig.settled() == "idle"
        go, asked, output, marker, retry = rig.sent(1)
        assert (go, asked, retry) == ("user:go", "call:c1", "user:retry")
        assert output.startswith("output:c1=Error: ")
        assert "interrupted" in output
        assert marker.startswith("user:")
        rig.send("third")
        assert await rig.settled() == "idle"
        assert rig.sent(2)[:5] == rig.sent(1)


@pytest.mark.parametrize("answered", [(), ("c1",), ("c2",)])
async def test_a_result_that_came_before_the_interrupt_is_kept(answered: tuple[str, ...]) -> None:
    """
    B002: only what was unanswered is answered by the harness, and the order stays the calls' own.
    """
    async with open_rig([call("look", "{}", "c1") + call("find", "{}", "c2"), say("fine")]) as rig:
        rig.send("go")
        await rig.waiting(2)
        for call_id in answered:
            rig.result(call_id, "kept")
        await rig.interrupt()
        rig.send("on")
        await rig.settled()
        sent = rig.sent(1)
        assert sent[1:3] == ["call:c1", "call:c2"]
        assert [text.partition("=")[0] for text in sent[3:5]] == ["output:c1", "output:c2"]
        for call_id, text in zip(("c1", "c2"), sent[3:5], strict=True):
            assert (text == f"output:{call_id}=kept") if call_id in answered else ("interrupted" in text)


async def test_the_marker_is_read_by_the_model_and_is_no_words_of_the_assistant() -> None:
    """
    B013: the next turn knows that the one before it was interrupted, text and call included.
    """
    async with open_rig([say("I will push…") + call("look", "{}", "c1"), say("else")]) as rig:
        rig.send("push it")
        await rig.waiting()
        await rig.interrupt()
        rig.send("do something else")
        await rig.settled()
        sent = rig.sent(1)
        assert sent[:3] == ["user:push it", "assistant:I will push…", "call:c1"]
        assert not any("interrupted" in text for text in sent if text.startswith("assistant:"))
        assert len([text for text in sent if text.startswith("user:") and "interrupted" in text]) == 1


async def test_partial_text_stays_and_half_written_calls_vanish() -> None:
    """
    B130: what the model had said stays as an incomplete message; a call that was never announced is sent nowhere.
    """
    steps = Steps("mid-arguments")
    async with open_rig(model=steps.model()) as rig:
        rig.send("go")
        await reach(rig, "mid-arguments")
        await rig.interrupt()
        by_type = {item["type"]: item for item in rig.snapshot["items"] if item["type"] == "function_call"}
        assert by_type["function_call"]["status"] == "incomplete"
        said_so_far = [item for item in rig.snapshot["items"] if item.get("origin") == "model"]
        assert [item["status"] for item in said_so_far] == ["incomplete"]
        rig.model.steps = type(rig.model.steps)([say("fine")])
        rig.send("on")
        await rig.settled()
        assert rig.sent()[:2] == ["user:go", "assistant:I will push."]
        assert not any(text.startswith(("call:", "output:")) for text in rig.sent())
        with pytest.raises(NotFound) as refused:
            rig.result("c1")
        assert refused.value.code == "unknown_call"


async def test_a_result_after_the_interrupt_is_told_so() -> None:
    """
    B129: `call_closed` by the interrupt; nothing changes.
    """
    async with open_rig([call("look", "{}", "c1")]) as rig:
        rig.send()
        await rig.waiting()
        await rig.interrupt()
        seq = rig.session.feed.seq
        with pytest.raises(Conflict) as refused:
            rig.result("c1")
        assert (refused.value.code, refused.value.extra["closed_by"]) == ("call_closed", "interrupt")
        assert rig.session.feed.seq == seq
        await rig.settled()


async def test_a_message_and_an_interrupt_in_one_tick_leave_at_most_one_model_call() -> None:
    """
    B126: the interrupt belongs to the turn that runs, not to a flag that the next one clears.
    """
    async with open_rig([say("never"), say("after")]) as rig:
        sent = rig.send("go")
        assert (await rig.interrupt()).response_id == sent.response_id
        assert len(rig.requests) <= 1
        await rig.settled()
        assert rig.turn(sent.response_id)["status"] == "cancelled"


async def test_queued_messages_run_next_in_order_unless_they_are_dropped_by_name() -> None:
    """
    B128: stop drops nothing; with clear_queue the answer and the events list what was dropped.
    """
    async with open_rig([call("look", "{}", "c1"), say("two"), say("three")]) as rig:
        rig.send("one")
        two, three = rig.send("two"), rig.send("three")
        await rig.waiting()
        assert (await rig.interrupt()).dropped == ()
        assert await rig.settled() == "idle"
        assert [rig.turn(sent.response_id)["status"] for sent in (two, three)] == ["completed", "completed"]
        assert rig.sent(2).index("user:two") < rig.sent(2).index("user:three")

    async with open_rig([call("look", "{}", "c1"), say("never")]) as rig:
        one = rig.send("one")
        await rig.waiting()
        two, three = rig.send("two"), rig.send("three", delivery="steer")
        answer = await rig.interrupt(clear_queue=True)
        assert answer.dropped == (two.item_id, three.item_id)
        gone = [event.item for event in rig.all(said.SessionItem) if event.item.status == "cancelled"]
        assert [item.id for item in gone] == [two.item_id, three.item_id]
        assert rig.turn(two.response_id)["status"] == "cancelled"
        ends = [event.response.id for event in rig.all(said.ResponseCancelled)]
        assert ends == [two.response_id, one.response_id], "what waited is dropped before the running turn ends"
        assert not {two.item_id, three.item_id} & {item["id"] for item in rig.snapshot["items"]}
        await rig.settled()
        assert len(rig.requests) == 1


async def test_an_interrupt_without_a_turn_or_for_another_turn_does_no_harm() -> None:
    """
    B129: twice, idle, and by the id of a turn that is over or only queued.
    """
    async with open_rig([call("look", "{}", "c1"), say("done")]) as rig:
        assert (await rig.interrupt()).interrupted is False
        assert (await rig.interrupt(clear_queue=True)).interrupted is False
        assert rig.session.feed.seq == 0
        running = rig.send("one")
        queued = rig.send("two")
        await rig.waiting()
        for response_id in (queued.response_id, "resp_unknown"):
            answer = await rig.interrupt(response_id=response_id, clear_queue=True)
            assert (answer.interrupted, answer.dropped) == (False, ())
        assert rig.open == ["c1"]
        assert (await rig.interrupt(response_id=running.response_id)).interrupted is True
        assert await rig.settled() == "idle"
        assert (await rig.interrupt()).interrupted is False
        assert await rig.settled() == "idle"


async def test_two_interrupts_in_one_tick_end_one_turn() -> None:
    """
    B129: both are answered, one of them took effect.
    """
    async with open_rig([call("look", "{}", "c1"), say("next")]) as rig:
        rig.send("one")
        await rig.waiting()
        answers = await asyncio.gather(rig.interrupt(), rig.interrupt())
        assert sorted(answer.interrupted for answer in answers) == [False, True]
        await rig.settled()
        rig.send("two")
        assert await rig.settled() == "idle"


async def test_an_interrupt_ends_after_its_items_with_one_terminal_event_and_one_status() -> None:
    """
    Rule 7, and the answer comes after the turn has ended: `seq` lets a client read what it caused.
    """
    async with open_rig([call("look", "{}", "c1")]) as rig:
        rig.send()
        await rig.waiting()
        answer = await rig.interrupt()
        assert answer.seq < rig.session.feed.seq
        told = [type(published.event) for published in rig.log if published.seq > answer.seq]
        assert told == [
            said.OutputItemDone,
            said.OutputItemDone,
            said.SessionItem,
            said.ResponseCancelled,
            said.SessionStatus,
        ]
        await rig.settled()
