"""
Pages of lists: each element once, whichever way one walks.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_harness.errors import InvalidRequest
from agent_harness.protocol.pages import make_page
from agent_harness.protocol.requests import Page


def page_of(page: Page, rows: list[str]) -> dict[str, Any]:
    return make_page(page, rows, lambda row: {"id": row}, lambda row: row)


def test_page_without_rows_names_no_ids() -> None:
    assert page_of(Page(), []) == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


@pytest.mark.parametrize(
    "page, ids, has_more",
    [
        (Page(), "abc", False),
        (Page(descending=True), "cba", False),
        (Page(limit=2), "ab", True),
        (Page(limit=3), "abc", False),
        (Page(limit=2, descending=True), "cb", True),
        (Page(after="a"), "bc", False),
        (Page(limit=1, after="a"), "b", True),
        (Page(after="b", descending=True), "a", False),
        (Page(after="c"), "", False),
    ],
)
def test_page_is_the_part_that_was_asked_for(page: Page, ids: str, has_more: bool) -> None:
    answer = page_of(page, ["a", "b", "c"])

    assert [row["id"] for row in answer["data"]] == list(ids)
    assert answer["first_id"] == (ids[0] if ids else None)
    assert answer["last_id"] == (ids[-1] if ids else None)
    assert answer["has_more"] is has_more


@pytest.mark.parametrize("after", ["", "x", "A"])
def test_unknown_after_is_refused(after: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        page_of(Page(after=after), ["a", "b"])

    assert (caught.value.code, caught.value.param) == ("invalid_value", "after")


@given(count=st.integers(0, 30), limit=st.integers(1, 7), descending=st.booleans())
@settings(deadline=None, derandomize=True)
def test_walking_by_last_id_meets_every_row_once(count: int, limit: int, descending: bool) -> None:
    rows = [f"row{number}" for number in range(count)]
    met: list[str] = []
    after = None
    more = True
    while more:
        answer = page_of(Page(limit, after, descending), rows)
        met += [row["id"] for row in answer["data"]]
        after, more = answer["last_id"], answer["has_more"]

    assert met == (rows[::-1] if descending else rows)
