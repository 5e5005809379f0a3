"""
``chat`` as a person has it: in a real terminal, with a model that follows a script.
"""

import asyncio
import json
import os
import select
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent_harness.llm.scripted import Step, call, say
from tests.cli.programs import WITHOUT_EXTRAS, Served, call_tool, leave_waiting, serve_mock, serve_script
from tests.cli.tmux import Terminal, open_terminal
from tests.support import WAIT_S, heard

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

INSTALLED = (sys.executable, "-P", "-W", "error", "-m", "agent_harness")
PLAIN = (sys.executable, "-P", "-W", "error", "-c", WITHOUT_EXTRAS)
FLAVOURS = pytest.mark.parametrize("program", [INSTALLED, PLAIN], ids=["with the extra", "without the extra"])

EDIT = {"path": "notes.txt", "old_text": "color: grey", "new_text": "color: teal"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "notes.txt").write_text("name: widget\ncolor: grey\n")
    return tmp_path


@contextmanager
def chatting(server: Served, folder: Path, *options: str, program: tuple[str, ...] = INSTALLED) -> Iterator[Terminal]:
    with open_terminal([*program, "chat", "--url", server.url, *options], folder) as terminal:
        terminal.wait_for("/help lists")
        terminal.wait_for(">")
        yield terminal


def thinking() -> Step:
    """
    An answer that begins and never ends.
    """
    return Step((*say("Let me think").parts[:-1], asyncio.Event()))


@FLAVOURS
def test_an_edit_is_shown_asked_for_and_made(folder: Path, program: tuple[str, ...]) -> None:
    steps = (call_tool("read_file", path="notes.txt"), call_tool("edit_file", **EDIT), say("It is teal now."))
    with serve_script(*steps) as server, chatting(server, folder, "--tools", "coding", program=program) as terminal:
        terminal.type("make it teal")
        asked = terminal.wait_for("Run edit_file? [y]es, [n]o, [a]lways:")
        assert (folder / "notes.txt").read_text() == "name: widget\ncolor: grey\n"
        terminal.type("y")
        done = terminal.wait_for("It is teal now.")
        terminal.press("C-d")
        left = terminal.wait_for_end()

    assert '→ read_file(path="notes.txt")\n  name: widget\n  color: grey\n' in asked
    assert '→ edit_file(path="notes.txt")\n  - color: grey\n  + color: teal\nRun edit_file?' in asked
    assert "\n  edited notes.txt, line 2\nIt is teal now." in done
    assert (folder / "notes.txt").read_text() == "name: widget\ncolor: teal\n"
    assert "Go on with: agent-harness chat --session sess_" in left and left.endswith("exit code 0")


@FLAVOURS
def test_a_no_is_an_error_the_model_acts_on(folder: Path, program: tuple[str, ...]) -> None:
    steps = (call_tool("edit_file", **EDIT), say("Then I leave it."))
    with serve_script(*steps) as server, chatting(server, folder, "--tools", "coding", program=program) as terminal:
        terminal.type("make it teal")
        terminal.wait_for("[a]lways:")
        terminal.type("n")
        terminal.wait_for("Then I leave it.")

        assert heard(server.model, 1)[-1]["output"].startswith("Error: CallRefused: The user does not allow this call")
    assert (folder / "notes.txt").read_text() == "name: widget\ncolor: grey\n"


@FLAVOURS
def test_ctrl_c_ends_the_turn_and_the_session_takes_the_next_message(folder: Path, program: tuple[str, ...]) -> None:
    with (
        serve_script(thinking(), say("Here I am.")) as server,
        chatting(server, folder, program=program) as terminal,
    ):
        terminal.type("think")
        terminal.wait_for("Let me think")
        terminal.press("C-c")
        terminal.wait_for("The turn was interrupted.")
        terminal.type("are you there?")
        terminal.wait_for("Here I am.")
        terminal.type("/quit")
        assert terminal.wait_for_end().endswith("exit code 0")


def test_ctrl_c_right_behind_enter_is_for_the_turn(folder: Path) -> None:
    """
    Whether the line editor still has the terminal or has just given it back.
    """
    with serve_script(*[thinking()] * 5, say("Here I am.")) as server, chatting(server, folder) as terminal:
        for times in range(1, 6):
            terminal.press(f"think {times}", "Enter", "C-c")
            terminal.wait_for("The turn was interrupted.", times=times)
        terminal.type("are you there?")
        terminal.wait_for("Here I am.")


@FLAVOURS
def test_ctrl_c_at_a_question_ends_the_turn_and_runs_nothing(folder: Path, program: tuple[str, ...]) -> None:
    steps = (call_tool("edit_file", **EDIT), say("Here I am."))
    with serve_script(*steps) as server, chatting(server, folder, "--tools", "coding", program=program) as terminal:
        terminal.type("make it teal")
        terminal.wait_for("[a]lways:")
        terminal.press("C-c")
        terminal.wait_for("The turn was interrupted.")
        terminal.type("are you there?")
        terminal.wait_for("Here I am.")
    assert (folder / "notes.txt").read_text() == "name: widget\ncolor: grey\n"


