"""
Ids that cannot be guessed, and tokens that add up.
"""

from __future__ import annotations

import re

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_harness.protocol.items import FunctionCall, Provenance, Usage, make_id

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
