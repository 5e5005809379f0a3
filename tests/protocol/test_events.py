"""
The events as a set: each has a wire type of its own, and says which turn it belongs to.
"""

from __future__ import annotations

import inspect
from typing import Any, get_args

import attrs
import pytest

from agent_harness.protocol import events as said
from agent_harness.protocol.agents import Agent
from agent_harness.protocol.items import FunctionCall, InputText, Message
from agent_harness.protocol.turns import Turn

CLASSES = [cls for _, cls in inspect.getmembers(said, attrs.has) if cls.__module__ == said.__name__]

TURN = Turn(id="resp_1", status="in_progress", created_at=0)
CALL = FunctionCall(
    id="fc_1", call_id="c", name="f", arguments="{}", status="completed", response_id="resp_1", created_at=0
)


def make_message(response_id: str | None) -> Message:
    return Message(
        id="msg_1", role="user", content=(InputText("q"),), origin="client", response_id=response_id, created_at=0
    )


SAMPLES: list[tuple[said.Event, str | None]] = [
    (said.SessionItem(make_message("resp_1")), "resp_1"),
    (said.SessionItem(make_message(None)), None),
    (said.SessionStatus(status="running", response_id="resp_1"), "resp_1"),
    (said.SessionStatus(status="idle", response_id=None), None),
    (said.SessionUpdated(Agent(), {}), None),
    (said.SessionDeleted("sess_1"), None),
    (said.SessionGap("9", 10), None),
    (said.SessionLagged(), None),
    (said.ResponseCreated(TURN), "resp_1"),
    (said.ResponseCompleted(TURN), "resp_1"),
    (said.ResponseFailed(TURN), "resp_1"),
    (said.ResponseIncomplete(TURN), "resp_1"),
    (said.ResponseCancelled(TURN), "resp_1"),
    (said.ResponseRetrying("resp_1", 1, 0.5, "why"), "resp_1"),
    (said.OutputItemAdded("resp_1", 0, CALL), "resp_1"),
    (said.OutputItemDone("resp_1", 0, CALL), "resp_1"),
    (said.TextDelta("resp_1", "msg_1", 0, 0, "t"), "resp_1"),
    (said.TextDone("resp_1", "msg_1", 0, 0, "t"), "resp_1"),
    (said.RefusalDelta("resp_1", "msg_1", 0, 0, "t"), "resp_1"),
    (said.RefusalDone("resp_1", "msg_1", 0, 0, "t"), "resp_1"),
    (said.ArgumentsDelta("resp_1", "fc_1", 0, "{"), "resp_1"),
    (said.ArgumentsDone("resp_1", "fc_1", 0, "{}"), "resp_1"),
    (said.SummaryDelta("resp_1", "rs_1", 0, 0, "t"), "resp_1"),
    (said.SummaryDone("resp_1", "rs_1", 0, 0, "t"), "resp_1"),
]


def type_of(cls: Any) -> str:
    return attrs.fields_dict(cls)["type"].default


def test_every_event_class_is_in_the_union_and_public() -> None:
    assert set(get_args(said.Event)) == set(CLASSES)
    assert {cls.__name__ for cls in CLASSES} <= set(said.__all__)


def test_every_event_class_has_a_wire_type_of_its_own() -> None:
    assert {type_of(cls) for cls in CLASSES} == {
        "session.item", "session.status", "session.updated", "session.deleted", "session.gap", "session.lagged",
        "response.created", "response.completed", "response.failed", "response.incomplete", "response.cancelled",
        "response.retrying", "response.output_item.added", "response.output_item.done",
        "response.output_text.delta", "response.output_text.done", "response.refusal.delta", "response.refusal.done",
        "response.function_call_arguments.delta", "response.function_call_arguments.done",
        "response.reasoning_summary_text.delta", "response.reasoning_summary_text.done",
    }  # fmt: skip
    assert len({type_of(cls) for cls in CLASSES}) == len(CLASSES)


@pytest.mark.parametrize("cls", CLASSES)
def test_wire_type_of_a_class_is_its_only_one(cls: Any) -> None:
    annotation = inspect.get_annotations(cls, eval_str=True)["type"]

    assert get_args(annotation) == (type_of(cls),)


def test_terminal_events_are_the_four_ends_of_a_turn() -> None:
    assert sorted(type_of(cls) for cls in said.TERMINAL_EVENTS) == [
        "response.cancelled",
        "response.completed",
        "response.failed",
        "response.incomplete",
    ]


def test_unnumbered_events_are_those_about_the_connection() -> None:
    assert set(get_args(said.Unnumbered)) == {said.SessionGap, said.SessionLagged}


def test_samples_hold_every_class() -> None:
    assert {type(event) for event, _ in SAMPLES} == set(CLASSES)


@pytest.mark.parametrize("event, response_id", SAMPLES)
def test_event_tells_the_turn_it_belongs_to(event: said.Event, response_id: str | None) -> None:
    assert said.event_response_id(event) == response_id


@pytest.mark.parametrize("event, response_id", SAMPLES)
def test_event_cannot_be_changed(event: said.Event, response_id: str | None) -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        event.type = "other"  # type: ignore[misc, assignment]
