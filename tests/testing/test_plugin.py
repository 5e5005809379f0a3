"""
The pytest plugin in suites of its users: each test here is a pytest run of its own, with warnings as errors.
"""

import configparser
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
RUN_S = 100.0
"""Longest time of one run, in seconds."""

ROUNDS = 5
BUDGET_S = 0.02
"""What the plugin may add to an empty run."""

AUTO = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"

TURN = """
    session = await harness.create_session({"model": "default"})
    text = [e.delta async for e in session.run("hi") if e.type == "response.output_text.delta"]
    assert "".join(text) == "hello there"
"""

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> str:
    """
    A path for Python on which this checkout is installed, with the entry point that setup.cfg names.
    """
    folder = tmp_path_factory.mktemp("installed")
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    info = folder / "agent_harness-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: agent-harness\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[pytest11]{setup['options.entry_points']['pytest11']}\n")
    joined = os.pathsep.join((str(folder), str(ROOT)))
    monkeypatch.setenv("PYTHONPATH", joined)
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        monkeypatch.delenv(name, raising=False)
    return joined


@pytest.fixture
def run(pytester: pytest.Pytester, path: str) -> Run:
    """
    ``run(source, *options, ini=…, conftest=…)``: a run of one test file.
    """

    def start(source: str, *options: str, ini: str = AUTO, conftest: str = "") -> pytest.RunResult:
        pytester.makefile(".ini", pytest=ini)
        pytester.makeconftest(conftest)
        pytester.makepyfile(test_it=source)
        return pytester.runpytest_subprocess("-W", "error", *options, timeout=RUN_S)

    return start


def test_each_fixture_plays_a_turn(run: Run) -> None:
    result = run(
        f"""
import json
import urllib.request

from agent_harness.llm.scripted import say

MESSAGE = {{"type": "message", "data": {{"role": "user", "content": "hi"}}}}

async def test_in_process(harness, mock_llm):
    mock_llm.reply("hello there")
{TURN}

async def test_scripted(harness, scripted_model):
    scripted_model.steps.append(say("hello there"))
    session = await harness.create_session({{"provider": "scripted"}})
    events = [event async for event in session.run("hi")]
    assert events[-2].type == "response.completed"

async def test_in_the_loop(harness_client, harness, mock_llm):
    mock_llm.reply("hello there")
    async with harness_client.post("/v1/sessions", json={{}}) as answer:
        session = await answer.json()
    assert [held.id for held in harness.sessions()] == [session["id"]]
    assert harness_client.server.handler.handler_cancellation is False
    path = f"/v1/sessions/{{session['id']}}/events?stream=true"
    async with harness_client.post(path, json=MESSAGE) as answer:
        assert "response.completed" in await answer.text()

def test_in_a_thread(harness_server, mock_llm):
    mock_llm.reply("hello there")
    def post(path, body):
        head = {{"Content-Type": "application/json"}}
        request = urllib.request.Request(f"{{harness_server}}{{path}}", json.dumps(body).encode(), head)
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.read().decode()
    assert str(harness_server) == harness_server.url
    session = json.loads(post("/v1/sessions", {{}}))
    assert "response.completed" in post(f"/v1/sessions/{{session['id']}}/events?stream=true", MESSAGE)
"""
    )
    result.assert_outcomes(passed=4)


def test_a_step_left_over_fails_the_test_and_is_named(run: Run) -> None:
    result = run(
        """
from agent_harness.llm.scripted import call, say

def test_left_over(mock_llm, scripted_model):
    mock_llm.reply("goodbye")
    mock_llm.call("look_up", {"id": 1}).call("look_up", {"id": 2})
    scripted_model.steps += [say("adieu"), call("look_up")]
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "step 1 (reply 'goodbye', test_it.py:4) was never asked for",
            "step 2 (call look_up call look_up, test_it.py:5) was never asked for",
            "scripted_model: step 1 (say 'adieu') was never asked for",
            "scripted_model: step 2 (call look_up) was never asked for",
        ]
    )


def test_a_request_without_a_step_fails_the_test_and_is_named(run: Run) -> None:
    result = run(
        """
async def test_lacking(harness, mock_llm):
    mock_llm.reply("one")
    session = await harness.create_session({"model": "tiny"})
    for text in ("first", "second"):
        _ = [event async for event in session.run(text)]

async def test_lacking_too(harness):
    session = await harness.create_session({"provider": "scripted"})
    _ = [event async for event in session.run("hi")]

async def test_that_fails_by_itself(harness):
    session = await harness.create_session()
    events = [event async for event in session.run("hi")]
    assert events[-2].type == "response.completed"
"""
    )
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [
            "request 2 (POST /v1/responses, model 'tiny', user text 'second') had no step left",
            "scripted_model: model call 1 (user text 'hi') had no step left",
            "E  *AssertionError*",
            "*Captured script call*",
            "request 1 (POST /v1/responses, model 'mock', user text 'hi') had no step left",
        ]
    )


def test_a_request_that_comes_after_the_end_of_its_test_is_an_error(run: Run) -> None:
    result = run(
        """
import threading
import urllib.request

import pytest

@pytest.fixture
def late(mock_llm):
    yield
    request = urllib.request.Request(f"{mock_llm.base_url}/responses", b'{"model": "m", "input": "psst"}')
    with pytest.raises(OSError):
        urllib.request.urlopen(request, timeout=5)

def test_it(late):
    pass
"""
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["after the end of the test:", "request 1 (POST /v1/responses, model 'm', *'psst'*"])


def test_a_request_that_no_model_server_takes_fails_the_test(run: Run) -> None:
    result = run(
        """
import urllib.error
import urllib.request

import pytest

def test_refused(mock_llm):
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"{mock_llm.base_url}/chat/completions", b'{"model": "m", "messages": 3}', 5)
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["request 1 (POST /v1/chat/completions, * was refused: *"])


