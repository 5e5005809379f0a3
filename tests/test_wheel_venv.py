"""
What a new user has: the built wheel, pytest and pytest-aiohttp in a new virtual environment, and a first test.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STEP_S = 55.0
"""Longest time of one step, in seconds."""

FIRST_TEST = """\
async def test_turn(harness, mock_llm):
    mock_llm.reply("hello there")
    session = await harness.create_session({"model": "default"})
    text = [e.delta async for e in session.run("hi") if e.type == "response.output_text.delta"]
    assert "".join(text) == "hello there"
"""


def run(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST_"))}
    return subprocess.run(
        [str(word) for word in command], cwd=folder, env=kept, capture_output=True, text=True, timeout=STEP_S
    )


def build_wheel(folder: Path) -> Path:
    """
    The wheel of this checkout, from a copy and without network.
    """
    source = folder / "source"
    shutil.copytree(ROOT / "agent_harness", source / "agent_harness", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source)
    built = run(folder, sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, source)
    assert built.returncode == 0, built.stdout + built.stderr
    [wheel] = folder.glob("*.whl")
    return wheel


@pytest.mark.network
def test_first_test_passes_in_a_new_environment_with_the_wheel_pytest_and_pytest_aiohttp(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    venv, suite = tmp_path / "venv", tmp_path / "suite"
    made = run(tmp_path, sys.executable, "-m", "venv", venv)
    assert made.returncode == 0, made.stderr
    python = venv / "bin" / "python"
    asked = run(tmp_path, python, "-m", "pip", "download", "--no-deps", "--retries", "0", "pytest-aiohttp")
    if asked.returncode != 0:
        pytest.skip(f"no package index can be reached: {asked.stderr.strip().splitlines()[-1]}")
    installed = run(tmp_path, python, "-m", "pip", "install", "--no-compile", wheel, "pytest", "pytest-aiohttp")
    assert installed.returncode == 0, installed.stderr
    suite.mkdir()
    (suite / "test_first.py").write_text(FIRST_TEST)
    (suite / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")

    passed = run(suite, python, "-m", "pytest", "-q")
    without = run(suite, python, "-m", "pytest", "-q", "-p", "no:agent_harness")

    assert passed.returncode == 0 and "1 passed" in passed.stdout, passed.stdout + passed.stderr
    assert without.returncode == 1 and "fixture 'harness' not found" in without.stdout
