"""
How an answer's deltas grow its drafts, which events tell of it, and what item stands there at each moment.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from agent_harness.protocol import events as said
from agent_harness.protocol.answers import finish_draft, grow_draft
from agent_harness.protocol.drafts import Draft
from agent_harness.protocol.items import (
    FunctionCall,
    Message,
    OutputText,
    Provenance,
    Reasoning,
    Refusal,
    SummaryText,
)

HIDDEN = Provenance("openai", "gpt", {"id": "x"})
R = "resp_1"


def make_draft(kind: Any) -> Draft:
    more = {"call_id": "c1", "name": "f", "raw_name": "f"} if kind == "function_call" else {}
    return Draft(id="i", type=kind, response_id=R, output_index=3, created_at=9, **more)


def grow(draft: Draft, *pieces: tuple[str, int, str]) -> list[said.Event]:
    grown = [grow_draft(draft, kind, number, piece) for kind, number, piece in pieces]
    return [event for event in grown if event is not None]


def test_text_grows_by_deltas_and_ends_whole() -> None:
    draft = make_draft("message")

    assert grow(draft, ("text", 0, "Hel"), ("text", 0, "lo")) == [
        said.TextDelta(R, "i", 3, 0, "Hel"),
        said.TextDelta(R, "i", 3, 0, "lo"),
    ]
    assert finish_draft(draft) == [said.TextDone(R, "i", 3, 0, "Hello")]


def test_parts_are_counted_from_zero_in_order_of_first_appearance() -> None:
    draft = make_draft("message")

    told = grow(draft, ("text", 4, "a"), ("refusal", 4, "no"), ("text", 7, "c"), ("text", 4, "b"), ("refusal", 4, "!"))

    assert told == [
        said.TextDelta(R, "i", 3, 0, "a"),
        said.RefusalDelta(R, "i", 3, 1, "no"),
        said.TextDelta(R, "i", 3, 2, "c"),
        said.TextDelta(R, "i", 3, 0, "b"),
        said.RefusalDelta(R, "i", 3, 1, "!"),
    ]
    assert finish_draft(draft) == [
        said.TextDone(R, "i", 3, 0, "ab"),
        said.RefusalDone(R, "i", 3, 1, "no!"),
        said.TextDone(R, "i", 3, 2, "c"),
    ]


def test_summary_grows_part_by_part() -> None:
    draft = make_draft("reasoning")

    assert grow(draft, ("summary", 0, "a"), ("summary", 1, "b")) == [
        said.SummaryDelta(R, "i", 3, 0, "a"),
        said.SummaryDelta(R, "i", 3, 1, "b"),
    ]
    assert finish_draft(draft) == [said.SummaryDone(R, "i", 3, 0, "a"), said.SummaryDone(R, "i", 3, 1, "b")]


def test_arguments_grow_by_deltas_and_end_as_they_were_written() -> None:
    draft = make_draft("function_call")

    assert grow(draft, ("arguments", 0, '{"a"'), ("arguments", 0, ": 1.0}")) == [
        said.ArgumentsDelta(R, "i", 3, '{"a"'),
        said.ArgumentsDelta(R, "i", 3, ": 1.0}"),
    ]
    assert finish_draft(draft) == [said.ArgumentsDone(R, "i", 3, '{"a": 1.0}')]
    assert draft.problem is None


@pytest.mark.parametrize(
    "streamed, whole, kept, problem",
    [
        ("", None, "{}", False),
        ("", "", "{}", False),
        ("", '{"a":1}', '{"a":1}', False),
        ('{"a":', '{"a":1}', '{"a":1}', False),
        ('"{\\"a\\":1}"', None, '{"a": 1}', False),
        ("[1]", None, '{"invalid_arguments":"[1]"}', True),
        ('{"a": ', None, '{"invalid_arguments":"{\\"a\\": "}', True),
    ],
)
def test_arguments_get_the_form_they_are_kept_in(streamed: str, whole: str | None, kept: str, problem: bool) -> None:
    """B054, B057, B059."""
    draft = make_draft("function_call")
    grow(draft, ("arguments", 0, streamed))

    assert finish_draft(draft, arguments=whole) == [said.ArgumentsDone(R, "i", 3, kept)]
    assert (draft.problem is not None) is problem
    item = draft.item("action_required")
    assert isinstance(item, FunctionCall)
    assert item.arguments == kept


@pytest.mark.parametrize(
    "kind, part",
    [("message", "text"), ("message", "refusal"), ("function_call", "arguments"), ("reasoning", "summary")],
)
def test_empty_piece_is_no_event_and_no_part(kind: str, part: str) -> None:
    draft = make_draft(kind)

    assert grow_draft(draft, part, 0, "") is None
    assert draft.item() == make_draft(kind).item()


@pytest.mark.parametrize(
    "kind, part",
    [("message", "arguments"), ("message", "summary"), ("function_call", "text"), ("reasoning", "text")],
)
def test_part_of_another_kind_is_refused(kind: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        grow_draft(make_draft(kind), part, 0, "x")


@pytest.mark.parametrize("kind, part", [("message", "text"), ("function_call", "arguments"), ("reasoning", "summary")])
def test_nothing_is_added_to_a_whole_item(kind: str, part: str) -> None:
    draft = make_draft(kind)
    finish_draft(draft)

    with pytest.raises(ValueError, match="done"):
        grow_draft(draft, part, 0, "x")
    with pytest.raises(ValueError, match="twice"):
        finish_draft(draft)


def test_message_shows_what_it_holds_so_far() -> None:
    draft = make_draft("message")
    assert draft.item() == Message(
        id="i", role="assistant", content=(), origin="model", status="in_progress", response_id=R, created_at=9
    )

    grow(draft, ("text", 0, "a"), ("refusal", 1, "no"), ("text", 0, "b"))
    item = draft.item()
    assert isinstance(item, Message)
    assert item.content == (OutputText("ab"), Refusal("no"))


def test_annotations_belong_to_the_text_part_with_the_models_number() -> None:
    draft = make_draft("message")
    grow(draft, ("text", 5, "a"), ("text", 2, "b"))
    finish_draft(draft, annotations={2: ({"type": "url_citation"},), 9: ({"type": "lost"},)})

    item = draft.item("completed")

    assert isinstance(item, Message)
    assert item.content == (OutputText("a"), OutputText("b", ({"type": "url_citation"},)))


def test_reasoning_shows_its_summary_so_far() -> None:
    draft = make_draft("reasoning")
    grow(draft, ("summary", 0, "a"), ("summary", 1, "b"), ("summary", 0, "c"))

    assert draft.item() == Reasoning(
        id="i", summary=(SummaryText("ac"), SummaryText("b")), status="in_progress", response_id=R, created_at=9
    )


def test_call_shows_its_arguments_as_the_model_writes_them() -> None:
    draft = make_draft("function_call")
    grow(draft, ("arguments", 0, '{"a'))

    assert draft.item() == FunctionCall(
        id="i", call_id="c1", name="f", arguments='{"a', status="in_progress", response_id=R, created_at=9
    )


@pytest.mark.parametrize(
    "kind, status, kept",
    [
        ("message", "completed", True),
        ("reasoning", "completed", True),
        ("message", "incomplete", False),
        ("reasoning", "incomplete", False),
        ("message", "in_progress", False),
        ("function_call", "action_required", True),
        ("function_call", "failed", True),
    ],
)
def test_what_the_provider_gave_is_kept_with_a_whole_item_only(kind: str, status: str, kept: bool) -> None:
    """B014: a cut answer goes back without it."""
    draft = make_draft(kind)
    finish_draft(draft, provenance=HIDDEN)

    item = draft.item(status)

    assert isinstance(item, Message | FunctionCall | Reasoning)
    assert item.provenance == (HIDDEN if kept else None)


def test_what_the_provider_gave_is_kept_without_nul() -> None:
    """B068."""
    draft = make_draft("reasoning")
    finish_draft(draft, provenance=attrs.evolve(HIDDEN, data={"reasoning_content": "a\0"}))

    item = draft.item("completed")

    assert isinstance(item, Reasoning)
    assert item.provenance == attrs.evolve(HIDDEN, data={"reasoning_content": "a\ufffd"})
