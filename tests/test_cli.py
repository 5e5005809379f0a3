"""
The command line, started as users start it.
"""

import asyncio
import itertools
import json
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import click
import pytest

from agent_harness.cli import main
from tests.processes import COMMANDS, Program, environment, run, start
from tests.support import DONE, TOOL, WAIT_S, Stream, types, user

LONG_TEXT = " ".join(f"word{number}" for number in range(1_000))
"""The demo model says it back word by word, with a pause after each: a turn that outlives any test."""


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=WAIT_S)) as session:
        yield session


async def ask(client: aiohttp.ClientSession, method: str, url: str, body: Any = None) -> Any:
    """
    One request that is not refused; the answer's JSON.
    """
    async with asyncio.timeout(WAIT_S), client.request(method, url, json=body) as response:
        answer = await response.json()
        assert response.status < 300, answer
        return answer


async def begin(client: aiohttp.ClientSession, url: str, text: str = "", **extra: Any) -> tuple[str, Stream]:
    """
    A session's URL and its stream, from the beginning; with a *text*, a message was sent.
    """
    created = await ask(client, "POST", f"{url}/v1/sessions", {})
    path = f"{url}/v1/sessions/{created['id']}"
    if text:
        await ask(client, "POST", f"{path}/events", user(text, **extra))
    async with asyncio.timeout(WAIT_S):
        stream = Stream(await client.get(f"{path}/stream?after=0"))
    await stream.next()
    return path, stream


async def seconds_to_first_answer(client: aiohttp.ClientSession, *arguments: str) -> float:
    """
    Of processor time: a machine that does other things too takes longer, but not more of that.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    async with start("serve", "--port", "0", *arguments) as program:
        assert (await ask(client, "GET", f"{program.url}/health"))["status"] == "ok"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


async def test_help_lists_every_command() -> None:
    code, output, errors = await run("--help")

    assert (code, errors) == (0, "")
    assert set(re.findall(r"^  ([a-z-]+) ", output.partition("Commands:")[2], re.MULTILINE)) == set(main.commands)


@pytest.mark.parametrize("name", sorted(COMMANDS))
async def test_help_of_a_command_lists_its_options(name: str) -> None:
    code, output, errors = await run(*name.split(), "--help")

    assert (code, errors) == (0, "")
    for parameter in COMMANDS[name].params:
        assert isinstance(parameter, click.Argument) or set(parameter.opts) <= set(output.split()), parameter.opts


def test_importing_the_command_line_loads_neither_openai_nor_aiohttp() -> None:
    code = "import agent_harness.cli, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True, timeout=WAIT_S
    ).stdout.split()

    assert "agent_harness.cli" in loaded
    assert {name.partition(".")[0] for name in loaded} & {"openai", "httpx2", "aiohttp", "cattrs"} == set()


@pytest.mark.parametrize("arguments", [(), ("--demo",)], ids=["a model server", "demo"])
async def test_serve_answers_its_first_request_after_less_than_a_second_of_work(
    client: aiohttp.ClientSession, arguments: tuple[str, ...]
) -> None:
    # The best of three: what else the machine does never makes a start faster.
    taken = [await seconds_to_first_answer(client, *arguments) for _ in range(3)]

    assert min(taken) < 1.0, taken


async def test_serve_without_a_key_says_so_in_one_line_and_turns_fail_with_provider_auth(
    client: aiohttp.ClientSession,
) -> None:
    async with start("serve", "--port", "0") as program:
        path, stream = await begin(client, program.url, "hello")
        failed = (await stream.until("response.failed"))[-1].data["response"]
        await stream.until_status("failed")
        after = await ask(client, "POST", f"{path}/events", user("again"))
        code, _, errors = await program.end(signal.SIGTERM)

    assert failed["error"]["code"] == "provider_auth"
    assert "OPENAI_API_KEY" in failed["error"]["message"]
    assert after["queued"] is False
    assert code == 0
    told = [line for line in errors.splitlines() if line.startswith("No OPENAI_API_KEY is set: turns will fail with")]
    assert len(told) == 1 and "--no-key" in told[0]


async def test_serve_with_a_key_or_the_demo_model_says_nothing_of_keys(client: aiohttp.ClientSession) -> None:
    async with (
        start("serve", "--port", "0", OPENAI_API_KEY="sk-test") as keyed,
        start("serve", "--port", "0", "--demo") as demo,
    ):
        ended = [await program.end(signal.SIGTERM) for program in (keyed, demo)]

    assert ended == [(0, "", ""), (0, "", "")]
    assert "demo model" in demo.line and "demo" not in keyed.line


async def test_serve_stopped_while_it_still_loads_its_adapters_ends_quietly() -> None:
    """
    B153: the import of the SDK runs in a thread when the signal comes.
    """
    async with start("serve", "--port", "0", OPENAI_API_KEY="sk-test") as program:
        assert await program.end(signal.SIGINT) == (0, "", "")


async def test_serve_with_port_0_prints_the_port_it_really_has(client: aiohttp.ClientSession) -> None:
    async with start("serve", "--port", "0", "--demo") as first, start("serve", "--port", "0", "--demo") as second:
        ports = [re.fullmatch(r"http://127\.0\.0\.1:(\d+)", program.url) for program in (first, second)]
        assert all(ports) and first.url != second.url
        for program in (first, second):
            assert (await ask(client, "GET", f"{program.url}/health"))["sessions"] == 0


@pytest.mark.parametrize("arguments", [("serve", "--demo"), ("serve",), ("mock-llm",)], ids=" ".join)
async def test_a_port_in_use_ends_with_one_line_that_names_it(arguments: tuple[str, ...]) -> None:
    """
    B167.
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, output, errors = await run(*arguments, "--port", str(port))

    assert (code, output) == (1, "")
    assert re.fullmatch(rf"agent-harness: 127\.0\.0\.1:{port} is in use; .*\n", errors), errors


