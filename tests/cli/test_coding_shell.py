"""
Commands: bounded in time and output, and ended with everything they started.
"""

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from agent_harness.coding import CodingTools
from agent_harness.coding.shell import OUTPUT_HEAD, OUTPUT_TAIL
from tests.support import WAIT_S


@pytest.fixture
def tools(tmp_path: Path) -> CodingTools:
    return CodingTools(tmp_path)


class Told:
    """
    A pipe into which a command writes the numbers of its processes.
    """

    def __init__(self, folder: Path) -> None:
        os.mkfifo(folder / "fifo")
        self._fd = os.open(folder / "fifo", os.O_RDONLY | os.O_NONBLOCK)

    async def read(self) -> list[int]:
        assert await is_ready(self._fd), "the command was never begun"
        numbers = [int(word) for word in os.read(self._fd, 1000).split()]
        os.close(self._fd)
        return numbers


async def is_ready(fd: int) -> bool:
    """
    Whether there is something to read within the bound; of a process: whether it has ended.
    """
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(fd, ready.set)
    try:
        async with asyncio.timeout(WAIT_S):
            await ready.wait()
        return True
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(fd)


async def gone(number: int) -> bool:
    """
    Whether the process has ended.
    """
    try:
        fd = os.pidfd_open(number)
    except ProcessLookupError:
        return True
    try:
        return await is_ready(fd)
    finally:
        os.close(fd)


async def test_a_command_runs_in_the_root_without_input(tools: CodingTools, tmp_path: Path) -> None:
    assert await tools.run_bash("pwd; cat; echo problem >&2") == f"{tmp_path.resolve()}\nproblem\n"


@pytest.mark.parametrize(
    "command, output",
    [
        ("true", "[no output]"),
        ("exit 3", "[exit code 3]"),
        ("echo x; false", "x\n[exit code 1]"),
        ("kill -9 $$", "[ended by signal 9]"),
    ],
)
async def test_the_end_is_told(tools: CodingTools, command: str, output: str) -> None:
    assert await tools.run_bash(command) == output


async def test_long_output_keeps_its_beginning_and_its_end(tools: CodingTools) -> None:
    output = await tools.run_bash("echo begin; yes | head -c 1000000; echo end")

    assert output.startswith("begin\n") and output.endswith("end\n")
    assert "bytes left out]" in output
    assert len(output) < OUTPUT_HEAD + OUTPUT_TAIL + 100


async def test_nothing_pages_and_nothing_asks(tools: CodingTools) -> None:
    assert await tools.run_bash("echo $TERM $PAGER $GIT_PAGER $GIT_TERMINAL_PROMPT") == "dumb cat cat 0\n"


async def test_bytes_that_are_no_text_are_shown_as_such(tools: CodingTools) -> None:
    assert await tools.run_bash(r"printf '\xff\n'") == "\ufffd\n"


async def test_a_command_that_takes_too_long_ends_with_its_whole_group(tools: CodingTools, tmp_path: Path) -> None:
    told = Told(tmp_path)
    output = await tools.run_bash("sleep 1000 & (trap '' TERM; sleep 1000) & echo $$ $! $(jobs -p) > fifo; wait", 0.5)

    assert output == "[ended: it took over 0.5 s]"
    for number in await told.read():
        assert await gone(number)


async def test_a_call_that_is_cancelled_ends_its_command_with_its_whole_group(
    tools: CodingTools, tmp_path: Path
) -> None:
    told = Told(tmp_path)
    call = asyncio.create_task(tools.run_bash("sleep 1000 & echo $$ $! > fifo; wait"))
    numbers = await told.read()
    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    for number in numbers:
        assert await gone(number)


async def test_what_is_left_in_the_background_ends_with_the_command(tools: CodingTools) -> None:
    output = await tools.run_bash("sleep 1000 & echo $!")

    assert await gone(int(output))


DAEMON = (
    "(setsid bash -c 'echo $$; exec 0<&- 1>&- 2>&-; trap \"\" TERM HUP; while :; do sleep 1000; done' &) ; sleep 0.3"
)
"""It leaves the group and the pipe, and its parent ends before it."""


@pytest.mark.skipif(sys.platform != "linux", reason="found by /proc")
@pytest.mark.parametrize("command", ["setsid sleep 1000 & echo $!", DAEMON], ids=["setsid", "daemon"])
async def test_what_leaves_the_group_ends_with_the_command(tools: CodingTools, command: str) -> None:
    async with asyncio.timeout(WAIT_S):
        number = int(await tools.run_bash(command))

    assert await gone(number)


@pytest.mark.skipif(sys.platform != "linux", reason="found by /proc")
async def test_what_left_the_group_ends_with_a_call_that_is_cancelled(tools: CodingTools, tmp_path: Path) -> None:
    told = Told(tmp_path)
    call = asyncio.create_task(tools.run_bash("setsid sleep 1000 & echo $$ $! > fifo; wait"))
    numbers = await told.read()
    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    for number in numbers:
        assert await gone(number)


@pytest.mark.skipif(sys.platform != "linux", reason="found by /proc")
async def test_a_command_within_a_command_ends_with_it(
    tools: CodingTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Each is known by its own mark and by those of the commands it runs in; nobody is ended by another's.
    """
    monkeypatch.setenv("AGENT_HARNESS_COMMAND", "outer")
    assert re.fullmatch(r"outer [0-9a-f]{32}\n", await tools.run_bash("echo $AGENT_HARNESS_COMMAND"))

    told = Told(tmp_path)
    other = asyncio.create_task(tools.run_bash("setsid sleep 1000 & echo $! > fifo; wait"))
    [number] = await told.read()
    assert await tools.run_bash("true") == "[no output]"
    os.kill(number, 0)
    other.cancel()
    with pytest.raises(asyncio.CancelledError):
        await other
    assert await gone(number)
