"""
What the guides show runs as it stands, and prints what they say.

The Python blocks of a page are one program; the ``text`` blocks are what it prints. A block with ``file=`` is a file
beside it, and test files are run by pytest. A server that a page starts is started, on a free port.
"""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("quick-start", "embedding", "testing")
RUN_S = 60.0
PLUGIN = "agent_harness.testing.plugin"
ADDRESS = "http://127.0.0.1:8787"
SERVER = "agent-harness serve --demo"


def blocks(page: str) -> list[tuple[str, str, str]]:
    """
    Language, file name ("" without one) and text of every block.
    """
    text = (ROOT / "docs" / f"{page}.md").read_text()
    return re.findall(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def program_of(page: str) -> str:
    return "\n".join(text for language, name, text in blocks(page) if language == "python" and not name)


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "PYTHON", "PYTEST_"))}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=RUN_S)


@contextmanager
def serving(folder: Path, port: int) -> Iterator[None]:
    """
    The demo server, from its first line on.
    """
    command = [sys.executable, "-W", "error", "-m", "agent_harness", *SERVER.split()[1:], "--port", str(port)]
    with subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert str(port) in process.stdout.readline()
            yield
        finally:
            process.terminate()
            process.communicate(timeout=RUN_S)
    assert process.returncode == 0


@pytest.mark.parametrize("page", [page for page in PAGES if program_of(page)])
def test_the_program_of_a_page_prints_what_it_says(page: str, tmp_path: Path, unused_tcp_port: int) -> None:
    found, program = blocks(page), program_of(page)
    if "import uvloop" in program and importlib.util.find_spec("uvloop") is None:
        pytest.skip("uvloop is not installed")
    serve = any(SERVER in text for language, _, text in found if language == "sh")
    (tmp_path / "program.py").write_text(program.replace(ADDRESS, f"http://127.0.0.1:{unused_tcp_port}"))

    with serving(tmp_path, unused_tcp_port) if serve else nullcontext():
        done = run(tmp_path, "program.py")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "".join(text for language, _, text in found if language == "text")


@pytest.mark.parametrize("page", [page for page in PAGES if any(name for _, name, _ in blocks(page))])
def test_the_files_of_a_page_are_a_suite_that_passes(page: str, tmp_path: Path) -> None:
    for _, name, text in blocks(page):
        if name:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
    # Where agent-harness is installed, its entry point has loaded the plugin already; this names it where it is not.
    installed = [found.value for found in importlib.metadata.entry_points(group="pytest11")]
    named = () if PLUGIN in installed else ("-p", PLUGIN)

    done = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", *named)

    assert done.returncode == 0, done.stdout + done.stderr
    written = sum(
        len(re.findall(r"^(?:async )?def test_", text, re.MULTILINE)) for _, name, text in blocks(page) if name
    )
    assert f"{written} passed" in done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_executed_compared_or_a_known_command(page: str) -> None:
    for language, name, text in blocks(page):
        assert name or language in ("python", "text", "sh")
        if language == "sh":
            assert text.strip() in ("pip install agent-harness", SERVER)