@pytest.mark.parametrize("host, shown", [("2001:db8::1", "[2001:db8::1]"), ("192.0.2.1", "192.0.2.1")])
async def test_an_address_of_another_machine_ends_with_one_line_that_names_it(host: str, shown: str) -> None:
    code, output, errors = await run("serve", "--demo", "--insecure", "--host", host, "--port", "0")

    assert (code, output) == (1, "")
    assert errors.startswith(f"agent-harness: {shown}:0 cannot be used (") and errors.count("\n") == 1


async def test_another_address_without_a_key_is_refused_unless_it_is_said_to_be_wanted() -> None:
    code, output, errors = await run("serve", "--demo", "--host", "0.0.0.0", "--port", "0")

    assert (code, output) == (2, "")
    assert "--api-key" in errors and "--insecure" in errors and errors.count("\n") == 1


async def test_a_served_key_is_asked_for_and_foreign_hosts_and_origins_are_refused(
    client: aiohttp.ClientSession,
) -> None:
    async with start(
        "serve", "--demo", "--port", "0", "--api-key", "first-key", AGENT_HARNESS_API_KEY="other-key"
    ) as server:
        url = f"{server.url}/v1/sessions"
        statuses = []
        for headers in (
            {},
            {"Authorization": "Bearer first-key"},
            {"Authorization": "Bearer other-key"},
            {"Authorization": "Bearer first-key", "Host": "evil.example"},
            {"Authorization": "Bearer first-key", "Origin": "http://evil.example"},
        ):
            async with client.get(url, headers=headers) as answer:
                statuses.append(answer.status)
        code, _, errors = await server.end(signal.SIGTERM)

    assert statuses == [401, 200, 200, 403, 403]
    assert code == 0 and "first-key" not in errors and "other-key" not in errors


