"""
What a follower of the events knows is what the transcript holds, at every moment of a random life.
"""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_harness.protocol import events as said
from agent_harness.protocol.drafts import Draft
from agent_harness.protocol.items import FunctionCall, FunctionCallOutput, InputText, Item, Message
from agent_harness.protocol.transcript import Step, Transcript, Waiting
from agent_harness.protocol.turns import Turn


def make_message(name: str, status: Any = "completed") -> Message:
    content = (InputText(name),)
    return Message(id=f"msg_{name}", role="user", content=content, origin="client", status=status, created_at=0)


def make_waiting(name: str, turn: str, *, steer: bool) -> Waiting:
    return Waiting(attrs.evolve(make_message(name, "queued"), response_id=turn), steer, None, None)


def make_turn(name: str, status: Any = "in_progress") -> Turn:
    return Turn(id=name, status=status, created_at=0)


def make_draft(name: str, kind: Any) -> Draft:
    return Draft(id=name, type=kind, response_id="r", output_index=0, created_at=0, call_id=f"c_{name}", name="f")


def make_output(call_id: str) -> FunctionCallOutput:
    return FunctionCallOutput(id=f"fco_{call_id}", call_id=call_id, output="42", created_at=0)


def fold(events: list[said.Event]) -> list[Item]:
    """
    What a follower knows: the last state of each item, in the order that the contract gives.
    """
    placed: dict[str, Item] = {}
    waiting: dict[str, Item] = {}
    for event in events:
        if isinstance(event, said.SessionItem | said.OutputItemAdded | said.OutputItemDone):
            waiting.pop(event.item.id, None)
            if event.item.status == "queued":
                waiting[event.item.id] = event.item
            elif event.item.status != "cancelled":
                placed[event.item.id] = event.item
    return [*placed.values(), *waiting.values()]


@given(data=st.data())
@settings(deadline=None, derandomize=True)
def test_items_are_the_last_published_states_in_order_of_first_appearance(data: st.DataObject) -> None:
    """B006: each item once."""
    transcript = Transcript()
    events: list[said.Event] = []
    for count in range(data.draw(st.integers(1, 20))):
        doing = data.draw(st.sampled_from(["message", "message", "answer", "answer", "begin", "end", "drop", "close"]))
        if doing == "message" and transcript.current is None:
            events += transcript.open_turn(make_turn(f"r{count}"), make_message(f"{count}"), (), None)
        elif doing == "message":
            steer = data.draw(st.booleans())
            turn = transcript.current if steer else f"r{count}"
            waiting = make_waiting(f"{count}", str(turn), steer=steer)
            events += transcript.wait(waiting, None if steer else make_turn(f"r{count}", "queued"))
        elif doing == "drop":
            events += transcript.drop_waiting(0)
        elif doing == "close" and transcript.open_calls:
            call_id = data.draw(st.sampled_from(transcript.open_calls))
            events += transcript.close_call(make_output(call_id), "completed", "client")
        elif doing == "begin" and transcript.step is Step.CALL_MODEL:
            kind = data.draw(st.sampled_from(["message", "function_call", "reasoning"]))
            events += transcript.begin_item(count, make_draft(f"d{count}", kind))
        elif doing == "answer" and transcript.step is Step.CALL_MODEL:
            calls = [draft.call_id for draft in transcript.drafts.values() if draft.type == "function_call"]
            refused = {call_id: make_output(call_id) for call_id in calls if data.draw(st.booleans())}
            events += transcript.end_answer({call_id: None for call_id in calls if call_id not in refused}, refused)
        elif doing == "end" and transcript.step is Step.CALL_MODEL:
            events += [*transcript.cut_answer(), *transcript.enter_steered(), *transcript.end_turn("failed", 0)]
            events += transcript.open_next_turn("m") if transcript.next_waiting() else []

        assert fold(events) == transcript.items()
        assert transcript.open_calls == [
            item.call_id
            for item in transcript.items()
            if isinstance(item, FunctionCall) and item.status == "action_required"
        ]
