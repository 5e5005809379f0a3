"""
Finding files by name and lines by pattern, with bounds on everything.
"""

from pathlib import Path

import pytest

from agent_harness.coding import CodingTools
from agent_harness.coding import tools as limits
from agent_harness.coding.grep import InvalidPattern
from agent_harness.coding.patterns import matches, read_pattern


@pytest.fixture
def tools(tmp_path: Path) -> CodingTools:
    for path in ("a.py", "src/b.py", "src/deep/c.py", "src/c.txt", ".git/d.py", "node_modules/e.py", ".hidden/f.py"):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"first\nname = '{path}'\n")
    return CodingTools(tmp_path)


@pytest.mark.parametrize(
    "pattern, path, fits",
    [
        ("*.py", "a.py", True),
        ("*.py", "src/deep/c.py", True),
        ("src/*.py", "src/b.py", True),
        ("src/*.py", "src/deep/c.py", False),
        ("src/**/*.py", "src/b.py", True),
        ("src/**/*.py", "src/deep/c.py", True),
        ("src/**/*.py", "a.py", False),
        ("**/deep/**", "src/deep/c.py", True),
        ("**", "a.py", True),
        ("./a.py", "a.py", True),
        ("[ab].py", "b.py", True),
        ("?.py", "ab.py", False),
        ("*.PY", "a.py", False),
        ("**/**/**/c.py", "src/deep/c.py", True),
    ],
)
def test_pattern_fits(pattern: str, path: str, fits: bool) -> None:
    assert matches(tuple(path.split("/")), read_pattern(pattern)) is fits


def test_a_pattern_of_many_stars_takes_no_time() -> None:
    assert not matches(("a",) * 200, read_pattern("**/a/" * 100 + "b"))


def test_files_are_listed_in_order_without_what_nobody_looks_for(tools: CodingTools) -> None:
    assert tools.glob_files("*.py").split("\n") == ["a.py", ".hidden/f.py", "src/b.py", "src/deep/c.py"]
    assert tools.glob_files("*.py", "src") == "src/b.py\nsrc/deep/c.py"
    assert tools.glob_files("*.py", ".git") == ".git/d.py"
    assert tools.glob_files("*.rs") == "[no file fits]"


def test_long_lists_are_cut_and_say_so(tools: CodingTools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FOUND_MAX", 1)
    assert tools.glob_files("src/**") == "src/b.py\n[2 more files fit]"
    monkeypatch.setattr(limits, "SEEN_MAX", 2)
    assert "[stopped after 2 files" in tools.glob_files("*.rs")


async def test_lines_are_found_with_file_and_number(tools: CodingTools) -> None:
    assert await tools.grep_files(r"NAME = '\w+/", ignore_case=True, files="*.py") == (
        "src/b.py:2:name = 'src/b.py'\nsrc/deep/c.py:2:name = 'src/deep/c.py'"
    )
    assert await tools.grep_files("first", "src/b.py") == "src/b.py:1:first"
    assert await tools.grep_files("nowhere") == "[no line fits]"


async def test_binary_files_are_left_out_of_a_search(tools: CodingTools, tmp_path: Path) -> None:
    (tmp_path / "bin").write_bytes(b"first\0")

    assert "bin" not in await tools.grep_files("first")


async def test_many_and_long_lines_are_cut_and_say_so(
    tools: CodingTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "long").write_text("x" * 10_000 + "\n" + "x\n" * 5)
    monkeypatch.setattr(limits, "FOUND_MAX", 2)

    found = await tools.grep_files("x", "long")
    assert found == f"long:1:{'x' * limits.LINE_MAX}\nlong:2:x\n[only the first 2 lines]"


async def test_a_pattern_that_is_none_is_told(tools: CodingTools) -> None:
    with pytest.raises(InvalidPattern, match="missing"):
        await tools.grep_files("(")


async def test_a_pattern_that_takes_forever_is_stopped_and_holds_nobody_up(
    tools: CodingTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trap").write_text("a" * 100 + "!")
    monkeypatch.setattr(limits, "SEARCH_TIMEOUT_S", 0.5)

    with pytest.raises(InvalidPattern, match="simpler"):
        await tools.grep_files("(a+)+$", "trap")
