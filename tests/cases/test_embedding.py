"""
In programs and tests: several loops in one process, inside a running loop, below a prefix, and nothing left behind.
"""

import asyncio
import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from agent_harness.config import Limits, ProviderSettings, Settings
from agent_harness.engine.harness import Harness
from agent_harness.llm.scripted import ScriptedModel, say
from agent_harness.server import HARNESS, make_app
from agent_harness.server.app import init_app
from agent_harness.testing.mock_llm import make_mock_app
from agent_harness.testing.strict import Dialect
from agent_harness.wiring import open_harness
from tests.cases.rig import DIALECTS, Clock, begun, calling
from tests.support import WAIT_S, Api, Talk, user

ROOT = Path(__file__).parents[2]

both = pytest.mark.parametrize("dialect", DIALECTS)


async def start(app: web.Application) -> tuple[web.AppRunner, str]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    assert port
    return runner, f"http://{host}:{port}"


def count_tasks() -> int:
    """
    How many tasks there are, without those that aiohttp has for each connection that waits for its next request.
    """
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return len([name for name in names if name != "RequestHandler.start"])


async def one_turn(dialect: Dialect, prefix: str = "") -> str:
    """
    Both servers started, one turn over the adapter, both stopped; what the model said.
    """
    mock, mock_url = await start(make_mock_app())
    settings = ProviderSettings(
        name=dialect, api=dialect, base_url=f"{mock_url}/v1", api_key_env=None, needs_key=False, model="mock"
    )
    harness = open_harness(Settings(providers=(settings,), default_provider=dialect))
    app = make_app(harness)
    if prefix:
        app = web.Application()
        init_app(app, harness, prefix)
    server, url = await start(app)
    sessions = f"{url}{prefix}/v1/sessions"
    try:
        async with asyncio.timeout(WAIT_S), aiohttp.ClientSession() as client:
            await client.post(f"{mock_url}/mock/configure", json={"responses": [{"text": "done"}]})
            async with client.post(sessions, json={}) as created:
                assert "Location" not in created.headers
                session_id = (await created.json())["id"]
            async with client.post(f"{sessions}/{session_id}/events?stream=true", json=user("go")) as stream:
                body = await stream.read()
            assert body.endswith(b"data: [DONE]\n\n")
            async with client.get(f"{sessions}/{session_id}") as answer:
                return str((await answer.json())["items"][-1]["content"][0]["text"])
    finally:
        await server.cleanup()
        await mock.cleanup()


@both
def test_three_loops_in_one_process_each_run_a_turn(dialect: Dialect) -> None:
    """
    B164: nothing is bound to a loop that is gone.
    """
    assert [asyncio.run(one_turn(dialect)) for _ in range(3)] == ["done"] * 3


@both
@pytest.mark.parametrize("prefix", ["", "/agents"])
async def test_it_starts_and_stops_inside_a_running_loop_as_often_as_wanted(dialect: Dialect, prefix: str) -> None:
    """
    B165: on a port that the system picks, by itself and below a prefix. No answer holds a URL that would need it.
    """
    before = asyncio.all_tasks()
    assert [await one_turn(dialect, prefix) for _ in range(2)] == ["done"] * 2
    assert asyncio.all_tasks() == before


async def test_sessions_that_are_deleted_or_idle_leave_nothing_behind(aiohttp_client: Any, clock: Clock) -> None:
    """
    B156: 300 sessions with a turn each, a third of them followed; half are deleted, the rest pass the idle limit.
    """
    count = 300
    model = ScriptedModel([say("hi")] * count)
    app = make_app(Harness({"default": model}, limits=Limits(session_idle_s=0.0)))
    api = Api(await aiohttp_client(app), model)
    harness: Harness = app[HARNESS]
    await api.get("/health")
    base = count_tasks()
    alive: list[weakref.ref[Any]] = []
    followed: list[Talk] = []
    for number in range(count):
        talk = await api.open() if number % 3 == 0 else Talk(api, (await api.create())["id"])
        async with asyncio.timeout(WAIT_S):
            async with api.client.post(f"{talk.path}/events?stream=true", json=user("go")) as stream:
                assert (await stream.read()).endswith(b"data: [DONE]\n\n")
        alive.append(weakref.ref(harness.get(talk.id)))
        if number % 3 == 0:
            followed.append(talk)
        if number % 2 == 0:
            assert (await api.ask("DELETE", talk.path)).status == 200
    assert len(harness) == count // 2
    clock.put_forward(3600.0)
    for talk in followed:
        assert [frame.event for frame in await talk.stream.rest()][-2:] == ["session.deleted", None]
        talk.stream.close()
    model.requests.clear()
    assert (len(harness), harness.running_turns) == (0, 0)
    await api.get("/health")
    gc.collect()
    assert [each() for each in alive if each() is not None] == []
    assert count_tasks() == base


