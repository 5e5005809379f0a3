"""
A session under random commands and random upstream behaviour, with its own event loop that turns only when told to.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import attrs
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent_harness.errors import Conflict, ModelError, NotFound, RequestError
from agent_harness.llm.base import Ended, Request, Retrying
from agent_harness.llm.scripted import ScriptedModel, Step, call, say, think
from agent_harness.protocol.commands import CreateSession
from agent_harness.protocol.encode import to_wire
from agent_harness.protocol.items import Usage
from tests.engine.laws import check_log, check_requests, check_rest, check_snapshot
from tests.engine.rig import TOOLS, Rig, make_harness, ticks

__all__ = ["SessionMachine"]

T = TypeVar("T")
DOWN = ModelError("down", code="provider_unavailable")
CUT = Ended("max_output_tokens", Usage(input_tokens=3))
NAMES = st.sampled_from(["look", "find", "look", "find", "gone", "no name"])
ARGUMENTS = st.sampled_from(["{}", '{"a": 1}', '{"a": "\\u2028"}', '"{}"', "", "[1]", '{"a": ', '{"t":"a\nb"}'])
CALL_IDS = st.sampled_from(["", "c1", "c2", "c3", "x" * 70, "é"])
TEXTS = st.sampled_from([("a",), ("b", "c"), ("",), ("d", "", "\0e"), ("\u2028 f",)])
GOOD_CALL = st.builds(call, st.sampled_from(["look", "find"]), st.sampled_from(["{}", '{"a": 1}']), CALL_IDS)
CALLS = st.lists(st.one_of(GOOD_CALL, GOOD_CALL, st.builds(call, NAMES, ARGUMENTS, CALL_IDS)), min_size=1, max_size=3)
BEFORE = st.sampled_from([Step(()), Step(()), say("first "), think("hm", {"id": "rs"}), think("") + say("so")])
RETRY = Step((Retrying(1, 0.0, "busy"),))
OUTPUTS = st.sampled_from(["A", "B", "", None, [{"type": "input_text", "text": "part"}]])
DELIVERIES = st.sampled_from(["queue", "queue", "queue", "steer", "steer", "reject"])
OFFERED = st.sampled_from([TOOLS, TOOLS, TOOLS, None, TOOLS[:1]])
CHOICES = st.sampled_from([None, None, None, "auto", "none", "required", {"type": "function", "name": "look"}])

CHANGES = [
    {"instructions": "x"},
    {"model": "m"},
    {"provider": "other"},
    {"provider": None},
    {"tools": TOOLS},
    {"tools": []},
]


@attrs.frozen
class NoEnd:
    """
    Stands at the end of a script: the stream stops there.
    """


def join(first: Step, calls: list[Step]) -> Step:
    for step in calls:
        first = first + step
    return first


WHOLE = st.one_of(
    st.builds(lambda text: say(*text), TEXTS),
    st.builds(join, BEFORE, CALLS),
    st.builds(join, BEFORE, CALLS),
    st.just(Step(())),
)
ENDINGS = st.sampled_from([*[None] * 9, CUT, DOWN, NoEnd()])


@st.composite
def answers(draw: st.DrawFn) -> tuple[Any, ...]:
    """
    What the model says to one request: the parts of an answer, whole or ended somewhere by a cut, a failure, nothing.
    """
    parts = draw(WHOLE).parts
    ending = draw(ENDINGS)
    retried = RETRY.parts if draw(st.integers(0, 5)) == 0 else ()
    if ending is None:
        return (*retried, *parts, Ended(usage=draw(st.sampled_from([Usage(), Usage(input_tokens=2, output_tokens=1)]))))
    return (*retried, *parts[: draw(st.integers(0, len(parts)))], ending)


class PlayingModel(ScriptedModel):
    """
    Takes its answers from the machine, in the order asked for; says "ok" when there is none.
    """

    async def stream(self, request: Request) -> Any:
        self.requests.append(request)
        parts = self.steps.popleft() if self.steps else (*say("ok").parts, Ended())
        for part in parts:
            await asyncio.sleep(0)
            if isinstance(part, NoEnd):
                return
            if isinstance(part, ModelError):
                raise part
            yield part


class Reader:
    """
    A client that follows; it may leave at any moment and come back with the last number it read.
    """

    def __init__(self, rig: Rig, after: str | None) -> None:
        self.start = rig.session.feed.seq if after is None else int(after)
        self.follower = rig.session.follow(after)
        self.task = asyncio.ensure_future(self.read())
        self.numbers: list[int] = []
        self.replayed: list[str] = []

    async def read(self) -> None:
        while taken := await self.follower.take():
            assert all(published.event.type != "session.gap" for published in taken)
            self.numbers += [published.seq for published in taken if published.numbered]
            again = [published.event for published in taken if getattr(published.event, "replayed", None)]
            self.replayed += [event.item.call_id for event in again]  # type: ignore[union-attr]

    def leave(self) -> int:
        """
        Leave, and the number to come back with. What was read is what came, each once, from the first on.
        """
        self.task.cancel()
        self.follower.close()
        assert self.numbers == list(range(self.start + 1, self.start + 1 + len(self.numbers)))
        return self.numbers[-1] if self.numbers else self.start


class SessionMachine(RuleBasedStateMachine):
    """
    See the module. Every rule ends by turning the loop a few times.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.faults: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda loop, fault: self.faults.append(fault))
        self.readers: list[Reader] = []
        self.left: list[int] = []
        self.answered: dict[str, Any] = {}
        self.closed: set[str] = set()

    def do(self, action: Callable[[], T]) -> T:
        """
        Call *action* as code in the loop would, without turning it: nothing else can happen meanwhile.
        """
        asyncio._set_running_loop(self.loop)
        try:
            return action()
        finally:
            asyncio._set_running_loop(None)

    def run(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """
        Run a coroutine to its end, for which the loop turns as often as it takes.
        """
        return self.loop.run_until_complete(asyncio.wait_for(action(), 5))

    def turn(self, count: int) -> None:
        """
        Turn the loop *count* times.
        """
        self.loop.run_until_complete(ticks(count))

    @initialize(bound=st.sampled_from([50, 3, 3, 1]), tools=st.booleans())
    def make(self, bound: int, tools: bool) -> None:
        self.model = PlayingModel()
        self.harness = make_harness({"default": self.model, "other": self.model}, queued_messages=3)
        self.settings = {"max_model_calls": bound, "tools": TOOLS[1:] if tools else []}
        self.begin()

    def begin(self) -> None:
        self.rig = self.do(lambda: Rig(self.harness, self.harness.create(CreateSession()), self.model))
        self.do(lambda: self.rig.update(**self.settings))
        self.readers, self.left, self.answered, self.closed = [], [], {}, set()

    # Commands.

    @precondition(lambda self: not self.rig.open)
    @rule(first=BEFORE, calls=st.lists(GOOD_CALL, min_size=1, max_size=3), count=st.integers(0, 30))
    def send_for_calls(self, first: Step, calls: list[Step], count: int) -> None:
        """
        The shortest way to open calls, which the other rules need.
        """
        if self.rig.session.transcript.current is None:
            self.model.steps.clear()
        self.model.steps.append((*join(first, calls).parts, Ended()))
        if len(self.rig.snapshot["queued"]) < 3:
            self.do(lambda: self.rig.send("call"))
        self.turn(count)

    @rule(
        answers=st.lists(answers(), max_size=3),
        delivery=DELIVERIES,
        tools=OFFERED,
        choice=CHOICES,
        count=st.integers(0, 20),
    )
    def send(self, answers: Any, delivery: str, tools: Any, choice: Any, count: int) -> None:
        self.model.steps.extend(answers)
        before, running = self.rig.session.feed.seq, self.rig.session.response_id
        message = {"delivery": delivery, "tools": tools, "tool_choice": choice}
        if self.is_refused(delivery, tools, choice):
            with pytest.raises(RequestError):
                self.do(lambda: self.rig.send("hi", **message))
            assert self.rig.session.feed.seq == before, "a refused request changes nothing"
        else:
            sent = self.do(lambda: self.rig.send("hi", **message))
            assert (sent.seq, sent.queued) == (before, running is not None)
            assert (sent.response_id == running) == (delivery == "steer" and running is not None)
            assert self.rig.session.status in ("running", "waiting")
        self.turn(count)

    def is_refused(self, delivery: str, tools: Any, choice: Any) -> bool:
        shown = self.rig.snapshot
        names = {tool["name"] for tool in shown["agent"]["tools"]}
        names |= {"look", "find"} if tools == TOOLS else {"look"} if tools else set()
        if delivery == "steer" and tools is None and shown["response_id"] is not None:
            names |= {tool.name for tool in self.rig.session.transcript.tools}
        missing = (choice == "required" and not names) or (isinstance(choice, dict) and choice["name"] not in names)
        runs = shown["response_id"] is not None
        return missing or (runs and (delivery == "reject" or len(shown["queued"]) == 3))

    @precondition(lambda self: self.rig.open)
    @rule(data=st.data(), output=OUTPUTS, is_error=st.booleans(), count=st.integers(0, 8))
    def answer(self, data: st.DataObject, output: Any, is_error: bool, count: int) -> None:
        call_id = data.draw(st.sampled_from(self.rig.open))
        answer = self.do(lambda: self.rig.result(call_id, output, is_error=is_error))
        assert not answer.duplicate
        assert call_id not in self.rig.open
        self.answered[call_id] = (output, is_error)
        self.turn(count)

    @precondition(lambda self: self.rig.open)
    @rule(data=st.data(), count=st.integers(0, 8))
    def answer_some_together(self, data: st.DataObject, count: int) -> None:
        call_ids = data.draw(st.permutations(self.rig.open))[: data.draw(st.integers(1, 3))]
        repeated = [
            call_id for call_id, (output, is_error) in self.answered.items() if (output, is_error) == ("Z", False)
        ]
        results = [{"call_id": call_id, "output": "Z"} for call_id in [*call_ids, *repeated[:1]]]
        answers = self.do(lambda: self.rig.batch(*results))
        assert [answer.duplicate for answer in answers] == [False] * len(call_ids) + [True] * len(repeated[:1])
        self.answered |= dict.fromkeys(call_ids, ("Z", False))
        self.turn(count)

    @precondition(lambda self: self.answered)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        call_id = data.draw(st.sampled_from(sorted(self.answered)))
        output, is_error = self.answered[call_id]
        before = self.rig.session.feed.seq
        assert self.do(lambda: self.rig.result(call_id, output, is_error=is_error)).duplicate
        self.refuse("call_already_answered", call_id, "another", not is_error)
        assert self.rig.session.feed.seq == before

    @rule(data=st.data())
    def answer_what_is_not_open(self, data: st.DataObject) -> None:
        items = self.rig.snapshot["items"]
        outputs = {item["call_id"]: item["origin"] for item in items if item["type"] == "function_call_output"}
        calls = [
            item["call_id"] for item in items if item["type"] == "function_call" and item["status"] != "action_required"
        ]
        call_id = data.draw(st.sampled_from(["nope", *calls]))
        if outputs.get(call_id) != "client":
            self.refuse("call_closed" if call_id in outputs else "unknown_call", call_id, "late", False)

    def refuse(self, code: str, call_id: str, output: str, is_error: bool) -> None:
        before = self.rig.session.feed.seq
        with pytest.raises((Conflict, NotFound)) as refused:
            self.do(lambda: self.rig.result(call_id, output, is_error=is_error))
        assert refused.value.code == code
        assert self.rig.session.feed.seq == before

    @rule(clear_queue=st.booleans(), named=st.booleans(), count=st.integers(0, 8), at_once=st.booleans())
    def interrupt(self, clear_queue: bool, named: bool, count: int, at_once: bool) -> None:
        async def act() -> tuple[Any, str | None, list[str]]:
            turn_id, queued = self.rig.session.transcript.current, self.rig.snapshot["queued"]
            given = {"response_id": turn_id} if named and turn_id else {}
            if at_once and (clear_queue or len(queued) < 3):
                self.loop.call_soon(lambda: self.rig.send("at once", delivery="steer", tools=None))
            return await self.rig.interrupt(clear_queue=clear_queue, **given), turn_id, queued

        answer, turn_id, queued = self.run(act)
        assert (answer.interrupted, answer.response_id) == (turn_id is not None, turn_id)
        assert list(answer.dropped) == (queued if clear_queue and turn_id else [])
        if turn_id is not None:
            assert self.rig.turn(turn_id)["status"] == "cancelled"
        self.turn(count)

    @rule(change=st.sampled_from(CHANGES))
    def update(self, change: dict[str, Any]) -> None:
        self.do(lambda: self.rig.update(**change))

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        before = self.rig.session.feed.seq
        settled = [to_wire(item)["id"] for item in self.rig.session.transcript.settled()]
        up_to = data.draw(st.sampled_from([None, *settled]))
        waiting, self.model.steps = self.model.steps, type(self.model.steps)()

        async def play() -> None:
            fork = self.rig.fork(up_to)
            first = fork.snapshot["items"]
            check_snapshot([], fork.session, first)
            check_rest(fork.session)
            fork.send("on", tools=None)
            await fork.finished()
            await ticks(3)
            check_snapshot(fork.log, fork.session, first)
            check_log(fork.log)
            check_requests(fork.requests)
            check_rest(fork.session)
            await self.harness.delete(fork.session)

        running = self.rig.session.transcript.current
        if running is None or self.rig.open:  # else the session's own turn would take the fork's answer
            self.run(play)
            assert self.rig.session.feed.seq == before
        self.model.steps = waiting

    # Followers.

    @rule(data=st.data())
    def follow(self, data: st.DataObject) -> None:
        seq = self.rig.session.feed.seq
        after = data.draw(st.one_of(st.none(), st.integers(0, seq), st.sampled_from([*self.left, seq])))
        reader = self.do(lambda: Reader(self.rig, None if after is None else str(after)))
        self.readers.append(reader)
        wanted = self.rig.open if after is None else []
        self.turn(2)
        assert reader.replayed == wanted

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        reader = self.readers.pop(data.draw(st.integers(0, len(self.readers) - 1)))
        self.left.append(self.do(reader.leave))

    @rule(count=st.integers(1, 20))
    def wait(self, count: int) -> None:
        self.turn(count)

    @rule(chance=st.integers(0, 4))
    def delete(self, chance: int) -> None:
        if chance:
            return
        self.run(lambda: self.harness.delete(self.rig.session))
        self.turn(3)
        self.finish()
        self.begin()

    # Laws.

    @invariant()
    def laws(self) -> None:
        self.rig.check()
        assert not self.faults

    @invariant()
    def nothing_is_left_over_at_rest(self) -> None:
        if self.rig.session.transcript.current is None:
            check_rest(self.rig.session, task=False)
            self.turn(3)
            assert self.harness.running_turns == 0
            check_rest(self.rig.session)

    def finish(self) -> None:
        """
        All readers have read everything, each event once.
        """
        self.rig.check()
        check_rest(self.rig.session)
        for reader in self.readers:
            self.turn(1)
            assert self.do(reader.leave) == self.rig.session.feed.seq

    def teardown(self) -> None:
        try:
            if hasattr(self, "rig"):
                for _ in range(100):
                    if self.rig.session.transcript.current is None:
                        break
                    if self.rig.open:
                        self.do(lambda: self.rig.result(self.rig.open[0]))
                    self.turn(5)
                assert self.rig.session.transcript.current is None, "a turn that has all its results does not end"
                self.turn(5)
                self.finish()
                self.run(self.harness.aclose)
                self.turn(3)
                assert not self.faults
                assert not asyncio.all_tasks(self.loop)
        finally:
            self.loop.close()