def test_nothing_of_one_test_is_seen_by_the_next(run: Run) -> None:
    result = run(
        f"""
import pytest

seen = []

@pytest.mark.parametrize("number", range(3))
async def test_turn(number, harness, mock_llm):
    assert (mock_llm.requests, len(harness)) == ([], 0)
    assert mock_llm.url not in seen
    seen.append(mock_llm.url)
    mock_llm.reply("hello there")
{TURN}
    [request] = mock_llm.requests
    assert (request.number, request.status, request.user_text) == (1, 200, "hi")
"""
    )
    result.assert_outcomes(passed=3)


def test_runs_in_parallel_share_nothing(run: Run) -> None:
    result = run(
        f"""
import pytest

@pytest.mark.parametrize("number", range(8))
async def test_turn(number, harness, mock_llm):
    mock_llm.reply("hello there")
{TURN}
    assert len(mock_llm.requests) == 1

def test_left_over(mock_llm):
    mock_llm.reply("goodbye")
""",
        "-n",
        "2",
    )
    result.assert_outcomes(passed=8, failed=1)
    result.stdout.fnmatch_lines(["step 1 (reply 'goodbye', *"])


def test_strict_mode_takes_the_fixtures_as_they_are(run: Run) -> None:
    result = run(
        f"""
import pytest

pytestmark = pytest.mark.asyncio

async def test_turn(harness, mock_llm):
    mock_llm.reply("hello there")
{TURN}

async def test_client(harness_client):
    async with harness_client.get("/health") as answer:
        assert answer.status == 200
""",
        ini=AUTO.replace("auto", "strict"),
    )
    result.assert_outcomes(passed=2)


def test_without_pytest_asyncio_and_pytest_aiohttp_the_plugin_of_anyio_does(run: Run) -> None:
    result = run(
        f"""
import sys
import pytest

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
async def test_turn(harness, harness_client, mock_llm):
    mock_llm.reply("hello there")
{TURN}
    async with harness_client.get("/health") as answer:
        assert answer.status == 200
    assert not {{"pytest_asyncio", "pytest_aiohttp"}} & sys.modules.keys()

def test_thread(harness_server):
    assert harness_server.url.startswith("http://127.0.0.1:")
""",
        "-p",
        "no:asyncio",
        "-p",
        "no:aiohttp",
        ini="[pytest]\n",
    )
    result.assert_outcomes(passed=2)


def test_a_server_for_all_tests_is_made_of_the_plugins_parts(run: Run) -> None:
    """
    As docs/testing.md tells it.
    """
    conftest = """
import pytest
from agent_harness.testing.fixtures import serve_harness
from agent_harness.testing.mock_object import MockLLM

@pytest.fixture(scope="session")
def shared_mock():
    with MockLLM() as mock:
        yield mock

@pytest.fixture
def mock_llm(shared_mock):
    with shared_mock.checked():
        yield shared_mock

@pytest.fixture(scope="session")
def harness_server(shared_mock):
    with serve_harness(shared_mock.settings()) as server:
        yield server
"""
    result = run(
        """
import pytest
from agent_harness.client import Client

urls = set()

@pytest.mark.parametrize("number", range(3))
async def test_turn(number, harness_server, mock_llm):
    urls.add(harness_server.url)
    mock_llm.reply(f"hello {number}")
    async with Client(harness_server.url) as client:
        session = await client.sessions.create()
        assert (await session.run("hi")).text == f"hello {number}"
    assert (len(urls), len(mock_llm.requests)) == (1, 1)

def test_left_over(mock_llm):
    mock_llm.reply("goodbye")

def test_after_it(mock_llm, harness_server):
    assert mock_llm.problems() == []
""",
        conftest=conftest,
    )
    result.assert_outcomes(passed=5, errors=1)
    result.stdout.fnmatch_lines(["E  *step 1 (reply 'goodbye', test_it.py:*) was never asked for"])


