"""The scripts can be started, and say what is wrong when they cannot do their work."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [*sorted(path for path in (ROOT / "scripts").iterdir() if path.is_file()), ROOT / ".ci" / "run"]
# A name with an underscore in front is read by other scripts and not started.
STARTED = [path for path in FILES if not path.name.startswith("_")]
BASH = [path for path in FILES if path not in STARTED or path.read_text().startswith("#!/usr/bin/env bash\n")]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def put_on_path(directory: Path, name: str, text: str) -> None:
    """Make an executable shell script `name` in `directory`."""
    script = directory / name
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A directory for PATH with what the scripts need of the system, and no Python."""
    directory = tmp_path / "commands"
    directory.mkdir()
    for name in ("bash", "cat", "cksum", "dirname", "flock", "ls", "mkdir", "paste", "rm", "sed", "sort"):
        if found := shutil.which(name):
            (directory / name).symlink_to(found)
    return directory


def run_serve(commands: Path, venv: Path) -> subprocess.CompletedProcess[str]:
    """Start scripts/serve from another directory, with `commands` for PATH and `venv` for its environment."""
    return subprocess.run(
        [str(ROOT / "scripts" / "serve"), "--help"],
        cwd=commands,
        env={"PATH": str(commands), "AGENT_HARNESS_VENV": str(venv)},
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_the_promised_scripts_are_there() -> None:
    assert {"check", "demo", "serve", "test"} <= {path.name for path in STARTED}


@pytest.mark.parametrize("path", STARTED, ids=name_of)
def test_script_is_executable_and_names_its_interpreter(path: Path) -> None:
    assert os.access(path, os.X_OK)
    assert path.read_text().startswith("#!/usr/bin/env ")


@pytest.mark.parametrize("path", BASH, ids=name_of)
def test_script_is_valid_bash(path: Path) -> None:
    result = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, timeout=30)

    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("path", [path for path in BASH if path in STARTED], ids=name_of)
def test_script_stops_at_the_first_failure(path: Path) -> None:
    assert "\nset -euo pipefail\n" in path.read_text()


def test_script_says_in_one_line_that_no_python_is_new_enough(commands: Path, tmp_path: Path) -> None:
    put_on_path(commands, "python3", "exit 1")

    result = run_serve(commands, tmp_path / "venv")

    assert (result.returncode, result.stderr) == (1, "agent-harness: no Python 3.11 or newer on PATH\n")


def test_script_says_in_one_line_that_python_cannot_make_environments(commands: Path, tmp_path: Path) -> None:
    put_on_path(commands, "python3", 'case "$2" in *venv*) exit 1 ;; esac')

    result = run_serve(commands, tmp_path / "venv")

    assert result.returncode == 1
    assert result.stderr.startswith("agent-harness: python3 lacks the venv module")
    assert result.stderr.count("\n") == 1


def test_script_does_not_empty_a_directory_that_is_no_environment(commands: Path, tmp_path: Path) -> None:
    put_on_path(commands, "python3", "")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "letter").write_text("dear")

    result = run_serve(commands, precious)

    assert (result.returncode, result.stderr) == (1, f"agent-harness: {precious} is not a virtual environment\n")
    assert list(precious.iterdir()) == [precious / "letter"]


def test_script_shows_what_pip_printed_when_the_installation_fails(commands: Path, tmp_path: Path) -> None:
    # An environment whose pip is there and always fails.
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").touch()
    put_on_path(venv / "bin", "python", '[ "$2" != pip ] || { echo "no matching distribution"; exit 1; }')

    result = run_serve(commands, venv)

    assert result.returncode == 1
    assert "no matching distribution\n" in result.stderr
    assert not (venv / "agent-harness.source").exists()
