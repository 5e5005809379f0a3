"""
Races: results from another thread the instant a call is seen, repeats and conflicts, commands in one tick, the end in
the middle of everything.
"""

import asyncio
import random
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from agent_harness.errors import Conflict, NotFound, RequestError
from agent_harness.llm.base import Request
from agent_harness.llm.scripted import Step, call, say
from agent_harness.protocol import events as said
from agent_harness.protocol.items import FunctionCall, FunctionCallOutput
from tests.engine.laws import check_log, check_requests, check_rest
from tests.engine.rig import Rig, open_rig, ticks

TURNS = 500


class Answerer:
    """
    A client in a thread of its own: answers calls in random order, each by itself, the instant it hears of them.
    """

    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig, self.random = rig, random.Random(seed)
        self.loop = asyncio.get_running_loop()
        self.heard: SimpleQueue[list[str] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.refused: list[Exception] = []

    def run(self) -> None:
        while (call_ids := self.heard.get()) is not None:
            self.random.shuffle(call_ids)
            for call_id in call_ids:
                self.loop.call_soon_threadsafe(self.post, call_id)

    def post(self, call_id: str) -> None:
        try:
            self.rig.result(call_id, f"result of {call_id}")
        except RequestError as error:
            self.refused.append(error)

    async def follow(self) -> None:
        """
        Hand each announced call to the thread, one by one or several at once, as they are read.
        """
        follower = self.rig.session.follow()
        self.thread.start()
        try:
            while taken := await follower.take():
                events = [published.event for published in taken if isinstance(published.event, said.OutputItemDone)]
                calls = [event.item for event in events if event.item.status == "action_required"]
                ids = [item.call_id for item in calls if isinstance(item, FunctionCall)]
                if self.random.random() < 0.5:
                    self.heard.put(ids)
                else:
                    for call_id in ids:
                        self.heard.put([call_id])
        finally:
            self.heard.put(None)
            follower.close()


def calls_then_text(count: int, turns: int) -> Iterator[Step]:
    """
    The answers of *turns* turns: *count* calls, then a text.
    """
    for turn in range(turns):
        step = call("look", "{}", f"t{turn}-0")
        for number in range(1, count):
            step = step + call("find" if number % 2 else "look", "{}", f"t{turn}-{number}")
        yield step
        yield say(f"turn {turn}")


@pytest.mark.parametrize("count", [1, 2, 8])
async def test_500_turns_answered_from_another_thread_lose_nothing(count: int) -> None:
    """
    B138, B020, B023, B145: none lost, none stuck, one model call a round, outputs in call order.
    """
    async with open_rig(calls_then_text(count, TURNS)) as rig:
        client = Answerer(rig, seed=count)
        reader = asyncio.ensure_future(client.follow())
        await ticks(2)
        for turn in range(TURNS):
            sent = rig.send("go")
            assert await rig.finished(sent.response_id) == "completed"
            assert len(rig.requests) == 2 * (turn + 1)
            block = rig.requests[-1].blocks[-1]
            wanted = [f"t{turn}-{number}" for number in range(count)]
            assert [output.call_id for output in block.outputs] == wanted
            assert [output.output for output in block.outputs] == [f"result of {call_id}" for call_id in wanted]
        assert client.refused == []
        reader.cancel()
        await asyncio.wait([reader])
        client.thread.join(5)
        assert not client.thread.is_alive()
        await ticks(3)
        check_log(rig.log)
        check_rest(rig.session)
        check_requests(rig.requests[-4:])
        assert len(rig.all(said.ResponseCompleted)) == TURNS


async def test_a_result_in_the_very_step_in_which_the_call_is_seen_is_taken() -> None:
    """
    B138: rule 2, the future is there before anyone can hear of the call; nothing has to wait a tick.
    """
    async with open_rig([*calls_then_text(3, 1)]) as rig:
        rig.send()
        async with asyncio.timeout(5):
            while not rig.open:
                await ticks(1)
        for call_id in reversed(rig.open):
            rig.result(call_id)
        assert rig.snapshot["status"] == "running"
        assert await rig.settled() == "idle"
        assert len(rig.requests) == 2


async def test_repeats_and_conflicts_at_once_leave_the_first_result() -> None:
    """
    B141, B026: the same again is a duplicate without effect, a different one is refused, whenever they come.
    """
    async with open_rig([call("look", "{}", "c1") + call("find", "{}", "c2"), say("done")]) as rig:
        rig.send()
        await rig.waiting(2)
        loop = asyncio.get_running_loop()
        outcomes: list[Any] = []

        def post(output: str) -> None:
            try:
                outcomes.append(rig.result("c1", output).duplicate)
            except Conflict as error:
                outcomes.append(error.code)

        threads = [threading.Thread(target=loop.call_soon_threadsafe, args=(post, text)) for text in "AAB"]
        for thread in threads:
            thread.start()
        async with asyncio.timeout(5):
            while len(outcomes) < 3:
                await ticks(1)
        for thread in threads:
            thread.join()
        first = next(item for item in rig.snapshot["items"] if item["type"] == "function_call_output")["output"]
        expected = {"A": [False, True, "call_already_answered"], "B": [False, *["call_already_answered"] * 2]}[first]
        assert sorted(outcomes, key=str) == sorted(expected, key=str)
        assert rig.open == ["c2"]
        post(first)
        rig.result("c2", "two")
        post(first)
        await rig.settled()
        post(first)
        assert outcomes[-3:] == [True] * 3
        assert len([item for item in rig.snapshot["items"] if item["type"] == "function_call_output"]) == 2
        assert rig.sent(1)[3:] == [f"output:c1={first}", "output:c2=two"]


@pytest.mark.parametrize(
    "other", [{"output": "B"}, {"is_error": True}, {"output": [{"type": "input_text", "text": "A"}]}]
)
async def test_a_result_that_differs_in_anything_is_no_repeat(other: dict[str, Any]) -> None:
    """
    B141: the text, the error flag, the shape.
    """
    async with open_rig([call("look", "{}", "c1"), say("done")]) as rig:
        rig.send()
        await rig.waiting()
        first = rig.result("c1", "A")
        assert (first.accepted, first.duplicate) == (True, False)
        seq = rig.session.feed.seq
        again = rig.result("c1", "A")
        assert (again.duplicate, again.item_id) == (True, first.item_id)
        with pytest.raises(Conflict) as refused:
            rig.result("c1", **{"output": "A", **other})
        assert (refused.value.code, rig.session.feed.seq) == ("call_already_answered", seq)
        await rig.settled()


@pytest.mark.parametrize("output", ["boom", "", None])
async def test_a_result_that_is_an_error_answers_its_call_and_says_so_to_the_model(output: str | None) -> None:
    """
    B071, B072: also with nothing in it.
    """
    async with open_rig([call("look", "{}", "c1"), say("done")]) as rig:
        rig.send()
        await rig.waiting()
        rig.result("c1", output, is_error=True)
        assert await rig.settled() == "idle"
        assert rig.sent(1)[-1] == f"output:c1=Error: {output or ''}"
        assert [item["status"] for item in rig.snapshot["items"] if item["type"] == "function_call"] == ["failed"]


async def test_null_and_nul_are_judged_in_the_form_they_are_kept_in() -> None:
    """
    B072, B068, B141: null is the empty text, U+0000 is U+FFFD, and a repeat of either is a repeat.
    """
    async with open_rig([call("look", "{}", "c1") + call("find", "{}", "c2"), say("done")]) as rig:
        rig.send()
        await rig.waiting(2)
        rig.result("c1", None)
        rig.result("c2", "a\0b\x1b[31m\t\n")
        assert rig.result("c1", "").duplicate is True
        assert rig.result("c2", "a\0b\x1b[31m\t\n").duplicate is True
        assert rig.result("c2", "a\ufffdb\x1b[31m\t\n").duplicate is True
        await rig.settled()
        assert rig.sent()[3:] == ["output:c1=", "output:c2=a\ufffdb\x1b[31m\t\n"]


async def test_a_result_for_an_unknown_call_changes_nothing() -> None:
    """
    B140: before, while and after a call is open; not announced is unknown too.
    """
    async with open_rig([call("look", '{"a": 1}', "c1"), say("done")]) as rig:
        rig.send()
        await rig.until(lambda: rig.all(said.ArgumentsDelta))
        assert rig.open == []
        for call_id in ("c1", "nope"):
            with pytest.raises(NotFound) as refused:
                rig.result(call_id)
            assert (refused.value.code, refused.value.param) == ("unknown_call", "data.call_id")
        await rig.waiting()
        with pytest.raises(NotFound):
            rig.result("nope")
        assert rig.open == ["c1"]
        rig.result("c1")
        await rig.settled()
        with pytest.raises(NotFound):
            rig.result("nope")


async def test_a_batch_is_taken_whole_or_not_at_all() -> None:
    """
    B027, B141: one refusal refuses all; an equal repeat is none; a batch may answer some of the calls.
    """
    three = call("look", "{}", "c1") + call("find", "{}", "c2") + call("look", "{}", "c3")
    async with open_rig([three, say("done")]) as rig:
        rig.send()
        await rig.waiting(3)
        seq = rig.session.feed.seq
        with pytest.raises(NotFound) as refused:
            rig.batch({"call_id": "c1", "output": "A"}, {"call_id": "nope", "output": "B"})
        assert refused.value.param == "events[1].data.call_id"
        assert (rig.session.feed.seq, len(rig.open)) == (seq, 3)
        answers = rig.batch({"call_id": "c3", "output": "C"}, {"call_id": "c1", "output": "A"})
        assert [(answer.call_id, answer.duplicate) for answer in answers] == [("c3", False), ("c1", False)]
        assert (rig.open, len(rig.requests)) == (["c2"], 1)
        with pytest.raises(Conflict):
            rig.batch({"call_id": "c2", "output": "B"}, {"call_id": "c1", "output": "other"})
        assert rig.open == ["c2"]
        answers = rig.batch({"call_id": "c1", "output": "A"}, {"call_id": "c2", "output": "B"})
        assert [answer.duplicate for answer in answers] == [True, False]
        await rig.settled()
        assert rig.sent()[4:] == ["output:c1=A", "output:c2=B", "output:c3=C"]


async def test_messages_sent_together_run_one_after_the_other() -> None:
    """
    B131: each request holds the whole of the turns before it; no turn is lost.
    """
    async with open_rig([say(str(number), "…") for number in range(20)]) as rig:

        async def send(text: str) -> Any:
            return rig.send(text)

        sent = await asyncio.gather(*(send(f"m{number}") for number in range(20)))
        await rig.settled()
        assert [rig.turn(answer.response_id)["status"] for answer in sent] == ["completed"] * 20
        roles = [item["role"] for item in rig.snapshot["items"]]
        assert roles == ["user", "assistant"] * 20
        assert len(rig.sent()) == 39


async def test_a_result_and_an_interrupt_in_one_tick_are_kept_in_the_order_they_came() -> None:
    """
    B130, B142: whatever is kept first wins.
    """
    async with open_rig([call("look", "{}", "c1"), call("look", "{}", "c2"), say("done")]) as rig:
        first = rig.send()
        await rig.waiting()
        rig.result("c1", "kept")
        await rig.interrupt()
        second = rig.send()
        await rig.until(lambda: rig.open)
        interrupt = rig.interrupt()
        task = asyncio.ensure_future(interrupt)
        await ticks(1)
        with pytest.raises(Conflict) as refused:
            rig.result(rig.session.transcript.call_item("c2").call_id)
        assert refused.value.extra["closed_by"] == "interrupt"
        await task
        for sent in (first, second):
            assert rig.turn(sent.response_id)["status"] == "cancelled"
        rig.send()
        await rig.settled()
        assert "output:c1=kept" in rig.sent()
        assert len([text for text in rig.sent() if text.startswith("output:c2=Error: ")]) == 1


async def test_many_messages_and_interrupts_in_random_order_leave_a_session_that_works() -> None:
    """
    B126, B130: 200 seeded commands, a few ticks apart.
    """
    chance = random.Random(7)

    def step(request: Request) -> Step:
        return chance.choice([say("a", "b"), call("look", "{}"), call("look", "{}") + call("find", "{}"), say("x")])

    async with open_rig([step] * 2_000) as rig:
        for number in range(200):
            await ticks(chance.randrange(6))
            deed = chance.random()
            if deed < 0.4:
                rig.send(f"m{number}", delivery=chance.choice(["queue", "steer"]))
            elif deed < 0.7 and rig.open:
                rig.result(chance.choice(rig.open))
            elif deed < 0.8:
                await rig.interrupt(clear_queue=chance.random() < 0.3)
        while rig.session.status not in ("idle", "failed"):
            await rig.interrupt()
        await rig.settled()
        rig.model.steps.appendleft(say("end"))
        last = rig.send("end")
        await rig.settled()
        assert rig.turn(last.response_id)["status"] == "completed"


@pytest.mark.parametrize("moment", ["running", "parked", "between", "idle"])
async def test_closing_the_harness_ends_every_turn_and_stream(moment: str) -> None:
    """
    B129's kind: turns end as interrupted, followers get the end, no task is left; closing twice does no harm.
    """
    async with open_rig([say("a", "b") if moment == "running" else call("look", "{}", "c1"), say("done")]) as rig:
        if moment != "idle":
            sent = rig.send()
            rig.send("queued")
            await rig.until(lambda: rig.all(said.TextDelta) or rig.open)
            if moment == "between":
                rig.result("c1")
        follower = rig.session.follow("0")
        async with asyncio.timeout(5):
            await asyncio.gather(rig.harness.aclose(), rig.harness.aclose())
            while await follower.take():
                pass
        assert rig.harness.running_turns == 0
        check_rest(rig.session)
        rig.check()
        if moment != "idle":
            assert rig.turn(sent.response_id)["status"] == "cancelled"
        with pytest.raises(NotFound):
            rig.harness.get(rig.session.id)


async def test_each_output_follows_its_call_and_comes_once_in_every_request() -> None:
    """
    B006: two tool rounds and another message; calls and outputs are counted in each request.
    """
    async with open_rig([*calls_then_text(2, 2)]) as rig:
        for _ in range(2):
            rig.send()
            for call_id in list(await rig.waiting(2)):
                rig.result(call_id)
            await rig.settled()
        for request in rig.requests:
            items = [item for block in request.blocks for item in (*block.items, *block.outputs)]
            assert len({item.id for item in items}) == len(items)
            calls = [item for item in items if isinstance(item, FunctionCall)]
            assert len(calls) == len([item for item in items if isinstance(item, FunctionCallOutput)])
