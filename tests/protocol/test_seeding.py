"""
Transcripts that begin with a past: new ids, the same call_ids, and no call without an output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_harness.protocol.drafts import Draft
from agent_harness.protocol.items import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    Message,
    OutputText,
    Provenance,
    Reasoning,
)
from agent_harness.protocol.past import read_past
from agent_harness.protocol.seeding import CLOSED_AT_START, copy_items, seed_transcript
from agent_harness.protocol.transcript import Step, Transcript, Waiting
from agent_harness.protocol.turns import Turn

NOW = 1_700_000_000
HIDDEN = Provenance("openai", "gpt", {"id": "x"})


def user(name: str) -> Message:
    return Message(
        id=f"msg_{name}", role="user", content=(InputText(name),), origin="client", response_id="r1", created_at=1
    )


def says(name: str) -> Message:
    content = (OutputText(name),)
    return Message(
        id=f"msg_{name}",
        role="assistant",
        content=content,
        origin="model",
        response_id="r1",
        created_at=1,
        provenance=HIDDEN,
    )


def calls(name: str, status: Any = "completed") -> FunctionCall:
    return FunctionCall(
        id=f"fc_{name}",
        call_id=name,
        name="f",
        arguments="{}",
        status=status,
        response_id="r1",
        created_at=1,
        provenance=HIDDEN,
    )


def output(name: str, **more: Any) -> FunctionCallOutput:
    return FunctionCallOutput(id=f"fco_{name}", call_id=name, output=name, response_id="r1", created_at=1, **more)


def begin_answer(transcript: Transcript, *names: str) -> None:
    for index, name in enumerate(names):
        kind: Any = "message" if name.startswith("text") else "function_call"
        draft = Draft(id=name, type=kind, response_id="r1", output_index=0, created_at=1, call_id=name, name="f")
        transcript.begin_item(index, draft)


def running(*names: str, announced: Sequence[str] = (), refused: Sequence[str] = ()) -> Transcript:
    """
    A turn whose answer has items *names*, ended well.
    """
    transcript = Transcript()
    transcript.open_turn(Turn(id="r1", status="in_progress", created_at=1), user("q"), (), None)
    begin_answer(transcript, *names)
    transcript.end_answer(dict.fromkeys(announced), {name: output(name, origin="harness") for name in refused})
    return transcript


def shape(items: Sequence[Item]) -> list[str]:
    """
    Each item as what it is known by, and its status where that says something.
    """
    lines = []
    for item in items:
        match item:
            case FunctionCall():
                lines.append(f"call {item.call_id} {item.status}")
            case FunctionCallOutput():
                closed = item.output == CLOSED_AT_START and item.is_error and item.origin == "harness"
                lines.append(f"{'closed' if closed else 'output'} {item.call_id}")
            case Message():
                lines.append(item.role)
            case Reasoning():
                lines.append("reasoning")
    return lines


def fork(source: Transcript, up_to: str | None = None) -> Transcript:
    return seed_transcript(copy_items(source, up_to), NOW)


def test_seed_of_nothing_is_an_empty_transcript() -> None:
    transcript = seed_transcript([], NOW)

    assert (transcript.items(), transcript.step, transcript.turns) == ([], Step.IDLE, {})


def test_items_are_copied_with_new_ids_outside_any_turn() -> None:
    reasoning = Reasoning(id="rs_r", status="completed", response_id="r1", created_at=1, provenance=HIDDEN)
    items: list[Item] = [user("q"), reasoning, calls("c"), output("c"), says("a")]

    copies = seed_transcript(items, NOW).items()

    assert [attrs.evolve(copy, id=item.id, response_id="r1") for copy, item in zip(copies, items, strict=True)] == items
    assert all(copy.response_id is None for copy in copies)
    assert {copy.id for copy in copies}.isdisjoint({item.id for item in items})
    assert [copy.id.partition("_")[0] for copy in copies] == ["msg", "rs", "fc", "fco", "msg"]
    assert len({copy.id for copy in copies}) == 5


@pytest.mark.parametrize(
    "items, told",
    [
        ([calls("a", "action_required")], ["call a incomplete", "closed a"]),
        (
            [calls("a", "action_required"), says("t"), calls("b"), output("b"), user("q")],
            ["call a incomplete", "assistant", "call b completed", "closed a", "output b", "user"],
        ),
        (
            [user("q"), calls("a", "action_required"), calls("b", "action_required"), user("r")],
            ["user", "call a incomplete", "call b incomplete", "closed a", "closed b", "user"],
        ),
        ([calls("a", "incomplete"), user("q")], ["call a incomplete", "user"]),
        ([calls("a", "incomplete"), output("a")], ["call a incomplete", "output a"]),
        ([calls("a", "failed"), user("q"), output("a")], ["call a failed", "user", "output a"]),
    ],
)
def test_call_without_output_is_closed_behind_the_items_of_its_answer(items: list[Item], told: list[str]) -> None:
    """B001, B003, B011."""
    transcript = seed_transcript(items, NOW)

    assert shape(transcript.items()) == told
    assert (transcript.open_calls, transcript.step) == ([], Step.IDLE)
    assert all(item.created_at in (1, NOW) for item in transcript.items())


def test_seed_knows_its_calls_by_where_they_stand_and_how_they_were_closed() -> None:
    items = [calls("a", "action_required"), calls("b"), calls("c"), calls("d", "incomplete")]
    transcript = seed_transcript([*items, output("c", origin="harness"), output("b")], NOW)

    assert {call_id: transcript.call_item(call_id).call_id for call_id in "abcd"} == {key: key for key in "abcd"}
    assert [transcript.calls[call_id].closed_by for call_id in "abcd"] == ["harness", "client", "harness", None]
    assert [transcript.was_announced(call_id) for call_id in "abcd"] == [True, True, True, False]
    assert set(transcript.outputs) == {"a", "b", "c"}


def test_session_made_from_items_closes_the_calls_that_came_without_output() -> None:
    """B011."""
    call = {"type": "function_call", "name": "f", "arguments": "{}"}
    items = read_past([call | {"call_id": "a"}, {"type": "message", "role": "user", "content": "q"}], NOW)

    assert shape(seed_transcript(items, NOW).items()) == ["call a incomplete", "closed a", "user"]


def test_fork_copies_settled_items_and_leaves_the_source_untouched() -> None:
    source = running("a", "b", "text", announced=("a", "b"))
    source.close_call(output("b"), "completed", "client")
    source.wait(Waiting(user("later"), True, None, None), None)
    before = source.items()

    copy = fork(source)

    assert shape(copy.items()) == [
        "user",
        "call a incomplete",
        "call b completed",
        "assistant",
        "closed a",
        "output b",
    ]
    assert (copy.waiting, copy.turns, copy.current, copy.step) == ({}, {}, None, Step.IDLE)
    assert source.items() == before
    assert (source.open_calls, source.step) == (["a"], Step.AWAIT_RESULTS)


def test_fork_leaves_items_in_progress_behind() -> None:
    source = running("a", announced=("a",))
    source.close_call(output("a"), "completed", "client")
    begin_answer(source, "text", "b")

    assert shape(fork(source).items()) == ["user", "call a completed", "output a"]


@pytest.mark.parametrize(
    "up_to, told",
    [
        ("msg_q", ["user"]),
        ("a", ["user", "call a incomplete", "closed a"]),
        ("b", ["user", "call a incomplete", "call b incomplete", "closed a", "closed b"]),
        ("fco_b", ["user", "call a incomplete", "call b completed", "closed a", "output b"]),
        ("fco_a", ["user", "call a completed", "call b completed", "output b", "output a"]),
    ],
)
def test_fork_up_to_an_item_closes_the_calls_whose_output_is_not_copied(up_to: str, told: list[str]) -> None:
    """B003."""
    source = running("a", "b", announced=("a", "b"))
    source.close_call(output("b"), "completed", "client")
    source.close_call(output("a"), "completed", "client")

    assert shape(fork(source, up_to).items()) == told


@pytest.mark.parametrize(
    "up_to, told",
    [(None, ["user", "call a failed", "output a"]), ("a", ["user", "call a incomplete", "closed a"])],
)
def test_fork_keeps_what_the_harness_answered(up_to: str | None, told: list[str]) -> None:
    """B147."""
    assert shape(fork(running("a", refused=("a",)), up_to).items()) == told


def test_fork_leaves_a_call_that_was_never_announced_without_output() -> None:
    """B077, B150."""
    copy = fork(running("text", "a"))

    assert shape(copy.items()) == ["user", "assistant", "call a incomplete"]
    assert not copy.was_announced("a")


@pytest.mark.parametrize("up_to", ["", "msg_x", "r1", "text", "msg_later"])
def test_fork_up_to_an_item_that_is_not_settled_is_refused(up_to: str) -> None:
    source = running("a", announced=("a",))
    source.close_call(output("a"), "completed", "client")
    source.wait(Waiting(user("later"), True, None, None), None)
    begin_answer(source, "text")

    with pytest.raises(KeyError):
        copy_items(source, up_to)


ITEMS = st.lists(st.sampled_from(["user", "says", "call", "call", "reopened", "unheard", "output"]), max_size=12)


@given(kinds=ITEMS)
@settings(deadline=None, derandomize=True)
def test_every_seed_makes_requests_that_pair(kinds: list[str]) -> None:
    """B001, B003, B006, B023."""
    items: list[Item] = []
    waiting: list[str] = []
    for number, kind in enumerate(kinds):
        name = f"n{number}"
        if kind == "output" and waiting:
            items.append(output(waiting.pop(0)))
        elif kind in ("call", "reopened", "unheard"):
            items.append(calls(name, "incomplete" if kind == "unheard" else "action_required"))
            waiting += [] if kind == "unheard" else [name]
        elif kind in ("user", "says"):
            items.append(user(name) if kind == "user" else says(name))

    blocks, _ = seed_transcript(items, NOW).blocks()

    for block in blocks:
        in_block = [item.call_id for item in block.items if isinstance(item, FunctionCall)]
        assert [result.call_id for result in block.outputs] == in_block
    sent = [item.call_id for block in blocks for item in block.items if isinstance(item, FunctionCall)]
    assert sent == [item.call_id for item in items if isinstance(item, FunctionCall) and item.status != "incomplete"]
