"""
The transcript: what each change does to items, open calls and the step, and the events that tell of it, in wire order.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from agent_harness.protocol import events as said
from agent_harness.protocol.answers import finish_draft, grow_draft
from agent_harness.protocol.drafts import Draft
from agent_harness.protocol.items import FunctionCallOutput, InputText, Message, Usage
from agent_harness.protocol.tools import NamedChoice, Tool
from agent_harness.protocol.transcript import Step, Transcript, Waiting
from agent_harness.protocol.turns import LastError, RequiredAction, Turn

TOOLS = (Tool(name="f"),)


def make_message(name: str, turn: str = "r1", status: Any = "completed") -> Message:
    return Message(
        id=f"msg_{name}",
        role="user",
        content=(InputText(name),),
        origin="client",
        status=status,
        response_id=turn,
        created_at=0,
    )


def make_waiting(name: str, turn: str, *, steer: bool = False, tools: Any = None, choice: Any = None) -> Waiting:
    return Waiting(make_message(name, turn, "queued"), steer, tools, choice)


def make_turn(name: str, status: Any = "in_progress") -> Turn:
    return Turn(id=name, status=status, created_at=0)


def make_draft(name: str, kind: Any = "function_call") -> Draft:
    return Draft(
        id=name, type=kind, response_id="r1", output_index=99, created_at=0, call_id=f"c_{name}", name="f", raw_name="f"
    )


def make_output(call_id: str) -> FunctionCallOutput:
    return FunctionCallOutput(id=f"fco_{call_id}", call_id=call_id, output="42", response_id="r1", created_at=0)


def start(*drafts: Draft) -> Transcript:
    """
    A turn ``r1`` that runs, with an answer of *drafts* in progress.
    """
    transcript = Transcript()
    transcript.open_turn(make_turn("r1"), make_message("q"), (), None)
    for index, draft in enumerate(drafts):
        transcript.begin_item(index, draft)
    return transcript


def states(items: Any) -> list[tuple[str, str]]:
    return [(item.id, item.status) for item in items]


def told(events: list[said.Event]) -> list[tuple[Any, ...]]:
    """
    Item events as their type, output_index, id and status; others as their type.
    """
    lines: list[tuple[Any, ...]] = []
    for event in events:
        match event:
            case said.OutputItemAdded() | said.OutputItemDone():
                assert event.response_id == "r1"
                lines.append((event.type.rpartition(".")[2], event.output_index, event.item.id, event.item.status))
            case said.SessionItem():
                lines.append(("item", event.item.id, event.item.status))
            case _:
                lines.append((event.type,))
    return lines


def test_new_transcript_is_idle_and_empty() -> None:
    transcript = Transcript()

    assert transcript.step is Step.IDLE
    assert transcript.items() == transcript.settled() == []
    assert transcript.required_actions() == ()
    assert transcript.blocks() == ((), 0)
    assert transcript.next_waiting() is None


def test_turn_begins_with_its_message_and_what_that_brought() -> None:
    transcript = Transcript()
    message = make_message("q")

    events = transcript.open_turn(make_turn("r1"), message, TOOLS, "required")

    assert events == [said.SessionItem(message)]
    assert (transcript.current, transcript.running) == ("r1", make_turn("r1"))
    assert (transcript.tools, transcript.tool_choice) == (TOOLS, "required")
    assert transcript.step is Step.CALL_MODEL
    assert transcript.items() == [message]


def test_only_one_turn_runs() -> None:
    with pytest.raises(AssertionError):
        start().open_turn(make_turn("r2"), make_message("x", "r2"), (), None)


def test_items_of_an_answer_are_counted_over_the_whole_turn() -> None:
    transcript = start()
    first, second = make_draft("a"), make_draft("b", "message")

    assert told(transcript.begin_item(0, first)) == [("added", 0, "a", "in_progress")]
    assert told(transcript.begin_item(1, second)) == [("added", 1, "b", "in_progress")]
    assert told(transcript.end_answer({"c_a": None}, {})) == [
        ("done", 0, "a", "action_required"),
        ("done", 1, "b", "completed"),
    ]
    events = transcript.close_call(make_output("c_a"), "completed", "client")
    assert told(events) == [("done", 0, "a", "completed"), ("done", 2, "fco_c_a", "completed")]
    assert told(transcript.begin_item(0, make_draft("d", "message"))) == [("added", 3, "d", "in_progress")]

    transcript.cut_answer()
    transcript.end_turn("failed", 1)
    transcript.open_turn(make_turn("r1"), make_message("r"), (), None)
    assert told(transcript.begin_item(0, make_draft("e", "message"))) == [("added", 0, "e", "in_progress")]


def test_two_items_at_one_place_are_refused() -> None:
    transcript = start(make_draft("a"))

    with pytest.raises(ValueError, match="item 0"):
        transcript.begin_item(0, make_draft("b"))
    assert states(transcript.items()) == [("msg_q", "completed"), ("a", "in_progress")]


def test_item_in_progress_shows_what_it_holds_and_is_not_settled() -> None:
    draft = make_draft("a")
    transcript = start(draft)
    grow_draft(draft, "arguments", 0, '{"x')

    assert transcript.items()[1] == draft.item()
    assert transcript.call_item("c_a").arguments == '{"x'
    assert states(transcript.settled()) == [("msg_q", "completed")]
    assert not transcript.was_announced("c_a")


def test_calls_of_an_answer_are_announced_together_and_in_call_order() -> None:
    """B138: nothing is open before the answer has ended."""
    transcript = start(make_draft("a"), make_draft("text", "message"), make_draft("b"))
    assert (transcript.step, transcript.open_calls) == (Step.CALL_MODEL, [])

    transcript.end_answer({"c_a": 12.5, "c_b": None}, {})

    assert transcript.step is Step.AWAIT_RESULTS
    assert transcript.open_calls == ["c_a", "c_b"]
    assert transcript.was_announced("c_a")
    assert transcript.required_actions() == (
        RequiredAction(response_id="r1", call_id="c_a", name="f", arguments="", expires_at=12.5),
        RequiredAction(response_id="r1", call_id="c_b", name="f", arguments="", expires_at=None),
    )
    assert transcript.drafts == {}


def test_call_that_the_harness_answers_is_never_open_and_its_output_follows_it_at_once() -> None:
    """B147: at its place in call order."""
    transcript = start(make_draft("a"), make_draft("b"), make_draft("c"))

    events = transcript.end_answer({"c_a": None, "c_c": None}, {"c_b": make_output("c_b")})

    assert told(events) == [
        ("done", 0, "a", "action_required"),
        ("done", 1, "b", "failed"),
        ("done", 3, "fco_c_b", "completed"),
        ("done", 2, "c", "action_required"),
    ]
    assert transcript.open_calls == ["c_a", "c_c"]
    assert transcript.calls["c_b"].closed_by == "harness"


def test_turn_goes_on_where_the_harness_answered_every_call() -> None:
    transcript = start(make_draft("a"))

    transcript.end_answer({}, {"c_a": make_output("c_a")})

    assert transcript.step is Step.CALL_MODEL


def test_calls_that_are_not_announced_end_incomplete_and_need_no_output() -> None:
    """B150: at the bound on model calls."""
    transcript = start(make_draft("a"), make_draft("text", "message"))

    events = transcript.end_answer({}, {})

    assert told(events) == [("done", 0, "a", "incomplete"), ("done", 1, "text", "completed")]
    assert (transcript.step, transcript.open_calls, transcript.outputs) == (Step.CALL_MODEL, [], {})
    assert not transcript.was_announced("c_a")


def test_every_item_of_a_cut_answer_ends_incomplete_and_no_call_is_announced() -> None:
    """B077, B085, B130."""
    done = make_draft("done", "message")
    finish_draft(done)
    transcript = start(done, make_draft("think", "reasoning"), make_draft("a"))

    assert told(transcript.cut_answer()) == [
        ("done", 0, "done", "incomplete"),
        ("done", 1, "think", "incomplete"),
        ("done", 2, "a", "incomplete"),
    ]
    assert (transcript.open_calls, transcript.outputs, transcript.drafts) == ([], {}, {})
    assert transcript.cut_answer() == []


@pytest.mark.parametrize("by, status", [("client", "completed"), ("client", "failed"), ("deadline", "incomplete")])
def test_call_is_closed_by_its_last_status_directly_before_its_output(by: Any, status: Any) -> None:
    transcript = start(make_draft("a"), make_draft("b"))
    transcript.end_answer({"c_a": None, "c_b": None}, {})

    events = transcript.close_call(make_output("c_b"), status, by)

    assert told(events) == [("done", 1, "b", status), ("done", 2, "fco_c_b", "completed")]
    assert (transcript.open_calls, transcript.step) == (["c_a"], Step.AWAIT_RESULTS)
    assert transcript.calls["c_b"].closed_by == by
    transcript.close_call(make_output("c_a"), status, by)
    assert transcript.step is Step.CALL_MODEL
    assert [item.id for item in transcript.items()] == ["msg_q", "a", "b", "fco_c_b", "fco_c_a"]


def test_usage_and_model_calls_add_up_in_the_turns_record() -> None:
    transcript = start()
    transcript.count_call("m")
    transcript.add_usage(Usage(1, 2, 3))
    transcript.count_call("n")
    transcript.add_usage(Usage(10, None, 30))

    transcript.end_turn("completed", 5)

    assert transcript.turns["r1"] == Turn(
        id="r1", status="completed", model="n", model_calls=2, usage=Usage(11, 2, 33), created_at=0, completed_at=5
    )


@pytest.mark.parametrize(
    "status, cls, more",
    [
        ("completed", said.ResponseCompleted, {}),
        ("failed", said.ResponseFailed, {"error": LastError("rate_limited", "wait")}),
        ("cancelled", said.ResponseCancelled, {}),
        ("incomplete", said.ResponseIncomplete, {"reason": "max_model_calls"}),
    ],
)
def test_turn_ends_with_one_event_and_leaves_nothing_behind(status: Any, cls: Any, more: Any) -> None:
    transcript = Transcript()
    transcript.open_turn(make_turn("r1"), make_message("q"), TOOLS, "required")

    (event,) = transcript.end_turn(status, 5, **more)

    assert event == cls(transcript.turns["r1"])
    record = transcript.turns["r1"]
    assert (record.status, record.completed_at) == (status, 5)
    assert (record.error, record.incomplete_reason) == (more.get("error"), more.get("reason"))
    assert (transcript.step, transcript.current) == (Step.IDLE, None)
    assert (transcript.tools, transcript.tool_choice) == ((), None)


def test_turn_with_an_open_call_or_an_item_in_progress_cannot_end() -> None:
    transcript = start(make_draft("a"))
    with pytest.raises(AssertionError):
        transcript.end_turn("completed", 1)

    transcript.end_answer({"c_a": None}, {})
    with pytest.raises(AssertionError):
        transcript.end_turn("completed", 1)


def test_waiting_messages_stand_last_and_begin_their_turns_first_come_first_served() -> None:
    """B135."""
    transcript = start()
    first, second = make_waiting("b", "r2", tools=TOOLS, choice=NamedChoice("f")), make_waiting("c", "r3")
    assert transcript.wait(first, make_turn("r2", "queued")) == [said.SessionItem(first.message)]
    transcript.wait(second, make_turn("r3", "queued"))
    transcript.begin_item(0, make_draft("a", "message"))
    assert states(transcript.items())[1:] == [("a", "in_progress"), ("msg_b", "queued"), ("msg_c", "queued")]
    assert transcript.settled() == [make_message("q")]
    transcript.end_answer({}, {})
    transcript.end_turn("completed", 1)
    assert transcript.next_waiting() is first

    assert told(transcript.open_next_turn("m")) == [("item", "msg_b", "completed")]

    assert transcript.running == attrs.evolve(make_turn("r2"), model="m")
    assert (transcript.tools, transcript.tool_choice) == (TOOLS, NamedChoice("f"))
    assert transcript.next_waiting() is second
    assert [item.id for item in transcript.items()] == ["msg_q", "a", "msg_b", "msg_c"]


def test_steered_messages_enter_in_order_and_start_no_turn() -> None:
    """B132, B135."""
    transcript = start()
    transcript.tools = TOOLS
    for waiting, turn in (
        (make_waiting("s1", "r1", steer=True), None),
        (make_waiting("next", "r2"), make_turn("r2", "queued")),
        (make_waiting("s2", "r1", steer=True), None),
    ):
        transcript.wait(waiting, turn)
    assert [waiting.message.id for waiting in transcript.steered()] == ["msg_s1", "msg_s2"]

    assert told(transcript.enter_steered()) == [("item", "msg_s1", "completed"), ("item", "msg_s2", "completed")]

    assert transcript.steered() == transcript.enter_steered() == []
    assert transcript.tools == TOOLS
    assert states(transcript.items()) == [
        ("msg_q", "completed"),
        ("msg_s1", "completed"),
        ("msg_s2", "completed"),
        ("msg_next", "queued"),
    ]


@pytest.mark.parametrize("tools", [(), (Tool(name="g"),)])
def test_tools_of_a_steered_message_replace_the_turns(tools: Any) -> None:
    transcript = start()
    transcript.tools, transcript.tool_choice = TOOLS, "auto"

    transcript.wait(make_waiting("s", "r1", steer=True, tools=tools, choice="none"), None)
    assert (transcript.tools, transcript.tool_choice) == (TOOLS, "auto")
    transcript.enter_steered()

    assert (transcript.tools, transcript.tool_choice) == (tools, "none")


def test_dropped_messages_leave_the_items_and_their_turns_end_cancelled() -> None:
    """B128."""
    transcript = start()
    transcript.wait(make_waiting("s", "r1", steer=True), None)
    transcript.wait(make_waiting("b", "r2"), make_turn("r2", "queued"))

    events = transcript.drop_waiting(7)

    assert told(events) == [("item", "msg_s", "cancelled"), ("item", "msg_b", "cancelled"), ("response.cancelled",)]
    assert events[-1] == said.ResponseCancelled(transcript.turns["r2"])
    assert (transcript.turns["r2"].status, transcript.turns["r2"].completed_at) == ("cancelled", 7)
    assert transcript.turns["r1"].status == "in_progress"
    assert [item.id for item in transcript.items()] == ["msg_q"]
    assert transcript.drop_waiting(8) == []
