"""
Ids that cannot be guessed, and tokens that add up.
"""

from __future__ import annotations

import re
from typing import Any, get_args

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_harness.protocol.items import (
    FunctionCall,
    FunctionCallOutput,
    OutputText,
    Part,
    Provenance,
    SummaryText,
    Usage,
    make_id,
)

COUNTS = st.none() | st.integers(0, 1000)
USAGES = st.builds(Usage, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS)


@pytest.mark.parametrize("prefix", ["sess", "resp", "msg", "fc", "fco", "rs"])
def test_id_has_its_prefix_and_96_random_bits(prefix: str) -> None:
    ids = {make_id(prefix) for _ in range(100)}

    assert len(ids) == 100
    assert all(re.fullmatch(rf"{prefix}_[0-9a-f]{{24}}", made) for made in ids)


def test_tokens_add_field_by_field_and_stay_unknown_where_neither_side_reported_them() -> None:
    """B171: unknown is not 0."""
    assert Usage(1, 2, None, None, 5) + Usage(10, None, 30, None, 0) == Usage(11, 2, 30, None, 5)
    assert Usage() + Usage() == Usage()
    assert Usage(0) + Usage() == Usage(0)


@given(first=USAGES, second=USAGES, third=USAGES)
@settings(deadline=None, derandomize=True)
def test_order_of_adding_makes_no_difference(first: Usage, second: Usage, third: Usage) -> None:
    assert first + second == second + first
    assert (first + second) + third == first + (second + third)
    assert first + Usage() == first


def test_items_cannot_be_changed_and_do_not_print_what_is_hidden() -> None:
    call = FunctionCall(
        id="fc_1",
        call_id="c",
        name="f",
        arguments="{}",
        status="completed",
        created_at=0,
        provenance=Provenance("p", "m", {"encrypted_content": "hidden"}),
    )

    assert "hidden" not in repr(call)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        call.status = "failed"  # type: ignore[misc]


@pytest.mark.parametrize("kind", [*get_args(Part), SummaryText], ids=lambda kind: kind.__name__)
def test_every_string_of_a_part_is_kept_without_what_no_provider_takes(kind: Any) -> None:
    """B068, B090."""
    names = [field.name for field in attrs.fields(kind) if field.type in (str, str | None)]
    made = kind(**dict.fromkeys(names, "a\0\ud800"))

    assert names
    assert [getattr(made, name) for name in names] == ["a\ufffd\ufffd"] * len(names)


def test_notes_and_outputs_are_kept_so_too() -> None:
    """B068."""
    output = FunctionCallOutput(id="fco_1", call_id="c", output="a\0", created_at=0)

    assert output.output == "a\ufffd"
    assert OutputText("", ({"a\0": ["b\0"]},)).annotations == ({"a\ufffd": ["b\ufffd"]},)