def test_two_hundred_tests_leave_no_session_task_socket_or_thread(run: Run) -> None:
    conftest = """
import asyncio
import gc
import os
import stat
import threading

import pytest

def is_socket(number):
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        return False

def count():
    sockets = sum(is_socket(int(name)) for name in os.listdir("/dev/fd"))
    return {"sockets": sockets, "threads": len(threading.enumerate())}

def pytest_sessionstart(session):
    session.config.before = count()

@pytest.fixture(autouse=True)
async def no_task_is_left():
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left

@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    gc.collect()
    from aiohttp import ClientSession
    from agent_harness.engine.harness import Harness
    alive = [held for held in gc.get_objects() if isinstance(held, (ClientSession, Harness)) and not held.closed]
    print(f"before {session.config.before} after {count()} open {alive}")
    session.exitstatus = session.exitstatus or int(count() != session.config.before or bool(alive))
"""
    result = run(
        f"""
import pytest
from agent_harness.llm.scripted import say

@pytest.mark.parametrize("number", range(50))
async def test_turn(number, harness, mock_llm):
    mock_llm.reply("hello there")
{TURN}

@pytest.mark.parametrize("number", range(50))
async def test_scripted_turn(number, harness, scripted_model):
    scripted_model.steps.append(say("hello there"))
    session = await harness.create_session({{"provider": "scripted"}})
    assert [event async for event in session.run("hi")][-2].type == "response.completed"

@pytest.mark.parametrize("number", range(50))
async def test_parked_turn(number, harness_client, harness, mock_llm):
    parked = mock_llm.block()
    async with harness_client.post("/v1/sessions", json={{}}) as answer:
        session = await answer.json()
    body = {{"type": "message", "data": {{"role": "user", "content": "hi"}}}}
    async with harness_client.post(f"/v1/sessions/{{session['id']}}/events", json=body) as answer:
        assert answer.status == 202
    await parked.parked()

@pytest.mark.parametrize("number", range(50))
def test_thread(number, harness_server):
    assert harness_server.url
""",
        "-q",
        conftest=conftest,
    )
    result.assert_outcomes(passed=200)
    assert result.ret == 0, result.stdout.str()[-1000:]


def test_turned_off_nothing_of_ours_is_imported(run: Run) -> None:
    source = """
import sys

def test_modules():
    assert [name for name in sys.modules if name.startswith("agent_harness")] == []
"""
    run(source, "-p", "no:agent_harness").assert_outcomes(passed=1)


def test_loaded_and_unused_it_imports_itself_only(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    source = """
import sys

def test_modules():
    ours = {name for name in sys.modules if name.startswith("agent_harness")}
    assert ours == {"agent_harness", "agent_harness.testing", "agent_harness.testing.plugin"}
    assert not {"aiohttp", "attrs", "cattrs", "openai", "orjson", "pytest_asyncio"} & sys.modules.keys()
"""
    run(source, "-p", "agent_harness.testing.plugin", ini="[pytest]\n").assert_outcomes(passed=1)


def test_its_names_are_five_fixtures_and_no_option(run: Run) -> None:
    listed = run("", "--fixtures").stdout.str()
    ours = re.findall(r"^(\w+) -- .*agent_harness\W.*$", listed, re.MULTILINE)

    assert sorted(ours) == ["harness", "harness_client", "harness_server", "mock_llm", "scripted_model"]
    helped = run("", "--help").stdout.str()
    assert not {"--llm-api-key", "--llm-base-url", "--model", "--harness"} & set(helped.split())


def test_an_empty_run_takes_less_than_20_ms_more_with_it(path: str, tmp_path: Path) -> None:
    def seconds(*options: str) -> float:
        """
        Processor time: whatever else the machine does does not count.
        """
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=RUN_S)
        assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout + done.stderr
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # In turns, and the least of each: what falls on one falls on the other, and never makes anything faster.
    pairs = [(seconds(), seconds("-p", "agent_harness.testing.plugin")) for _ in range(ROUNDS)]
    without, with_it = (min(column) for column in zip(*pairs, strict=True))
    assert with_it - without < BUDGET_S
