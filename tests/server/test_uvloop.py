"""
The server under uvloop.
"""

import asyncio
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from agent_harness.llm.scripted import ScriptedModel
from agent_harness.server import make_app
from agent_harness.testing.app_server import AppServer
from agent_harness.testing.fixtures import make_harness
from agent_harness.testing.mock_object import MockLLM
from tests.support import TOOL, WAIT_S, Api

uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")


def test_turn_with_a_client_tool_runs_over_http_under_uvloop() -> None:
    """
    With the real adapter and a model server on a socket, twice, one loop after the other.
    """

    async def play(mock: MockLLM) -> tuple[list[str], Any]:
        assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")
        async with TestClient(AppServer(make_app(make_harness(mock)))) as client:
            talk = await Api(client, ScriptedModel()).open()
            await talk.park()
            await talk.result("c1", "teal")
            told = await talk.stream.until("response.completed")
            talk.stream.close()
            return [frame.event or "" for frame in told], mock.requests[-1].outputs

    for _ in range(2):
        with MockLLM() as mock, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            mock.call(TOOL["name"], {"widget_id": 42}, call_id="c1")
            mock.reply("It is teal.")
            told, outputs = runner.run(asyncio.wait_for(play(mock), WAIT_S))
            assert "response.output_text.delta" in told and outputs == {"c1": "teal"}
