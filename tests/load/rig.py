"""
A server before a model server that gives recorded answers: what the counts of work and of garbage are taken from.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
from aiohttp import ClientSession, web

from agent_harness.config import ProviderSettings
from agent_harness.engine.harness import Harness
from agent_harness.engine.session import Session
from agent_harness.server import make_app
from agent_harness.testing.mock_entry import read_entry
from agent_harness.testing.mock_llm import build_answer
from agent_harness.testing.strict import Dialect
from agent_harness.wiring import make_model
from tests.llm.raw_upstream import Answer, serve_raw
from tests.support import TOOL, Stream, user

__all__ = ["CALL", "DIALECTS", "Site", "open_site", "record", "say"]

DIALECTS: tuple[Dialect, ...] = ("responses", "chat")
CALL = {"tool_calls": [{"name": "look_up", "arguments": '{"widget_id": 1}'}]}


def record(dialect: Dialect, entry: dict[str, Any]) -> Answer:
    """
    An answer in one piece.
    """
    body = {"model": "m", "stream_options": {"include_usage": True}}
    frames = build_answer(dialect, read_entry(entry, "entry"), body, 100).frames
    return Answer((b"".join(frame.data for frame in frames),), end="keep")


def say(dialect: Dialect, pieces: int) -> Answer:
    return record(dialect, {"deltas": [f"word{number} " for number in range(pieces)]})


@attrs.define
class Site:
    """
    A server before a model server that gives recorded answers, and a session.
    """

    http: ClientSession
    session: Session
    path: str

    async def play(self) -> None:
        """
        One tool turn as a client plays it: the message with its stream, and the result.
        """
        async with asyncio.timeout(5):
            async with self.http.post(f"{self.path}/events?stream=true", json=user("hello")) as response:
                stream = Stream(response)
                frames = await stream.until_status("waiting")
                call_id = frames[-1].data["required_actions"][0]["call_id"]
                body = {"type": "function_call_output", "data": {"call_id": call_id, "output": "teal"}}
                async with self.http.post(f"{self.path}/events", json=body) as answer:
                    assert answer.status == 202
                await stream.rest()

    async def say(self) -> None:
        """
        One turn without a call.
        """
        async with asyncio.timeout(5):
            async with self.http.post(f"{self.path}/events?stream=true", json=user("hello")) as response:
                await Stream(response).rest()


@asynccontextmanager
async def open_site(dialect: Dialect, *answers: Answer, retry_base_s: float = 0.5) -> AsyncIterator[Site]:
    async with serve_raw(*answers) as raw:
        settings = ProviderSettings(
            api=dialect, base_url=raw.url, api_key_env=None, needs_key=False, model="m", retry_base_s=retry_base_s
        )
        async with Harness({"default": make_model(settings)}) as harness:
            # aiohttp's test server would cancel the handler of a client that leaves; the served process does not.
            runner = web.AppRunner(make_app(harness), access_log=None, shutdown_timeout=1)
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                async with ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as http:
                    session = await harness.create_session({"tools": [TOOL]})
                    yield Site(http, session, f"/v1/sessions/{session.id}")
            finally:
                await runner.cleanup()
