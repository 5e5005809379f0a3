"""
A real server that is killed in the middle of its work, and one that is asked to stop: nothing acknowledged is lost.

The short form runs in the suite. The full form, as many kills as the variable says:

    STORE_KILLS=50 scripts/test tests/store/test_kill.py
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent_harness.testing.threads import ThreadServer
from tests.processes import Program, start
from tests.store.load import LoadState, Talker, World, make_load_app

KILLS = int(os.environ.get("STORE_KILLS", "5"))
PART = 10
"""How many kills are one test, so that none takes so long that it is taken for a hanging one."""
TALKERS = 4
WAIT_S = 15.0


@pytest.fixture
def model() -> Any:
    state = LoadState()
    with ThreadServer(lambda: make_load_app(state)) as server:
        yield state, server.url
    refused = [(held.status, held.body) for held in state.captured if held.status not in (None, 200)]
    assert not refused, refused[0]


def write_settings(folder: Path, model_url: str) -> str:
    path = folder / "agent-harness.toml"
    path.write_text(
        f'[server]\nport = 0\nstate = "{folder / "state"}"\n[limits]\nping_s = 0.5\ngrace_s = 5.0\n'
        f'[providers.default]\nbase_url = "{model_url}/v1"\napi_key = "sk-test"\nmodel = "strict"\n'
    )
    return str(path)


@asynccontextmanager
async def serving(settings: str) -> AsyncIterator[Program]:
    async with start("serve", "--config", settings) as program:
        yield program


@pytest.mark.skipif(os.name != "posix", reason="kill -9")
@pytest.mark.parametrize("part", range(-(-KILLS // PART)))
async def test_a_server_killed_at_any_moment_loses_nothing_it_acknowledged(
    model: tuple[LoadState, str], tmp_path: Path, record_property: Callable[[str, Any], None], part: int
) -> None:
    state, model_url = model
    settings, chance, world = write_settings(tmp_path, model_url), random.Random(part), World()
    began = time.monotonic()
    async with aiohttp.ClientSession() as http:
        talkers = [Talker(world, http, f"t{number}", 100 * part + number) for number in range(TALKERS)]
        playing: list[asyncio.Task[None]] = []
        for _ in range(min(PART, KILLS - part * PART)):
            async with serving(settings) as program:
                await world.move(program.url)
                await _check_all(talkers)
                playing = playing or [asyncio.create_task(talker.play()) for talker in talkers]
                await _kill(program, world, state, chance, playing)
        async with serving(settings) as program:
            world.over = True
            await world.move(program.url)
            await _check_all(talkers)
            async with asyncio.timeout(60):
                await asyncio.gather(*playing)
            await _check_all(talkers)
    figures = {
        "kills": min(PART, KILLS - part * PART),
        "sessions": sum(len(talker.known) for talker in talkers),
        "turns": sum(talker.turns for talker in talkers),
        "results": sum(len(talker.outputs) for talker in talkers),
        "calls told again": sum(talker.repeated for talker in talkers),
        "items of cut answers": sum(talker.cut for talker in talkers),
        "model requests": len(state.captured),
        "seconds": round(time.monotonic() - began, 1),
    }
    record_property("kills", figures)
    if "STORE_KILLS" in os.environ:
        print(f"\n{figures}")  # noqa: T201


async def _check_all(talkers: list[Talker]) -> None:
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(talker.check() for talker in talkers))


async def _kill(
    program: Program, world: World, state: LoadState, chance: random.Random, playing: list[asyncio.Task[None]]
) -> None:
    """
    Kill the server a moment after the clients heard, or the model was asked, a number of things.
    """
    loop, reached = asyncio.get_running_loop(), asyncio.Event()
    left = chance.randrange(20, 200)

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            loop.call_later(chance.uniform(0, 0.03), reached.set)

    world.on_heard = count
    state.on_request = lambda: loop.call_soon_threadsafe(count)
    waiting = asyncio.create_task(reached.wait())
    done, _ = await asyncio.wait({waiting, *playing}, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
    program.process.kill()
    await program.process.wait()
    world.on_heard = state.on_request = lambda: None
    assert done == {waiting}, [task for task in done if task is not waiting and task.result()] or "nothing was heard"


async def test_a_server_that_is_stopped_while_a_call_is_open_goes_on_when_it_is_started(
    model: tuple[LoadState, str], tmp_path: Path
) -> None:
    """
    B155: with a state file a turn that runs is neither lost nor settled; it goes on.
    """
    _, model_url = model
    settings, world = write_settings(tmp_path, model_url), World()
    async with aiohttp.ClientSession() as http:
        talker = Talker(world, http, "t", 0)
        async with serving(settings) as program:
            await world.move(program.url)
            session_id = await talker.make_session()
            path = f"/v1/sessions/{session_id}"
            body = {"type": "message", "data": {"content": "tools"}, "tools": [{"type": "function", "name": "look"}]}
            _, sent = await talker.post(f"{path}/events", body, key="k")
            # One of the two calls has no such tool: the harness answers it.
            stream = await http.get(f"{program.url}{path}/stream")
            calls: list[str] = []
            await _read(stream, lambda text: '"waiting"' in text)
            _, queued = await talker.post(f"{path}/events", {"type": "message", "data": {"content": "plain"}})
            _, before = await talker.ask("GET", path)
            calls = [action["call_id"] for action in before["required_actions"]]
            ended = asyncio.create_task(program.end(signal.SIGTERM, within=10.0))
            told = await _read(stream, lambda text: False)
            code, _, errors = await ended
            assert code == 0 and "Traceback" not in errors, errors
            assert told.endswith("data: [DONE]\n\n") and "cancelled" not in told
        async with serving(settings) as program:
            await world.move(program.url)
            _, after = await talker.ask("GET", path)
            assert after["required_actions"] == before["required_actions"] and after["queued"] == [queued["item_id"]]
            assert (await talker.post(f"{path}/events", body, key="k"))[1] == sent
            for call_id in calls:
                result = {"type": "function_call_output", "data": {"call_id": call_id, "output": "found"}}
                assert (await talker.post(f"{path}/events", result))[0] == 202
            for response_id in (sent["response_id"], queued["response_id"]):
                while not await talker.follow(session_id, response_id, "tools"):
                    pass
            _, record = await talker.ask("GET", f"{path}/responses/{sent['response_id']}")
            assert record["status"] == "completed"


async def _read(stream: aiohttp.ClientResponse, enough: Callable[[str], bool]) -> str:
    """
    Read a stream until what came is *enough*, or to its end.
    """
    text = ""
    async with asyncio.timeout(WAIT_S):
        while not enough(text) and (chunk := await stream.content.readany()):
            text += chunk.decode()
    return text
