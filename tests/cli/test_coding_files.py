"""
Reading, writing and editing: exact, bounded, whole or not at all.
"""

import os
import stat
from pathlib import Path

import pytest

from agent_harness.coding import CHANGING, CodingTools, FileRefused
from agent_harness.coding import tools as limits
from agent_harness.functions import Functions


@pytest.fixture
def tools(tmp_path: Path) -> CodingTools:
    return CodingTools(tmp_path)


def test_the_tools_are_offered_under_their_names_with_descriptions(tools: CodingTools) -> None:
    offered = Functions(tools.functions).definitions

    names = ["read_file", "write_file", "edit_file", "glob_files", "grep_files", "run_bash"]
    assert [definition["name"] for definition in offered] == names
    assert set(names) > CHANGING == {"write_file", "edit_file", "run_bash"}
    for definition in offered:
        assert definition["description"]
        for parameter in definition["parameters"]["properties"].values():
            assert parameter["description"]


@pytest.mark.parametrize("text", ["one\ntwo\n", "no end", "\r\nwindows\r\n", "\ufeffmark", "a\u2028b\x0c\n", "\n\n"])
def test_what_is_written_is_read_exactly(tools: CodingTools, text: str) -> None:
    tools.write_file("deep/er/file.txt", text)

    assert tools.read_file("deep/er/file.txt") == text


def test_a_part_of_a_file_is_told_as_one(tools: CodingTools) -> None:
    tools.write_file("f", "1\n2\n3\n4\n")

    assert tools.read_file("f", first_line=2, line_count=2) == "2\n3\n[lines 2 to 3 of 4]"
    assert tools.read_file("f", first_line=3) == "3\n4\n"
    with pytest.raises(FileRefused, match="4 lines"):
        tools.read_file("f", first_line=5)


def test_a_long_text_is_cut_and_says_where(tools: CodingTools) -> None:
    tools.write_file("f", "x" * limits.READ_MAX + "\nend\n")

    read = tools.read_file("f")
    assert len(read) < limits.READ_MAX + 100
    assert read.endswith("[cut in line 1 of 2, after 100,000 characters]")


def test_an_empty_file_is_told(tools: CodingTools, tmp_path: Path) -> None:
    (tmp_path / "f").touch()

    assert tools.read_file("f") == "[the file is empty]"


@pytest.mark.parametrize("data", [b"\x7fELF\0\0", b"\xff\xfe\x00\x41", b"caf\xe9"], ids=repr)
def test_a_binary_file_is_told_and_neither_shown_nor_edited(tools: CodingTools, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "f").write_bytes(data)

    with pytest.raises(FileRefused, match="binary"):
        tools.read_file("f")
    with pytest.raises(FileRefused, match="binary"):
        tools.edit_file("f", "caf", "x")
    assert (tmp_path / "f").read_bytes() == data


def test_a_file_over_the_bound_is_neither_read_nor_written(
    tools: CodingTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FILE_MAX", 10)
    (tmp_path / "f").write_text("x" * 11)

    with pytest.raises(ValueError, match="more than 10 bytes"):
        tools.read_file("f")
    with pytest.raises(FileRefused, match="11 bytes"):
        tools.write_file("g", "x" * 11)
    assert not (tmp_path / "g").exists()


def test_an_edit_replaces_the_one_place_and_nothing_else(tools: CodingTools, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a\r\nb\r\nc")

    assert tools.edit_file("f", "b\r\n", "B\n") == "edited f, line 2"
    assert (tmp_path / "f").read_bytes() == b"a\r\nB\nc"


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("absent", "x", "does not stand in f"),
        ("a", "x", "more than once"),
        ("aa", "x", "more than once"),  # twice in aaa, one over the other
        ("", "x", "empty"),
        ("end", "end", "the same"),
        ("aaa\nend", "x", "end with"),
    ],
)
def test_an_edit_that_does_not_fit_changes_nothing_and_says_why(
    tools: CodingTools, tmp_path: Path, old: str, new: str, said: str
) -> None:
    (tmp_path / "f").write_bytes(b"aaa\r\nend\r\n")

    with pytest.raises(FileRefused, match=said):
        tools.edit_file("f", old, new)
    assert (tmp_path / "f").read_bytes() == b"aaa\r\nend\r\n"


def test_a_file_that_is_replaced_keeps_its_mode(tools: CodingTools, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    (tmp_path / "f").chmod(0o754)
    tools.edit_file("f", "old", "new")

    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o754


def test_a_file_that_is_read_only_is_not_replaced(tools: CodingTools, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    (tmp_path / "f").chmod(0o444)

    with pytest.raises(PermissionError, match="f: it is read-only"):
        tools.write_file("f", "new")
    assert (tmp_path / "f").read_text() == "old"


def test_a_write_that_fails_leaves_the_file_and_nothing_beside_it(
    tools: CodingTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_text("old")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="f: No space left"):
        tools.write_file("f", "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("f", "old")]


def test_failures_name_the_path_that_was_given(tools: CodingTools) -> None:
    with pytest.raises(FileNotFoundError, match=r"^a/b: No such file or directory$"):
        tools.read_file("a/b")