async def test_a_port_can_be_had_again_right_after_its_server_stopped(
    client: aiohttp.ClientSession, unused_tcp_port: int
) -> None:
    """
    B167: connections that the server closed linger in TIME_WAIT.
    """
    port = str(unused_tcp_port)
    for _ in range(2):
        async with start("serve", "--demo", "--port", port) as program:
            assert program.url.endswith(f":{port}")
            _, stream = await begin(client, program.url)
            program.process.send_signal(signal.SIGTERM)
            assert types(await stream.rest()) == [DONE]
            assert (await program.end())[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "--port", "99999"),
        ("serve", "--port", "many"),
        ("serve", "--api", "telepathy"),
        ("serve", "--max-sessions", "0"),
        ("serve", "--no-such-option"),
        ("no-such-command",),
        (),
    ],
    ids=" ".join,
)
async def test_wrong_options_end_with_2_and_no_traceback(arguments: tuple[str, ...]) -> None:
    code, output, errors = await run(*arguments)

    assert (code, output) == (2, "")
    assert "Usage:" in errors and "Traceback" not in errors


async def test_an_unusable_setting_ends_with_2_and_one_line_that_names_it() -> None:
    code, output, errors = await run("serve", "--port", "0", OPENAI_BASE_URL="ftp://example.com")

    assert (code, output) == (2, "")
    assert errors.startswith("agent-harness: OPENAI_BASE_URL is 'ftp://example.com'") and errors.count("\n") == 1


async def test_max_sessions_bounds_the_sessions_held_at_once(client: aiohttp.ClientSession) -> None:
    async with start("serve", "--demo", "--port", "0", "--max-sessions", "1") as program:
        await ask(client, "POST", f"{program.url}/v1/sessions", {})
        async with client.post(f"{program.url}/v1/sessions", json={}) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (429, "too_many_sessions")


async def open_three_streams(client: aiohttp.ClientSession, program: Program) -> list[Stream]:
    """
    Streams of an idle session, of one whose model is writing, and of one that waits for a result.
    """
    _, idle = await begin(client, program.url)
    _, writing = await begin(client, program.url, LONG_TEXT)
    await writing.until("response.output_text.delta")
    _, parked = await begin(client, program.url, "look it up", tools=[TOOL])
    await parked.until_status("waiting")
    return [idle, writing, parked]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
async def test_signal_ends_the_server_and_every_stream_ends_cleanly(
    client: aiohttp.ClientSession, number: signal.Signals
) -> None:
    """
    B153: `Stream.rest` fails on a body without its chunked end.
    """
    async with start("serve", "--demo", "--port", "0") as program:
        streams = await open_three_streams(client, program)
        signalled = time.monotonic()
        program.process.send_signal(number)
        rests = [types(await stream.rest()) for stream in streams]
        code, output, errors = await program.end()

    assert (code, output, errors) == (0, "", "")
    assert time.monotonic() - signalled < 5.0
    assert [rest[-1] for rest in rests] == [DONE, DONE, DONE]
    assert rests[0] == [DONE]
    for rest in rests[1:]:
        assert rest.count("response.cancelled") == 1
        assert rest[-3:] == ["response.cancelled", "session.status idle", DONE]


async def test_signal_ends_a_server_whose_model_server_is_silent(client: aiohttp.ClientSession) -> None:
    """
    B153, with the real adapter in the middle of an answer that does not come.
    """
    async with start("mock-llm", "--port", "0") as mock:
        await ask(client, "POST", f"{mock.url}/mock/configure", {"responses": [{"text": "late", "block": True}]})
        async with start("serve", "--port", "0", OPENAI_API_KEY="sk-test", OPENAI_BASE_URL=f"{mock.url}/v1") as program:
            _, stream = await begin(client, program.url, "hello")
            await ask(client, "GET", f"{mock.url}/gate/pending?wait=1")
            program.process.send_signal(signal.SIGTERM)
            rest = types(await stream.rest())
            assert await program.end() == (0, "", "")
        assert (await ask(client, "GET", f"{mock.url}/stats?disconnects=1"))["disconnects"] == 1
        assert (await mock.end(signal.SIGTERM))[::2] == (0, "")

    assert rest[-3:] == ["response.cancelled", "session.status idle", DONE]


