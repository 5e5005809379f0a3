"""What is shipped: the wheel is built, opened and read."""

import configparser
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHIPPED_FROM = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of this checkout, built without network.

    It is built from a copy, so that nothing is left in the checkout and no earlier build leaks in. The copy holds
    tests/ and scripts/ too, or their absence from the wheel would prove nothing.
    """
    source = tmp_path_factory.mktemp("source")
    for name in SHIPPED_FROM:
        if (ROOT / name).exists():
            shutil.copy2(ROOT / name, source)
    for name in ("agent_harness", "tests", "scripts"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))

    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(source)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    [built] = target.glob("*.whl")
    return zipfile.ZipFile(built)


def read_metadata(wheel: zipfile.ZipFile, name: str) -> str:
    """The text of one file of the wheel's `.dist-info`."""
    [path] = [path for path in wheel.namelist() if path.endswith(f".dist-info/{name}")]
    return wheel.read(path).decode()


def test_wheel_holds_every_module_of_the_package(wheel: zipfile.ZipFile) -> None:
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "agent_harness").rglob("*.py")}

    assert modules
    assert {path for path in wheel.namelist() if path.endswith(".py")} == modules


def test_wheel_says_that_it_is_typed(wheel: zipfile.ZipFile) -> None:
    assert "agent_harness/py.typed" in wheel.namelist()


def test_wheel_holds_the_package_and_its_metadata_only(wheel: zipfile.ZipFile) -> None:
    top = {path.partition("/")[0] for path in wheel.namelist()}

    assert {name for name in top if not name.endswith(".dist-info")} == {"agent_harness"}


def test_wheel_carries_the_licence(wheel: zipfile.ZipFile) -> None:
    assert read_metadata(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_text()


def test_wheel_installs_the_command(wheel: zipfile.ZipFile) -> None:
    entry_points = configparser.ConfigParser()
    entry_points.read_string(read_metadata(wheel, "entry_points.txt"))

    assert entry_points["console_scripts"]["agent-harness"] == "agent_harness.cli:main"


def test_wheel_states_name_python_and_the_pinned_stream_library(wheel: zipfile.ZipFile) -> None:
    lines = read_metadata(wheel, "METADATA").splitlines()

    assert "Name: agent-harness" in lines
    assert "License-Expression: Apache-2.0" in lines
    assert "Requires-Python: >=3.11" in lines
    assert "Requires-Dist: aiohttp-sse<4,>=3.0" in lines
