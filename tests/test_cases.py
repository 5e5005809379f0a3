"""
The list of faults met elsewhere and the tests agree about which test holds which.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ID = re.compile(r"\bB[0-9]{3}\b")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "docs" / "cases.md").read_text().splitlines()
    if re.match(r"\| B", line)
]


def test_each_case_has_one_row() -> None:
    ids = [row[0] for row in ROWS]

    assert ids, "no row was found: this test looks for the wrong thing"
    assert all(ID.fullmatch(each) for each in ids)
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row[0]))
def test_case_says_what_happens_and_is_named_where_it_is_tested_or_says_why_it_is_not(row: list[str]) -> None:
    case_id, elsewhere, here, where = row
    files = re.findall(r"`(tests/[\w/]+\.py)`", where)

    assert elsewhere and here
    if files:
        assert ", ".join(f"`{file}`" for file in files) == where
    else:
        assert where == "—"
        assert here.startswith(("Not done yet: ", "Does not apply: "))
    for file in files:
        assert case_id in ID.findall((ROOT / file).read_text()), file


def test_case_that_a_test_names_has_its_row() -> None:
    named = {
        case_id: file.relative_to(ROOT).as_posix()
        for file in sorted((ROOT / "tests").rglob("*.py"))
        for case_id in ID.findall(file.read_text())
    }

    assert {case_id: file for case_id, file in named.items() if case_id not in {row[0] for row in ROWS}} == {}
