"""
Nothing outside the root is read or written, whatever the path and whoever changes the folder meanwhile.
"""

import os
from pathlib import Path

import pytest

from agent_harness.coding import CodingTools, PathRefused, Root

SECRET = "the secret"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text(SECRET)
    return folder


@pytest.fixture
def root(tmp_path: Path, outside: Path) -> Path:
    """
    A folder with links of all kinds in it; beside it one whose name begins like its own.
    """
    folder = tmp_path / "root"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("inside\n")
    (folder / "sub" / "b.txt").write_text("below\n")
    (tmp_path / "root-two").mkdir()
    (tmp_path / "root-two" / "secret.txt").write_text(SECRET)
    (folder / "out-file").symlink_to(outside / "secret.txt")
    (folder / "out-folder").symlink_to(outside)
    (folder / "relative-out").symlink_to("../outside/secret.txt")
    (folder / "neighbour").symlink_to("../root-two")
    (folder / "nowhere-out").symlink_to(outside / "new.txt")
    (folder / "loop").symlink_to("loop")
    (folder / "chain").symlink_to("out-folder")
    (folder / "in-file").symlink_to("sub/b.txt")
    (folder / "in-folder").symlink_to("sub")
    return folder


HOSTILE = [
    "/etc/passwd",
    "/",
    "//etc/passwd",
    "..",
    "../outside/secret.txt",
    "../root-two/secret.txt",
    "sub/../../outside/secret.txt",
    "sub/../a.txt",
    "./../outside/secret.txt",
    "sub/..",
    "~/secret.txt",
    "~root/secret.txt",
    "out-file",
    "out-folder/secret.txt",
    "out-folder/new.txt",
    "out-folder/new/new.txt",
    "relative-out",
    "neighbour/secret.txt",
    "nowhere-out",
    "chain/secret.txt",
    "in-folder/../../outside/secret.txt",
    "loop",
    "loop/secret.txt",
    "",
    "a.txt\0",
    "\0",
    "/proc/self/root/etc/passwd",
    "\ud800",
]


def absolute_inside(root: Path) -> str:
    return str(root / "a.txt")


