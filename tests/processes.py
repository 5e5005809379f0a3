"""
The command line as users start it: real processes, whose waits are bounded.
"""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import click

from agent_harness.cli import main

__all__ = ["COMMANDS", "ROOT", "START_S", "Program", "environment", "run", "start"]

ROOT = Path(__file__).parents[1]

START_S = 10.0
"""Longest wait for a process to begin its work, in seconds."""


def _leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _leaves(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(_leaves(main))
"""Every command that does something, by what is written for it: ``serve``, and so on."""

URL = re.compile(r"http://[^\s;]+")


def environment(**variables: str) -> dict[str, str]:
    """
    This process's environment with this checkout first, and without what would tell a server about model servers.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "PYTHON"))}
    return {**kept, "PYTHONPATH": str(ROOT), **variables}


@attrs.define
class Program:
    """
    A process that has printed its first line. ``url`` is the first address in it.
    """

    process: asyncio.subprocess.Process
    line: str

    @property
    def url(self) -> str:
        found = URL.search(self.line)
        assert found, self.line
        return found.group()

    async def end(self, number: int | None = None, *, within: float = 5.0) -> tuple[int | None, str, str]:
        """
        Send the signal *number*, if one is given, and wait for the end; the exit code, and what else was printed on
        standard output and standard error.
        """
        if number is not None:
            self.process.send_signal(number)
        async with asyncio.timeout(within):
            output, errors = await self.process.communicate()
        return self.process.returncode, output.decode(), errors.decode()


@asynccontextmanager
async def start(*arguments: str, **variables: str) -> AsyncIterator[Program]:
    """
    ``python -m agent_harness`` with *arguments* and environment *variables*, warnings being errors, once it has printed
    a line; killed at the end, if it still runs.
    """
    process = await _spawn(arguments, variables)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_S):
            line = (await process.stdout.readline()).decode()
        yield Program(process, line)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def run(*arguments: str, **variables: str) -> tuple[int | None, str, str]:
    """
    The same from its start to its end: the exit code, standard output, standard error.
    """
    process = await _spawn(arguments, variables)
    try:
        async with asyncio.timeout(START_S):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    return process.returncode, output.decode(), errors.decode()


async def _spawn(arguments: tuple[str, ...], variables: dict[str, str]) -> asyncio.subprocess.Process:
    # Where no settings file lies about.
    folder = ROOT / "tests"
    return await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-m", "agent_harness", *arguments,
        cwd=folder, env=environment(**variables), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
