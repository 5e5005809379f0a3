"""
A call whose deadline passes while the server is down: real processes that are killed, and a strict model server.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent_harness.llm.scripted import ScriptedModel
from agent_harness.testing.mock_llm import make_mock_app
from agent_harness.testing.strict import Dialect
from tests.cases.rig import DIALECTS, TOOLS, Case, begun, calling
from tests.processes import Program, start
from tests.support import WAIT_S, Api

TIMEOUT_S = 2.0
"""How long the call may stay open: longer than it takes to hear of it and to kill the server."""


async def kill(program: Program) -> None:
    program.process.kill()
    async with asyncio.timeout(WAIT_S):
        await program.process.wait()


async def pass_by(moment: float) -> None:
    """
    Return when *moment* (Unix seconds) has passed.
    """
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(moment - time.time() + 0.05, passed.set)
    async with asyncio.timeout(WAIT_S):
        await passed.wait()
    assert time.time() > moment


@pytest.mark.skipif(os.name != "posix", reason="kill -9")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_call_whose_deadline_passes_while_the_server_is_down_gets_one_output_however_often_it_is_started(
    aiohttp_client: Any, tmp_path: Path, dialect: Dialect
) -> None:
    """
    B012: killed while the call is open, before the model's next answer, and in the middle of it.
    """
    mock = await aiohttp_client(make_mock_app())
    options = ("--port", "0", "--no-key", "--model", "mock", "--api", dialect, "--state", str(tmp_path / "state"))
    sessions: list[str] = []

    @asynccontextmanager
    async def serving() -> AsyncIterator[tuple[Program, Case]]:
        timeout = aiohttp.ClientTimeout(total=WAIT_S)
        async with start("serve", *options, OPENAI_BASE_URL=str(mock.make_url("/v1"))) as program:
            async with aiohttp.ClientSession(program.url, timeout=timeout) as client:
                served: Any = client
                api = Api(served, ScriptedModel())
                if not sessions:
                    agent = {"tools": TOOLS, "tool_timeout_s": TIMEOUT_S}
                    sessions.append((await api.create(agent=agent))["id"])
                case = Case(api, sessions[0])
                case.dialect, case.mock = dialect, mock
                case.stream = await case.follow()
                try:
                    yield program, case
                finally:
                    case.stream.close()

    async def check_output(case: Case) -> dict[str, Any]:
        late = {"type": "function_call_output", "data": {"call_id": "c1", "output": "late"}}
        error = await case.refused(late, status=409, code="call_closed", param="data.call_id")
        assert error["closed_by"] == "deadline"
        [output] = [item for item in await case.items() if item["type"] == "function_call_output"]
        return output

    outputs = []
    async with serving() as (program, case):
        await case.script(calling("c1"), {"text": "no", "block": True}, {"text": "half", "block": begun(dialect)})
        await case.send("go")
        [action] = await case.waiting()
        await kill(program)
        assert time.time() < action["expires_at"]
    await pass_by(action["expires_at"])
    for _ in range(2):
        async with serving() as (program, case):
            await case.parked(1)
            outputs.append(await check_output(case))
            await kill(program)
            await case.upstreams(0)
    await case.script({"text": "It took too long."}, {"text": "Again?"}, {"text": "Well."})
    async with serving() as (program, case):
        await case.says("And now?")
        outputs.append(await check_output(case))
        await kill(program)
    async with serving() as (program, case):
        outputs.append(await check_output(case))
        assert (await case.says("Still there?"))["status"] == "completed"
        turns = (await case.api.get(f"{case.path}/responses"))["data"]
        assert [turn["status"] for turn in turns] == ["completed"] * 3
        requests = await case.requests()
    assert outputs == outputs[:1] * 4 and outputs[0]["origin"] == "harness"
    assert [request.status for request in requests] == [200, None, 200, 200, 200, 200]
    assert [request.of("output") for request in requests] == [[], *[[("c1", requests[1].of("output")[0][1])]] * 5]
