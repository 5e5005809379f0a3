"""
The documents hold together: their links lead somewhere, their JSON is JSON, and the map of the code has all of it.
"""

import json
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "agent_harness"
DOCUMENTS = [*(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")), *ROOT.glob("docs/*.md")]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_json_block_is_json(path: Path) -> None:
    for block in re.findall(r"^```json\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL):
        json.loads(block)


def slugs(text: str) -> set[str]:
    """
    The anchors that GitHub gives the headings.
    """
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_relative_link_points_to_a_file_and_a_heading(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), target
        assert found.is_relative_to(ROOT), target
        assert not anchor or anchor in slugs(found.read_text()), target


@pytest.mark.parametrize(
    "module", sorted(path for path in PACKAGE.rglob("*.py") if not path.name.startswith("__")), ids=name_of
)
def test_module_has_its_room_in_the_architecture(module: Path) -> None:
    table = (ROOT / "ARCHITECTURE.md").read_text().partition("\n## Rooms\n")[2].partition("\n## ")[0]
    patterns: list[str] = []
    for row in re.findall(r"^\| `.*$", table, re.MULTILINE):
        names = re.findall(r"`([\w*./]+)`", row)
        # A bare name stands for a file in the folder of the room.
        folder = names[0].rpartition("/")[0]
        patterns += [
            f"{name}*" if name.endswith("/") else name if "/" in name else f"{folder}/{name}" for name in names
        ]

    path = module.relative_to(PACKAGE).as_posix()

    assert any(fnmatch(path, pattern.lstrip("/")) for pattern in patterns)


@pytest.mark.parametrize("path", [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *ROOT.glob("docs/*.md")], ids=name_of)
def test_every_python_file_named_exists(path: Path) -> None:
    files = [
        file.relative_to(ROOT).as_posix() for part in ("agent_harness", "tests") for file in (ROOT / part).rglob("*.py")
    ]

    for name in re.findall(r"`([\w*/]+\.py)`", path.read_text()):
        assert any(fnmatch(file, f"*/{name}") or fnmatch(file, name) for file in files), name
