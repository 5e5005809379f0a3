"""
``chat`` with one message, and with input that is no terminal, as a process against a real server.
"""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_harness.errors import ModelError
from agent_harness.llm.base import Ended
from agent_harness.llm.scripted import Step, call, say
from tests.cli.programs import call_tool, leave_waiting, run_cli, serve_mock, serve_script
from tests.processes import START_S, environment, start
from tests.support import heard


def fail(code: str, message: str) -> ModelError:
    return ModelError(message, code=code)


async def test_one_message_prints_the_answer_alone_and_ends_with_0() -> None:
    with serve_script(say("It is ", "\x1b[31mteal\x1b]0;x\x07.")) as server:
        ran = await run_cli("chat", "-m", "What color?", "--url", server.url)

    assert (ran.code, ran.output) == (0, "It is ␛[31mteal␛]0;x␇.\n")
    assert heard(server.model, 0) == [{"type": "message", "role": "user", "content": "What color?"}]
    assert ran.errors.startswith("Session sess_") and ran.errors.count("\n") == 1


async def test_a_message_can_come_from_input_and_a_session_be_gone_on_with() -> None:
    with serve_script(say("One."), say("Two.")) as server:
        first = await run_cli("chat", "-m", "first", AGENT_HARNESS_URL=server.url)
        session = first.errors.split()[1]
        second = await run_cli(
            "chat", "-m", "-", "--session", session, given="second\nline\n", AGENT_HARNESS_URL=server.url
        )

    assert (second.code, second.output, second.errors) == (0, "Two.\n", "")
    assert [item["content"] for item in heard(server.model, 1)] == ["first", "One.", "second\nline"]


async def test_with_json_each_event_is_a_line() -> None:
    with serve_script(say("It is ", "\x9b31mteal.")) as server:
        ran = await run_cli("chat", "-m", "What color?", "--json", "--url", server.url)

    events = [json.loads(line) for line in ran.output.splitlines()]
    assert ran.code == 0 and "\x9b" not in ran.output
    assert [event["type"] for event in events][:3] == ["session.item", "session.status", "response.created"]
    assert events[-1]["type"] == "response.completed" and events[-1]["response"]["status"] == "completed"
    assert "".join(event.get("delta", "") for event in events) == "It is \x9b31mteal."


@pytest.mark.parametrize(
    "step, said",
    [
        (fail("provider_auth", "No key is set."), "The turn failed (provider_auth): No key is set. Set the"),
        (
            fail("provider_rejected", "The model `nope` does not exist."),
            "The turn failed (provider_rejected): The model `nope` does not exist. Check --model",
        ),
        (
            fail("provider_unavailable", "It cannot be reached"),
            "The turn failed (provider_unavailable): It cannot be reached. ",
        ),
        (fail("internal_error", "two\nlines \x1b[2J"), "The turn failed (internal_error): two lines ␛[2J."),
        (say("Half") + Step((Ended("max_output_tokens"),)), "The answer was cut short (max_output_tokens)."),
    ],
    ids=["missing key", "unknown model", "unreachable provider", "text of many lines", "cut"],
)
async def test_a_turn_that_does_not_end_well_is_one_line_and_code_1(step: Any, said: str) -> None:
    with serve_script(step) as server:
        ran = await run_cli("chat", "-m", "hi", "--url", server.url)

    assert ran.code == 1
    lines = ran.errors.splitlines()
    assert len(lines) == 2 and lines[1].startswith(f"agent-harness: {said}")


async def test_a_server_that_is_not_there_is_one_line_and_code_1() -> None:
    ran = await run_cli("chat", "-m", "hi", "--url", "http://127.0.0.1:1")

    assert (ran.code, ran.output, ran.errors.count("\n")) == (1, "", 1)
    assert "cannot be reached" in ran.errors and "agent-harness serve" in ran.errors


