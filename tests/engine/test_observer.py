"""
What the engine tells observers and the log, over turns of every kind.
"""

import asyncio
import logging
from typing import Any

import attrs
import pytest

from agent_harness.config import Limits
from agent_harness.engine import harness as harness_module
from agent_harness.engine.harness import Harness
from agent_harness.engine.observer import Observer
from agent_harness.engine.session import Session
from agent_harness.errors import ModelError
from agent_harness.llm.base import Ended, ItemAdded, Retrying
from agent_harness.llm.scripted import ScriptedModel, Step, call, say
from agent_harness.logs import REQUEST_ID, SESSION_ID, Line
from agent_harness.protocol.items import Usage
from agent_harness.protocol.requests import read_events
from tests.engine.rig import ticks

WAIT_S = 5.0

TOOLS = [{"type": "function", "name": "look"}, {"type": "function", "name": "quick", "timeout_s": 0.01}]
USAGE = Usage(input_tokens=7, output_tokens=3, total_tokens=10)
SECRET = "sk-very-secret"


@attrs.define
class Notes(Observer):
    """
    Keeps what it is told: (method, what is said without durations); durations by themselves.
    """

    told: list[tuple[Any, ...]] = attrs.field(factory=list)
    durations: list[float | None] = attrs.field(factory=list)

    def session_opened(self, session: Any) -> None:
        self.told.append(("session_opened",))

    def session_ended(self, session: Any, why: Any) -> None:
        self.told.append(("session_ended", why))

    def turn_ended(self, session: Any, turn: Any, outcome: Any, duration_s: float | None) -> None:
        self.told.append(("turn_ended", outcome))
        self.durations.append(duration_s)

    def call_closed(self, session: Any, closed_by: Any, duration_s: float | None) -> None:
        self.told.append(("call_closed", closed_by))
        self.durations.append(duration_s)

    def model_called(self, provider: str, outcome: Any, first_s: float | None, duration_s: float) -> None:
        self.told.append(("model_called", provider, outcome, first_s is not None))
        self.durations += [first_s, duration_s]

    def model_retried(self, provider: str) -> None:
        self.told.append(("model_retried", provider))

    def of(self, *kinds: str) -> list[tuple[Any, ...]]:
        return [said for said in self.told if said[0] in kinds]


class Rig:
    """
    A harness with one session, whatever its model is scripted to say, and the notes of its observer.
    """

    def __init__(self, *steps: Any, **limits: Any) -> None:
        self.notes = Notes()
        self.harness = Harness({"default": ScriptedModel(steps)}, limits=Limits(**limits), observers=[self.notes])
        self.session: Session

    async def __aenter__(self) -> "Rig":
        self.session = await self.harness.create_session()
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.harness.aclose()

    def send(self, text: str = "hi", **extra: Any) -> Any:
        return self.session.send(read_events({"type": "message", "data": {"content": text}, "tools": TOOLS, **extra}))

    async def until(self, *statuses: str) -> None:
        follower = self.session.follow()
        async with asyncio.timeout(WAIT_S):
            while self.session.status not in statuses:
                await follower.take()
            # The turn's task says the last about its model call.
            while statuses != ("waiting",) and self.harness.running_turns:
                await ticks(1)
        follower.close()

    async def interrupt(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self.session.interrupt(read_events({"type": "interrupt", "data": {"clear_queue": True}}))


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="agent_harness")


def lines(caplog: pytest.LogCaptureFixture, what: str) -> list[dict[str, Any]]:
    """
    The fields of the lines that say *what*, and their level.
    """
    records = [record for record in caplog.records if isinstance(record.msg, Line) and record.msg.what == what]
    return [{"level": record.levelname, **record.msg.fields} for record in records]


