"""
Output that cannot be written, as a process in a shell has it.
"""

import asyncio
import json
import shlex
import sys
from pathlib import Path

import pytest

from agent_harness.cli.terminal import is_plain
from tests.cli.programs import Ran, run_cli, serve_demo, serve_mock
from tests.processes import START_S, environment

PROGRAM = shlex.join([sys.executable, "-P", "-W", "error", "-m", "agent_harness"])


async def run_shell(line: str, folder: Path, **variables: str) -> Ran:
    """
    A line for bash, in which ``$PROGRAM`` is the command line.
    """
    shell = await asyncio.create_subprocess_exec(
        "bash", "-o", "pipefail", "-c", line.replace("$PROGRAM", PROGRAM),
        cwd=folder, env=environment(**variables), stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(START_S):
        output, errors = await shell.communicate()
    return Ran(shell.returncode, output.decode(), errors.decode())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("to", ["> /dev/full", ">&-"])
@pytest.mark.parametrize("command", ["--help", "chat --help", "sessions list", "chat --local --demo -m hi", "demo"])
async def test_output_that_cannot_be_written_is_one_line_and_code_1(command: str, to: str, tmp_path: Path) -> None:
    with serve_demo() as url:
        ran = await run_shell(f"$PROGRAM {command} {to}", tmp_path, AGENT_HARNESS_URL=url)

    assert (ran.code, ran.output, ran.errors.count("\n")) == (1, "", 1), ran.errors
    assert ran.errors.startswith("agent-harness: The output cannot be written: ")


async def test_a_reader_that_has_gone_is_code_1_without_a_word(tmp_path: Path) -> None:
    ran = await run_shell("$PROGRAM demo | head -1", tmp_path)

    assert (ran.code, ran.output.count("\n"), ran.errors) == (1, 1, "")


@pytest.mark.parametrize("to", ["2> /dev/full", "2>&-"])
async def test_errors_that_cannot_be_written_change_nothing_else(to: str, tmp_path: Path) -> None:
    with serve_demo() as url:
        well = await run_shell(f"$PROGRAM sessions list {to}", tmp_path, AGENT_HARNESS_URL=url)
    ill = await run_shell(f"$PROGRAM sessions list --url http://127.0.0.1:1 {to}", tmp_path)

    assert (well.code, well.output.split()[0]) == (0, "ID")
    assert (ill.code, ill.output) == (1, "")


def test_an_output_that_was_closed_is_plain() -> None:
    assert is_plain(None)


async def test_a_provider_without_a_key_is_checked_and_nothing_is_logged() -> None:
    with serve_mock() as url:
        ran = await run_cli(
            "providers", "check", "--base-url", f"{url}/v1", "--api", "chat", "--model", "gemma", "--no-key", "--json"
        )

    assert json.loads(ran.output) and "OPENAI_API_KEY" not in ran.output
    assert ran.errors == "" and "provider_auth" not in ran.output