@pytest.mark.parametrize(
    "arguments",
    [("--session", "sess_no"), ("--agent", "nobody")],
    ids=" ".join,
)
async def test_what_the_server_does_not_have_is_one_line_and_code_1(arguments: tuple[str, ...]) -> None:
    with serve_script() as server:
        ran = await run_cli("chat", "-m", "hi", *arguments, "--url", server.url)

    assert (ran.code, ran.output, ran.errors.count("\n")) == (1, "", 1)
    assert ran.errors.startswith("agent-harness: Th")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--local", "--session", "sess_1"),
        ("--local", "--url", "http://127.0.0.1:8787"),
        ("--local", "--api-key", "k"),
        ("--demo",),
        ("--config", "x.toml"),
        ("--api", "chat"),
        ("--no-key",),
        ("--session", "sess_1", "--model", "m"),
        ("--agent", "a", "--model", "m"),
        ("--json",),
        ("--yes",),
        ("--root", "."),
        ("--tools", "gardening"),
        ("--tools", "coding", "--root", "/no/such/folder"),
    ],
    ids=" ".join,
)
async def test_options_that_do_not_go_together_are_code_2(arguments: tuple[str, ...]) -> None:
    ran = await run_cli("chat", *arguments)

    assert (ran.code, ran.output) == (2, "")
    assert "Usage:" in ran.errors and "Traceback" not in ran.errors