def everything(folder: Path) -> dict[str, str]:
    return {str(path): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("path", HOSTILE, ids=repr)
async def test_hostile_path_is_refused_by_every_tool_and_nothing_changes(
    root: Path, outside: Path, tmp_path: Path, path: str
) -> None:
    tools, before = CodingTools(root), everything(tmp_path)

    for attempt in (
        lambda: tools.read_file(path),
        lambda: tools.write_file(path, "overwritten"),
        lambda: tools.edit_file(path, "secret", "overwritten"),
        lambda: tools.glob_files("**", path),
    ):
        with pytest.raises((PathRefused, OSError)) as caught:
            attempt()
        assert SECRET not in str(caught.value)
    with pytest.raises((PathRefused, OSError)):
        await tools.grep_files("secret", path)
    assert everything(tmp_path) == before
    assert sorted(found.name for found in outside.iterdir()) == ["secret.txt"]


@pytest.mark.parametrize("path", [path for path in HOSTILE if path not in ("loop", "loop/secret.txt")], ids=repr)
def test_hostile_path_is_told_as_refused_and_not_as_absent(root: Path, path: str) -> None:
    with pytest.raises(PathRefused):
        Root(root).locate(path)


def test_an_absolute_path_is_refused_even_inside_the_root(root: Path) -> None:
    with pytest.raises(PathRefused, match="not relative"):
        CodingTools(root).read_file(absolute_inside(root))


@pytest.mark.parametrize("pattern", ["/etc/*", "../*", "sub/../../**", "~/*", ""])
def test_hostile_pattern_is_refused(root: Path, pattern: str) -> None:
    with pytest.raises(PathRefused):
        CodingTools(root).glob_files(pattern)


async def test_links_that_stay_inside_work(root: Path) -> None:
    tools = CodingTools(root)

    assert tools.read_file("in-file") == "below\n"
    assert tools.read_file("in-folder/b.txt") == "below\n"
    tools.write_file("in-file", "changed\n")
    assert (root / "in-file").is_symlink()
    assert (root / "sub" / "b.txt").read_text() == "changed\n"


async def test_searches_neither_follow_links_nor_read_them(root: Path) -> None:
    tools = CodingTools(root)

    assert tools.glob_files("**/*.txt").split("\n") == ["a.txt", "sub/b.txt"]
    assert await tools.grep_files("secret|inside|below") == "a.txt:1:inside\nsub/b.txt:1:below"


def test_a_root_that_is_itself_a_link_is_resolved_once(root: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(root)

    assert CodingTools(link).read_file("a.txt") == "inside\n"


@pytest.mark.parametrize("path", ["sub", ".", "fifo", "null"])
def test_what_is_no_plain_file_is_neither_read_nor_replaced(root: Path, path: str) -> None:
    os.mkfifo(root / "fifo")
    (root / "null").symlink_to("/dev/null")
    tools = CodingTools(root)

    with pytest.raises((PathRefused, IsADirectoryError)):
        tools.read_file(path)
    with pytest.raises((PathRefused, IsADirectoryError)):
        tools.write_file(path, "x")


# Races: the folder changes between the look at a path and its use.


def swap(root: Path, name: str, target: Path) -> None:
    (root / name).rename(root / f"{name}.was")
    (root / name).symlink_to(target)


@pytest.mark.parametrize("name, path", [("a.txt", "a.txt"), ("sub", "sub/secret.txt"), ("sub", "sub/b.txt")])
def test_a_part_that_becomes_a_link_after_it_was_resolved_is_not_followed(
    root: Path, outside: Path, name: str, path: str
) -> None:
    held = Root(root)
    parts = held.locate(path)
    swap(root, name, outside / "secret.txt" if name == path else outside)

    with pytest.raises((PathRefused, NotADirectoryError)):
        held.read(parts, 1_000)


@pytest.mark.parametrize("path", ["sub/secret.txt", "sub/new.txt", "sub/deep/new.txt"])
def test_a_folder_that_becomes_a_link_is_not_written_through(root: Path, outside: Path, path: str) -> None:
    held = Root(root)
    parts = held.locate(path)
    swap(root, "sub", outside)

    with pytest.raises((PathRefused, NotADirectoryError)):
        held.replace(parts, b"overwritten")
    assert everything(outside) == {str(outside / "secret.txt"): SECRET}


def test_a_file_that_becomes_a_link_is_not_written_through(root: Path, outside: Path) -> None:
    held = Root(root)
    parts = held.locate("a.txt")
    swap(root, "a.txt", outside / "secret.txt")

    with pytest.raises(PathRefused):
        held.replace(parts, b"overwritten")
    assert everything(outside) == {str(outside / "secret.txt"): SECRET}


def test_a_file_that_becomes_a_link_at_the_last_moment_is_replaced_and_not_followed(
    root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Between the look at what is there and the rename: the link goes, what it led to stays.
    """
    replace = os.replace

    def swap_first(source: str, target: str, **folders: int) -> None:
        (root / "a.txt").unlink()
        (root / "a.txt").symlink_to(outside / "secret.txt")
        replace(source, target, **folders)

    monkeypatch.setattr(os, "replace", swap_first)
    Root(root).replace(("a.txt",), b"new")

    assert (root / "a.txt").read_text() == "new" and not (root / "a.txt").is_symlink()
    assert everything(outside) == {str(outside / "secret.txt"): SECRET}


def test_a_folder_that_becomes_a_link_during_a_walk_is_left_out(root: Path, outside: Path) -> None:
    entries = Root(root).walk(())
    first = next(entries)
    swap(root, "sub", outside)

    assert "secret.txt" not in str([first, *entries])


def test_no_descriptor_is_left_open(root: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    tools = CodingTools(root)
    for path in ("a.txt", "sub/b.txt", "out-file", "sub", "nothing/at/all", "loop"):
        try:
            tools.read_file(path)
        except (OSError, ValueError):
            pass
    tools.write_file("x/y/z.txt", "x")
    tools.glob_files("**")

    assert before == (len(os.listdir("/proc/self/fd")) if before else 0)