def test_ctrl_c_ends_a_command_that_runs(folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    told = os.open(folder / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    steps = (call_tool("run_bash", command="echo $$ > fifo; exec sleep 1000", timeout_s=600), say("Here I am."))
    with serve_script(*steps) as server, chatting(server, folder, "--tools", "coding") as terminal:
        terminal.type("sleep")
        terminal.wait_for("[a]lways:")
        terminal.type("a")
        assert is_ready(told), "the command was never begun"
        running = os.pidfd_open(int(os.read(told, 100)))
        terminal.press("C-c")
        terminal.wait_for("The turn was interrupted.")
        terminal.type("are you there?")
        terminal.wait_for("Here I am.")

    assert is_ready(running), "the command runs on"
    os.close(running)
    os.close(told)


def is_ready(fd: int) -> bool:
    """
    Whether there is something to read within the bound; of a process: whether it has ended.
    """
    return bool(select.select([fd], [], [], WAIT_S)[0])


@FLAVOURS
def test_ctrl_c_at_the_prompt_warns_and_a_second_one_leaves(folder: Path, program: tuple[str, ...]) -> None:
    with serve_script(say("Hello.")) as server, chatting(server, folder, program=program) as terminal:
        terminal.press("C-c")
        terminal.wait_for("(Ctrl-C again, or Ctrl-D, leaves)")
        terminal.type("still here")
        terminal.wait_for("Hello.")
        terminal.press("C-c")
        terminal.wait_for("(Ctrl-C again, or Ctrl-D, leaves)", times=2)
        terminal.press("C-c")
        assert terminal.wait_for_end().endswith("exit code 0")


@FLAVOURS
def test_ctrl_c_while_the_message_waits_behind_another_turn_gives_the_prompt_back(
    folder: Path, program: tuple[str, ...]
) -> None:
    with serve_script(call("elsewhere", "{}"), say("Here I am.")) as server:
        session = asyncio.run(leave_waiting(server.url))
        with open_terminal([*program, "chat", "--url", server.url, "--session", session], folder) as terminal:
            terminal.wait_for("/interrupt ends it.")
            terminal.wait_for(">")
            terminal.type("are you there?")
            terminal.wait_for("waits behind a running turn")
            terminal.press("C-c")
            terminal.wait_for("the message stays queued")
            terminal.type("/interrupt")
            terminal.wait_for("The turn was interrupted.")
            terminal.type("/quit")
            assert terminal.wait_for_end().endswith("exit code 0")


@FLAVOURS
def test_ctrl_d_at_a_question_is_a_no(folder: Path, program: tuple[str, ...]) -> None:
    steps = (call_tool("edit_file", **EDIT), say("Then I leave it."))
    with serve_script(*steps) as server, chatting(server, folder, "--tools", "coding", program=program) as terminal:
        terminal.type("make it teal")
        terminal.wait_for("[a]lways:")
        terminal.press("C-d")
        terminal.wait_for("Then I leave it.")
    assert (folder / "notes.txt").read_text() == "name: widget\ncolor: grey\n"


def test_what_was_typed_before_a_question_does_not_answer_it(folder: Path) -> None:
    gate = asyncio.Event()
    waits = say("Let me look.") + Step((gate, *call_tool("edit_file", **EDIT).parts))
    with serve_script(waits, say("Done.")) as server, chatting(server, folder, "--tools", "coding") as terminal:
        terminal.type("make it teal")
        terminal.wait_for("Let me look.")
        terminal.type("y")
        terminal.wait_for("\ny")
        server.loop.call_soon_threadsafe(gate.set)
        asked = terminal.wait_for("[a]lways:")
        terminal.type("n")
        terminal.wait_for("Done.")

    assert asked.endswith("[a]lways:")
    assert (folder / "notes.txt").read_text() == "name: widget\ncolor: grey\n"


async def configure(url: str, *responses: dict[str, Any]) -> None:
    async with aiohttp.ClientSession() as client:
        async with client.post(f"{url}/mock/configure", json={"responses": list(responses)}) as answer:
            assert answer.status == 200


@FLAVOURS
async def test_local_edits_a_file_asks_before_and_outlives_ctrl_c(folder: Path, program: tuple[str, ...]) -> None:
    """
    Without a server: the model is at the strict mock model server.
    """
    with serve_mock() as url:
        edit = {"tool_calls": [{"name": "edit_file", "arguments": json.dumps(EDIT)}]}
        late = {"text": "Too late to be heard.", "block": 3}
        await configure(url, edit, {"text": "It is teal now."}, late, {"text": "Here I am."})
        command = [*program, "chat", "--local", "--tools", "coding"]
        variables = {"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": f"{url}/v1"}
        with open_terminal(command, folder, **variables) as terminal:
            await asyncio.to_thread(use_local, terminal, folder)


def use_local(terminal: Terminal, folder: Path) -> None:
    terminal.wait_for(">")
    terminal.type("make it teal")
    terminal.wait_for("Run edit_file? [y]es, [n]o, [a]lways:")
    assert (folder / "notes.txt").read_text() == "name: widget\ncolor: grey\n"
    terminal.type("y")
    terminal.wait_for("It is teal now.")
    assert (folder / "notes.txt").read_text() == "name: widget\ncolor: teal\n"
    terminal.type("think")
    terminal.wait_for("> think")
    terminal.press("C-c")
    terminal.wait_for("The turn was interrupted.")
    terminal.type("are you there?")
    terminal.wait_for("Here I am.")
    terminal.press("C-d")
    left = terminal.wait_for_end()
    assert left.endswith("exit code 0") and "Traceback" not in left


def test_no_color_and_simple_terminals_get_no_styles(folder: Path) -> None:
    with serve_script(say("Hello.")) as server:
        for variables, styled in (({"NO_COLOR": "1"}, False), ({}, True)):
            command = [*INSTALLED, "chat", "--url", server.url]
            with open_terminal(command, folder, **variables) as terminal:
                terminal.wait_for("/help lists")
                shown = terminal.styled_screen()
            assert ("\x1b[" in shown.partition("/help lists")[0]) is styled