async def test_wrong_settings_of_a_local_chat_are_one_line_and_code_2(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[limits]\nsessions = 'many'\n")
    no_key = await run_cli("chat", "--local", "-m", "hi")
    malformed = await run_cli("chat", "--local", "-m", "hi", "--config", "bad.toml", cwd=tmp_path)
    empty = await run_cli("chat", "--local", "--demo", "-m", "-")

    for ran, said in (
        (no_key, "No OPENAI_API_KEY is set; "),
        (malformed, "bad.toml, line 2: limits.sessions: "),
        (empty, "The message is empty; "),
    ):
        assert (ran.code, ran.output, ran.errors.count("\n")) == (2, "", 1)
        assert ran.errors.startswith(f"agent-harness: {said}")


async def test_local_talks_with_the_demo_model_and_says_nothing_else() -> None:
    ran = await run_cli("chat", "--local", "--demo", "-m", "hi")

    assert (ran.code, ran.errors) == (0, "")
    assert ran.output.startswith("You said: 'hi'.")


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_local_asks_the_model_server_of_the_settings(api: str, tmp_path: Path) -> None:
    import aiohttp

    with serve_mock() as url:
        script = {
            "responses": [
                {"tool_calls": [{"name": "write_file", "arguments": '{"path": "n", "content": "new"}'}]},
                {"text": "Done."},
            ]
        }
        async with aiohttp.ClientSession() as client:
            await client.post(f"{url}/mock/configure", json=script)
        variables = {"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": f"{url}/v1"}
        ran = await run_cli(
            "chat", "--local", "--api", api, "--model", "small", "--tools", "coding", "--yes", "-m", "go",
            cwd=tmp_path, **variables,
        )  # fmt: skip

    assert (ran.code, ran.output) == (0, "Done.\n")
    assert ran.errors == '→ write_file(path="n")\n  + new\n  wrote 3 bytes to n\n'
    assert (tmp_path / "n").read_text() == "new"


async def test_an_unreachable_provider_of_a_local_chat_is_told_and_code_1(tmp_path: Path) -> None:
    (tmp_path / "agent-harness.toml").write_text(
        '[providers.x]\nbase_url = "http://127.0.0.1:1/v1"\nmax_retries = 0\nneeds_key = false\n'
    )
    ran = await run_cli("chat", "--local", "-m", "hi", cwd=tmp_path)

    assert (ran.code, ran.output, ran.errors.count("\n")) == (1, "", 1)
    assert ran.errors.startswith("agent-harness: The turn failed (provider_unavailable): ")


# Tools, with nobody to ask.


async def test_tools_run_here_and_what_needs_consent_is_refused_as_an_error_the_model_reads(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("content of a\n")
    steps = (
        call_tool("read_file", path="a.txt"),
        call_tool("read_file", path="../../etc/passwd"),
        call_tool("write_file", path="b.txt", content="x"),
        say("I could not."),
    )
    with serve_script(*steps) as server:
        ran = await run_cli("chat", "-m", "go", "--tools", "coding", "--root", str(tmp_path), "--url", server.url)

    assert (ran.code, ran.output) == (0, "I could not.\n")
    outputs = [item["output"] for item in heard(server.model, 3) if item["type"] == "function_call_output"]
    assert outputs[0] == "content of a\n"
    assert outputs[1].startswith("Error: PathRefused: ../../etc/passwd goes up")
    assert outputs[2].startswith("Error: CallRefused: write_file needs a person's consent")
    assert list(tmp_path.iterdir()) == [tmp_path / "a.txt"]
    for line in ('→ read_file(path="a.txt")', "  content of a", '→ write_file(path="b.txt")', "  + x"):
        assert f"\n{line}\n" in ran.errors


async def test_with_yes_calls_run_without_being_asked_for_and_are_shown(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two\n")
    steps = (
        call_tool("edit_file", path="a.txt", old_text="two", new_text="2"),
        call_tool("run_bash", command="cat a.txt; pwd"),
        say("Done."),
    )
    with serve_script(*steps) as server:
        ran = await run_cli("chat", "-m", "go", "--tools", "coding", "--yes", "--url", server.url, cwd=tmp_path)

    assert (ran.code, ran.output) == (0, "Done.\n")
    assert f"  $ cat a.txt; pwd\n  one 2\n  {tmp_path}\n" in ran.errors
    assert (tmp_path / "a.txt").read_text() == "one 2\n"


# Input that is no terminal.


async def test_lines_of_input_are_messages_and_commands() -> None:
    with serve_script(say("One."), fail("rate_limited", "Too fast."), say("Three.")) as server:
        ran = await run_cli("chat", "--url", server.url, given="first\n\nsecond\n/nope\n/session\nthird")

    assert (ran.code, ran.errors) == (0, "")
    assert [item["content"] for item in heard(server.model, 2)] == ["first", "One.", "second", "third"]
    lines = ran.output.splitlines()
    session = lines[0].split()[1].rstrip(".")
    assert lines[1] == "One." and lines[2].startswith("The turn failed (rate_limited): Too fast.")
    assert lines[3].startswith("There is no /nope;")
    assert lines[4].startswith(f"{session} · failed · ")
    assert lines[6:] == ["Three.", f"Go on with: agent-harness chat --session {session} --url {server.url}"]


async def test_answers_to_questions_come_from_the_same_input(tmp_path: Path) -> None:
    steps = (
        call_tool("write_file", path="a", content="x"),
        call_tool("write_file", path="b", content="x"),
        say("Done."),
    )
    with serve_script(*steps) as server:
        arguments = ("chat", "--tools", "coding", "--root", str(tmp_path), "--url", server.url)
        ran = await run_cli(*arguments, given="go\ny\n")

    assert ran.code == 0 and "Done." in ran.output
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


async def test_a_resumed_session_shows_its_last_exchange_and_answers_the_calls_left_open(tmp_path: Path) -> None:
    """
    A client that died between the call and its result.
    """
    import aiohttp

    from agent_harness.coding import CodingTools
    from agent_harness.functions import Functions
    from tests.support import user

    (tmp_path / "a.txt").write_text("what was asked for")
    with serve_script(call("read_file", '{"path": "a.txt"}'), say("Thanks.")) as server:
        async with aiohttp.ClientSession() as client:
            async with client.post(f"{server.url}/v1/sessions", json={}) as response:
                session = (await response.json())["id"]
            tools = Functions(CodingTools(tmp_path).functions).definitions
            path = f"{server.url}/v1/sessions/{session}/events?stream=true"
            async with client.post(path, json=user("read it", tools=tools)) as stream:
                while b'"waiting"' not in await stream.content.readline():
                    pass
        alone = await run_cli("chat", "--session", session, "--url", server.url)
        ran = await run_cli(
            "chat", "--session", session, "--url", server.url, "--tools", "coding", "--root", str(tmp_path)
        )

    assert 'A turn waits for results that are not made here: read_file(path="a.txt").' in alone.output
    assert ran.code == 0
    for text in ("user:\nread it\n", '→ read_file(path="a.txt")\n  what was asked for\n', "Thanks.\n"):
        assert text in ran.output, ran.output


async def test_an_interrupted_message_ends_with_130_and_leaves_the_session_idle() -> None:
    waits = Step((*say("Thinking").parts, asyncio.Event()))
    with serve_script(waits, say("Here.")) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-W", "error", "-m", "agent_harness", "chat", "-m", "go", "--url", server.url,
            env=environment(), stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        async with asyncio.timeout(START_S):
            assert await process.stdout.readexactly(8) == b"Thinking"
            process.send_signal(signal.SIGINT)
            _, errors = await process.communicate()
        session = errors.decode().split()[1]
        after = await run_cli("chat", "-m", "again", "--session", session, "--url", server.url)

    assert process.returncode == 130 and b"Traceback" not in errors
    assert (after.code, after.output) == (0, "Here.\n")


@pytest.mark.parametrize("once", [True, False], ids=["one message", "lines of input"])
async def test_an_interrupted_message_that_waits_behind_another_turn_ends_with_130_at_once(once: bool) -> None:
    with serve_script(call("elsewhere", "{}")) as server:
        session = await leave_waiting(server.url)
        options = ("-m", "go") if once else ()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-W", "error", "-m", "agent_harness", "chat", *options, "--session", session,
            "--url", server.url, env=environment(),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"" if once else b"go\nagain\n")
        async with asyncio.timeout(START_S):
            while b"waits behind" not in await process.stdout.readline():
                pass
            process.send_signal(signal.SIGINT)
            rest = await process.stdout.read()
            await process.wait()
        shown = await run_cli("sessions", "show", session, "--url", server.url)

    assert process.returncode == 130 and b"Traceback" not in rest
    assert b"the message stays queued" in rest
    assert "user (queued):\ngo" in shown.output and "again" not in shown.output


async def test_the_way_to_go_on_names_the_server_the_tools_and_their_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my folder"
    folder.mkdir()
    with serve_script() as server:
        ran = await run_cli(
            "chat", "--tools", "coding", "--root", "my folder", "--yes",
            cwd=tmp_path, given="/session\n", AGENT_HARNESS_URL=server.url, AGENT_HARNESS_API_KEY="secret",
        )  # fmt: skip

    session = ran.output.split()[1].rstrip(".")
    command = f"agent-harness chat --session {session} --url {server.url} --tools coding --root 'my folder'"
    assert ran.output.splitlines()[-2:] == [command, f"Go on with: {command}"]


async def test_a_session_that_is_not_there_is_named() -> None:
    with serve_script() as server:
        ran = await run_cli("chat", "-m", "hi", "--session", "sess_no", "--url", server.url)

    assert (ran.code, ran.errors) == (1, "agent-harness: There is no session sess_no; it may have been deleted.\n")


async def test_a_server_that_is_no_agent_harness_is_told_with_what_to_do() -> None:
    with serve_mock() as url:
        ran = await run_cli("chat", "-m", "hi", "--url", f"{url}/nowhere")

    assert (ran.code, ran.output, ran.errors.count("\n")) == (1, "", 1)
    assert "is no agent-harness server" in ran.errors and "Check the address, --url." in ran.errors


async def test_chat_needs_no_model_of_its_own_to_talk_with_serve() -> None:
    async with start("serve", "--demo", "--port", "0") as program:
        ran = await run_cli("chat", "-m", "hi", "--url", program.url)

    assert (ran.code, ran.output[:9]) == (0, "You said:")