async def test_a_turn_with_a_call_is_told_once_for_each_thing_that_ends(caplog: pytest.LogCaptureFixture) -> None:
    async with Rig(call("look", call_id="c1") + Step((Ended(usage=USAGE),)), say("done")) as rig:
        sent = rig.send()
        await rig.until("waiting")
        rig.session.submit("c1", "found")
        await rig.until("idle")
        await rig.harness.delete(rig.session)

        assert sorted(rig.notes.told) == [
            ("call_closed", "client"),
            ("model_called", "default", "completed", True),
            ("model_called", "default", "completed", True),
            ("session_ended", "deleted"),
            ("session_opened",),
            ("turn_ended", "completed"),
        ]
        assert all(duration is not None and 0 <= duration < WAIT_S for duration in rig.notes.durations)
        [turn] = lines(caplog, "turn ended")
        assert 0 <= turn.pop("duration_s") < WAIT_S
        assert turn == {
            "level": "INFO",
            "session": rig.session.id,
            "response": sent.response_id,
            "outcome": "completed",
            "model": "scripted",
            "model_calls": 2,
            "input_tokens": 7,
            "output_tokens": 3,
        }
        [closed] = lines(caplog, "call closed")
        assert 0 <= closed.pop("duration_s") < WAIT_S
        assert closed == {
            "level": "INFO",
            "session": rig.session.id,
            "response": sent.response_id,
            "call_id": "c1",
            "name": "look",
            "closed_by": "client",
            "status": "completed",
        }
        assert lines(caplog, "session created") == [{"level": "INFO", "session": rig.session.id}]
        [ended] = lines(caplog, "session ended")
        assert ended == {"level": "INFO", "session": rig.session.id, "why": "deleted", "events": rig.session.feed.seq}


async def test_a_retry_is_told_and_the_first_item_is_timed_from_the_attempt_that_was_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    step = Step((Retrying(1, 100.0, f"it said {SECRET}"), Retrying(2, 0.0, "again"))) + say("here")
    async with Rig(step) as rig:
        sent = rig.send()
        await rig.until("idle")

        assert rig.notes.of("model_retried") == [("model_retried", "default")] * 2
        first_s, duration_s = rig.notes.durations[-2:]
        assert first_s is not None and duration_s is not None and 0 <= first_s <= duration_s
        told = lines(caplog, "model server asked again")
        assert [(line["level"], line["attempt"], line["delay_s"]) for line in told] == [
            ("INFO", 1, 100.0),
            ("INFO", 2, 0.0),
        ]
        assert all(line["response"] == sent.response_id and line["provider"] == "default" for line in told)
        assert SECRET not in caplog.text