async def test_second_signal_ends_the_process_at_once(client: aiohttp.ClientSession) -> None:
    async with start("serve", "--demo", "--port", "0") as program:
        path, stream = await begin(client, program.url)
        port = int(program.url.rpartition(":")[2])
        # A request whose body never comes holds the end up for as long as open requests may go on.
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST {path.partition(str(port))[2]}/events HTTP/1.1\r\nHost: localhost\r\n"
        writer.write(
            f"{head}Content-Type: application/json\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n".encode()
        )
        async with asyncio.timeout(WAIT_S):
            # Answered when the request is being handled.
            assert b"100" in await reader.readline()
        program.process.send_signal(signal.SIGTERM)
        assert types(await stream.rest()) == [DONE]
        code, _, errors = await program.end(signal.SIGINT)
        writer.close()

    # Of the signal itself: one that had waited for the request would have ended with 0.
    assert (code, errors) == (-signal.SIGTERM, "")


async def test_demo_shows_the_call_the_posted_result_and_the_recalled_value() -> None:
    code, output, errors = await run("demo")

    assert (code, errors) == (0, "")
    posted = re.search(r'-> POST \S+/events  (\{"type": "function_call_output".*\})$', output, re.MULTILINE)
    assert posted, output
    color = json.loads(json.loads(posted.group(1))["data"]["output"])["color"]
    lines = output.splitlines()
    order = (
        " function_call lookup_widget action_required ",
        "session.status                           waiting",
        f'== lookup_widget({{"widget_id":42}}) runs on the client -> {{"widget_id": 42, "color": "{color}"}}',
        posted.group(),
        "response.completed",
        "The second turn attaches no tool",
        "response.completed",
        "Turn 1 said: ",
        "Turn 2 said: ",
        "its result was remembered",
    )
    remaining = iter(lines)
    for text in order:
        assert any(text in line for line in remaining), text
    assert all(color in line for line in lines if line.startswith("Turn "))
    numbers = [int(line.split()[0]) for line in lines if re.match(r" *\d+  ", line)]
    assert all(later - earlier in (0, 1) for earlier, later in itertools.pairwise(numbers))


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_serve_plays_a_turn_against_mock_llm_in_either_dialect(client: aiohttp.ClientSession, api: str) -> None:
    async with start("mock-llm", "--port", "0") as mock:
        await ask(client, "POST", f"{mock.url}/mock/configure", {"responses": [{"text": "It is teal."}]})
        variables = {"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": f"{mock.url}/v1/"}
        async with start("serve", "--port", "0", "--api", api, "--model", "small", **variables) as program:
            _, stream = await begin(client, program.url, "hello")
            heard = await stream.until_status("idle")
            assert await program.end(signal.SIGTERM) == (0, "", "")
        [request] = (await ask(client, "GET", f"{mock.url}/mock/requests"))["requests"]

    assert f"{mock.url}/v1" in mock.line
    assert "It is teal." in [frame.data.get("text") for frame in heard]
    assert request["path"] == {"responses": "/v1/responses", "chat": "/v1/chat/completions"}[api]
    assert (request["status"], request["body"]["model"]) == (200, "small")
    assert request["headers"]["authorization"] == "Bearer sk-test"


async def test_version_is_that_of_the_package() -> None:
    from agent_harness.version import VERSION

    assert await run("--version") == (0, f"agent-harness, version {VERSION}\n", "")


async def test_serve_logs_a_turn_as_one_json_object_a_line_if_it_is_asked_to(client: aiohttp.ClientSession) -> None:
    async with start("serve", "--demo", "--port", "0", "--log-level", "info", "--log-json") as server:
        _, stream = await begin(client, server.url, "hello\n{}")
        await stream.until_status("idle")
        code, _, errors = await server.end(signal.SIGTERM)

    lines = [json.loads(line) for line in errors.splitlines()]
    assert code == 0
    assert [line["outcome"] for line in lines if line["message"] == "turn ended"] == ["completed"]