@pytest.mark.parametrize("grace_s", [0.0, 3.0])
@both
async def test_a_program_may_let_its_turns_end_before_it_stops(play: Any, dialect: Dialect, grace_s: float) -> None:
    """
    B152: `Harness.drain` gives running turns `grace_s` seconds; the answer and its end are delivered. Without, the turn
    is interrupted at once.
    """
    case = await play(dialect, {"deltas": ["Hel", "lo"], "block": begun(dialect)}, grace_s=grace_s)
    harness: Harness = case.api.client.app[HARNESS]
    sent = await case.send("go")
    await case.stream.until("response.output_text.delta")
    draining = asyncio.create_task(harness.drain())
    await case.api.refused("POST", "/v1/sessions", json={}, status=503, code="shutting_down")
    assert draining.done() is (grace_s == 0.0)
    if grace_s:
        await case.release()
        assert await case.rests() == "idle"
        assert (await case.record(sent))["status"] == "completed"
    async with asyncio.timeout(WAIT_S):
        await draining
        await case.api.client.server.close()
    rest = [frame.event for frame in await case.stream.rest()]
    assert rest.count("response.cancelled") == (0 if grace_s else 1)
    text = "".join(each.data["delta"] for each in case.stream.frames if each.event == "response.output_text.delta")
    assert text == ("Hello" if grace_s else "Hel")


@both
async def test_sessions_deleted_in_the_middle_of_things_leave_nothing_behind(play: Any, dialect: Dialect) -> None:
    """
    B156, B129: one parked on a call, one while upstream streams; the stream ends, the connection to the model server is
    closed, and the session is gone for every command.
    """
    case = await play(dialect, calling("c1"))
    harness: Harness = case.api.client.app[HARNESS]
    other = await case.api.open(agent={"tools": []})
    await case.send()
    await case.waiting()
    await case.script({"text": "long", "block": 1})
    await other.send("go")
    await case.parked(1)
    alive = [weakref.ref(harness.get(each.id)) for each in (case, other)]
    for talk in (case, other):
        assert (await case.api.ask("DELETE", talk.path)).status == 200
        assert (await talk.stream.rest())[-1].data == "[DONE]"
        data = {"call_id": "c1", "output": "late"}
        for method, path, body in (
            ("POST", "/events", {"type": "function_call_output", "data": data}),
            ("POST", "/events", {"type": "interrupt", "data": {}}),
            ("GET", "/stream", None),
            ("DELETE", "", None),
        ):
            options = {} if body is None else {"json": body}
            await case.api.refused(method, talk.path + path, status=404, code="unknown_session", **options)
    await case.upstreams(0)
    assert (len(harness), harness.running_turns) == (0, 0)
    gc.collect()
    assert [each() for each in alive] == [None, None]


@both
async def test_a_server_that_stops_ends_its_turns_and_its_connections(play: Any, dialect: Dialect) -> None:
    """
    B155: the turn in the model's answer ends as interrupted, the parked one's call is closed, and the connection to the
    model server is gone.
    """
    case = await play(dialect, calling("c1"))
    parked = await case.api.open()
    await case.send()
    await case.waiting()
    await case.script({"text": "long", "block": 1})
    await parked.send("go")
    await case.parked(1)
    sessions = [case.api.client.app[HARNESS].get(each.id) for each in (case, parked)]
    async with asyncio.timeout(WAIT_S):
        await case.api.client.server.close()
    for talk in (case, parked):
        frames = await talk.stream.rest()
        assert [frame.event for frame in frames].count("response.cancelled") == 1
        assert frames[-1].data == "[DONE]"
    assert [list(session.transcript.open_calls) for session in sessions] == [[], []]
    await case.upstreams(0)
    assert (await case.tell_mock("/stats?disconnects=1"))["disconnects"] == 1


@both
@pytest.mark.parametrize("transport", ["aiohttp", "openai"])
async def test_a_harness_that_closes_closes_its_connections_to_model_servers(
    play: Any, dialect: Dialect, transport: str
) -> None:
    """
    B155, B168: the one that is kept for the next turn, when no turn runs.
    """
    case = await play(dialect, {"text": "one"}, {"text": "two"}, provider={"transport": transport})
    connections = case.mock.server.handler
    testers = len(connections.connections)
    for _ in range(2):
        await case.says()
    assert len(connections.connections) == testers + 1
    await case.api.client.app[HARNESS].aclose()
    async with asyncio.timeout(WAIT_S):
        while len(connections.connections) > testers:
            await case.requests()


PROGRAM = """
import asyncio, sys
from tests.cases.untidy import main
asyncio.run(main(sys.argv[1]), debug=True)
"""


@both
def test_turns_that_fail_stop_and_time_out_leave_no_warning(dialect: Dialect) -> None:
    """
    B168: in Python's development mode with resource warnings as errors; nothing is written to either stream.
    """
    command = [sys.executable, "-X", "dev", "-W", "error", "-W", "error::ResourceWarning", "-c", PROGRAM, dialect]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "completed failed cancelled incomplete\n", "")