async def test_an_interrupt_ends_turn_call_and_a_queued_turn_as_what_they_were(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Rig(call("look", call_id="c1")) as rig:
        rig.send()
        await rig.until("waiting")
        queued = rig.send("waits")
        await rig.interrupt()

        assert rig.notes.of("turn_ended", "call_closed") == [
            ("turn_ended", "dropped"),
            ("call_closed", "interrupt"),
            ("turn_ended", "cancelled"),
        ]
        dropped, cancelled = lines(caplog, "turn ended")
        assert (dropped["response"], dropped["outcome"], dropped["model_calls"]) == (queued.response_id, "dropped", 0)
        assert "duration_s" not in dropped and "duration_s" in cancelled
        [closed] = lines(caplog, "call closed")
        assert (closed["closed_by"], closed["status"]) == ("interrupt", "incomplete")


async def test_an_interrupted_model_call_is_cancelled_and_its_calls_are_nobodys(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = asyncio.Event()
    async with Rig(Step((ItemAdded(0, "function_call", "c1", "look"), gate))) as rig:
        rig.send()
        async with asyncio.timeout(WAIT_S):
            while not rig.session.transcript.calls:
                await ticks(1)
        await rig.interrupt()

        assert rig.notes.of("call_closed") == []
        assert rig.notes.of("model_called") == [("model_called", "default", "cancelled", True)]
        assert lines(caplog, "call closed") == []


@pytest.mark.parametrize(
    "step, outcome, reason, model_call",
    [
        (ModelError(f"key {SECRET} refused", code="provider_auth"), "failed", "provider_auth", "failed"),
        (say("a") + Step((Ended("max_output_tokens"),)), "incomplete", "max_output_tokens", "cut"),
        (Step((ItemAdded(0, "message"), ValueError())), "failed", "internal_error", "failed"),
        (say("x" * 2000), "incomplete", "session_full", "cut"),
    ],
    ids=["refused", "cut by the model", "fault", "cut by a bound"],
)
async def test_a_turn_that_does_not_end_well_is_told_with_its_reason_and_no_words_of_the_provider(
    step: Any, outcome: str, reason: str, model_call: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Rig(step, session_bytes=1900) as rig:
        rig.send()
        await rig.until("idle", "failed")

        assert rig.notes.of("turn_ended") == [("turn_ended", outcome)]
        assert [said[2] for said in rig.notes.of("model_called")] == [model_call]
        [turn] = lines(caplog, "turn ended")
        assert (turn["level"], turn["outcome"], turn["reason"]) == ("INFO", outcome, reason)
        assert SECRET not in caplog.text


async def test_a_call_past_its_deadline_has_a_duration_and_one_that_nobody_can_answer_has_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Rig(call("quick", call_id="c1") + call("nothing", call_id="c2"), say("done")) as rig:
        rig.send()
        await rig.until("idle")

        assert rig.notes.of("call_closed") == [("call_closed", "harness"), ("call_closed", "deadline")]
        refused, late = lines(caplog, "call closed")
        assert (refused["call_id"], refused["level"], "duration_s" in refused) == ("c2", "INFO", False)
        assert (late["call_id"], late["level"], late["duration_s"] >= 0.0) == ("c1", "INFO", True)


async def test_results_and_texts_are_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with Rig(call("look", f'{{"key": "{SECRET}"}}', "c1"), say(SECRET)) as rig:
        rig.send(SECRET)
        await rig.until("waiting")
        rig.session.submit("c1", SECRET)
        await rig.until("idle")

    assert caplog.records and SECRET not in caplog.text


async def test_names_that_a_client_or_a_model_chose_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    forged = "x\nturn ended outcome=forged"
    async with Rig(call(forged, call_id="c\n1"), say("done")) as rig:
        rig.session.agent = attrs.evolve(rig.session.agent, model=forged)
        rig.send()
        await rig.until("idle")

    assert len(lines(caplog, "turn ended")) == 1
    assert all("\n" not in record.getMessage() for record in caplog.records)


async def test_an_observer_that_fails_fails_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Observer):
        def turn_ended(self, *_: Any) -> None:
            raise ZeroDivisionError

    async with Rig(say("one")) as rig:
        rig.harness.watch.observers.insert(0, Failing())
        rig.send()
        await rig.until("idle")

        assert rig.notes.of("turn_ended") == [("turn_ended", "completed")]
        assert "an observer failed" in caplog.text


async def test_a_turn_bears_the_request_id_of_its_own_message_though_another_turn_began_it() -> None:
    seen: list[tuple[str, str]] = []

    def note(request: Any) -> Step:
        seen.append((REQUEST_ID.get(), SESSION_ID.get()))
        return say("ok")

    async with Rig(call("look", call_id="c1"), note, note, note) as rig:
        for name in ("first", "second", ""):
            token = REQUEST_ID.set(name)
            rig.send()
            REQUEST_ID.reset(token)
        await rig.until("waiting")
        rig.session.submit("c1", "found")
        await rig.until("idle")

        assert seen == [(name, rig.session.id) for name in ("first", "second", "")]


async def test_what_the_sweep_logs_bears_the_id_of_no_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(harness_module, "SWEEP_S", 0.0)
    ended = asyncio.Event()
    ids: list[str] = []

    class Note(Observer):
        def session_ended(self, session: Any, why: Any) -> None:
            ids.append(REQUEST_ID.get())
            ended.set()

    token = REQUEST_ID.set("of-the-first-request")
    async with Harness({}, limits=Limits(session_idle_s=-1.0), observers=[Note()]) as harness:
        await harness.create_session()
        REQUEST_ID.reset(token)
        async with asyncio.timeout(WAIT_S):
            await ended.wait()

    assert ids == [""]
    assert [line["why"] for line in lines(caplog, "session ended")] == ["idle"]


async def test_nothing_is_remembered_of_turns_and_calls_that_are_over() -> None:
    async with Rig(call("look", call_id="c1") + call("nothing", call_id="c2"), say("one"), say("two")) as rig:
        rig.send()
        rig.send()
        await rig.until("waiting")
        rig.session.submit("c1", "found")
        await rig.until("idle")
        watch = rig.harness.watch

        assert (watch._began, watch._opened, watch._asked) == ({}, {}, {})


async def test_values_that_a_model_should_not_give_fail_no_line_and_no_turn(caplog: pytest.LogCaptureFixture) -> None:
    odd: Any = [Retrying(1, float("nan"), "x"), Retrying(2, {1}, "x"), Retrying(2**80, 2**2000, "x")]  # type: ignore[arg-type]
    usage: Any = Usage(b"1", {2}, None)  # type: ignore[arg-type]
    async with Rig(Step(tuple(odd)) + say("here") + Step((Ended(usage=usage),))) as rig:
        rig.send()
        await rig.until("idle")

        assert rig.notes.of("turn_ended", "model_called") == [
            ("turn_ended", "completed"),
            ("model_called", "default", "completed", True),
        ]
        assert len(rig.notes.of("model_retried")) == 3
        assert len(lines(caplog, "turn ended")) == 1
