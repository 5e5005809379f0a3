"""The package is light to import, and its public names are what it says they are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import agent_harness

ROOT = Path(__file__).parents[1]
ROUNDS = 7


def run_python(code: str) -> str:
    """Run `code` in a new interpreter that finds this checkout first; return what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout


def loaded_by(statement: str) -> set[str]:
    """The top-level modules in `sys.modules` after `statement`."""
    printed = run_python(f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})")
    return set(printed.split())


def seconds_to(statement: str) -> float:
    """How long `statement` takes in a new interpreter, without the interpreter's own start."""
    clocked = f"from time import perf_counter\nstart = perf_counter()\n{statement}\nprint(perf_counter() - start)"
    return float(run_python(clocked))


def test_importing_the_package_loads_no_vendor_no_server_and_no_codec() -> None:
    loaded = loaded_by("import agent_harness")

    assert "agent_harness" in loaded
    assert loaded & {"openai", "httpx2", "pydantic", "aiohttp", "aiohttp_sse", "cattrs", "click"} == set()


def test_importing_every_module_loads_no_vendor() -> None:
    loaded = loaded_by(
        "import agent_harness, importlib, pkgutil\n"
        "for found in pkgutil.walk_packages(agent_harness.__path__, 'agent_harness.'):\n"
        "    if not found.name.endswith('.__main__'):\n"
        "        importlib.import_module(found.name)\n"
    )

    assert loaded & {"openai", "httpx2"} == set()


def test_importing_the_package_costs_less_than_importing_asyncio_and_cattrs() -> None:
    # In turns, and the least of each: what else the machine does falls on both, and never makes anything faster.
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(seconds_to("import agent_harness"))
        theirs.append(seconds_to("import asyncio, cattrs"))

    assert min(ours) < min(theirs)


def test_public_names_are_sorted_and_named_once() -> None:
    assert list(agent_harness.__all__) == sorted(set(agent_harness.__all__))


@pytest.mark.parametrize("name", agent_harness.__all__)
def test_public_name_resolves_and_is_listed(name: str) -> None:
    assert getattr(agent_harness, name) is not None
    assert name in dir(agent_harness)


def test_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = agent_harness.no_such_name
