"""
Calls are shown before they run, one at a time, and what may change something is asked for.
"""

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_harness.cli.approval import CallRefused, Supervisor
from agent_harness.cli.terminal import Screen
from agent_harness.coding import CodingTools
from agent_harness.functions import Functions


class Person:
    """
    Answers questions, and keeps what stood on the screen when they were asked.
    """

    def __init__(self, stream: io.StringIO, *answers: str) -> None:
        self.answers = list(answers)
        self.seen: list[str] = []
        self._stream = stream

    async def ask(self, question: str) -> str:
        await asyncio.sleep(0)
        self.seen.append(self._stream.getvalue() + question)
        return self.answers.pop(0)


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def watch(tmp_path: Path, stream: io.StringIO) -> Callable[..., dict[str, Any]]:
    def make(person: Person | None, **options: Any) -> dict[str, Any]:
        supervisor = Supervisor(Screen(stream), None if person is None else person.ask, **options)
        return {function.__name__: function for function in supervisor.watch(CodingTools(tmp_path))}

    return make


def test_watched_tools_are_offered_like_the_tools_themselves(
    watch: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    watched = Functions(watch(None).values()).definitions

    assert watched == Functions(CodingTools(tmp_path).functions).definitions


async def test_reading_is_shown_and_not_asked_for(
    watch: Callable[..., dict[str, Any]], tmp_path: Path, stream: io.StringIO
) -> None:
    (tmp_path / "f").write_text("text\n")
    tools = watch(None)

    assert await tools["read_file"](path="f") == "text\n"
    assert await tools["glob_files"](pattern="*") == "f"
    assert await tools["grep_files"](pattern="t") == "f:1:text"
    assert stream.getvalue().startswith('→ read_file(path="f")\n  text\n→ glob_files(pattern="*")\n  f\n')


@pytest.mark.parametrize(
    "name, arguments, shown",
    [
        ("write_file", {"path": "n", "content": "a\nb"}, '→ write_file(path="n")\n  + a\n  + b\n'),
        ("edit_file", {"path": "f", "old_text": "old", "new_text": "new"}, '→ edit_file(path="f")\n  - old\n  + new\n'),
        ("run_bash", {"command": "touch n\necho\x1b[2K"}, "→ run_bash()\n  $ touch n\n  $ echo␛[2K\n"),
    ],
)
async def test_changes_are_shown_before_they_are_asked_for_and_a_no_changes_nothing(
    watch: Callable[..., dict[str, Any]],
    tmp_path: Path,
    stream: io.StringIO,
    name: str,
    arguments: dict[str, Any],
    shown: str,
) -> None:
    (tmp_path / "f").write_text("old")
    person = Person(stream, "maybe", "n")

    with pytest.raises(CallRefused, match="does not allow"):
        await watch(person)[name](**arguments)
    assert person.seen[0] == f"{shown}Run {name}? [y]es, [n]o, [a]lways: "
    assert len(person.seen) == 2  # "maybe" is no answer
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("f", "old")]


@pytest.mark.parametrize("answer", ["y", "YES", " yes "])
async def test_a_yes_runs_the_one_call(
    watch: Callable[..., dict[str, Any]], tmp_path: Path, stream: io.StringIO, answer: str
) -> None:
    tools = watch(Person(stream, answer, ""))

    await tools["write_file"](path="a", content="x")
    with pytest.raises(CallRefused):
        await tools["write_file"](path="b", content="x")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


async def test_always_holds_for_that_tool_alone(watch: Callable[..., dict[str, Any]], stream: io.StringIO) -> None:
    tools = watch(Person(stream, "a", "n"))

    await tools["write_file"](path="a", content="x")
    await tools["write_file"](path="b", content="x")
    with pytest.raises(CallRefused):
        await tools["run_bash"](command="true")


async def test_yes_to_all_asks_nothing(watch: Callable[..., dict[str, Any]]) -> None:
    assert await watch(None, allow_all=True)["run_bash"](command="echo hi") == "hi\n"


async def test_with_nobody_to_ask_changes_are_refused(watch: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(CallRefused, match="nobody can be asked"):
        await watch(None)["write_file"](path="a", content="x")
    assert list(tmp_path.iterdir()) == []


async def test_calls_of_one_answer_run_one_after_another_in_their_order(
    watch: Callable[..., dict[str, Any]], tmp_path: Path, stream: io.StringIO
) -> None:
    functions = Functions(watch(Person(stream, "y", "n", "y")).values())
    calls = [
        functions.run(str(number), "run_bash", f'{{"command": "echo {number} >> log; cat log"}}') for number in range(3)
    ]
    outputs = await asyncio.gather(*calls)

    assert [output.is_error for output in outputs] == [False, True, False]
    assert outputs[1].output == (
        "CallRefused: The user does not allow this call of run_bash. Ask what they want instead, or do without it."
    )
    assert (tmp_path / "log").read_text() == "0\n2\n"
