"""
The command line as a process with input, and servers for it to talk with: waits are bounded.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from aiohttp import ClientSession, web

from agent_harness.config import Settings
from agent_harness.engine.harness import Harness
from agent_harness.llm.scripted import ScriptedModel, Step, call
from agent_harness.server import make_app
from agent_harness.testing.mock_llm import make_mock_app
from agent_harness.testing.threads import ThreadServer
from agent_harness.wiring import open_demo_harness
from tests.processes import START_S, environment
from tests.support import user

__all__ = [
    "WITHOUT_EXTRAS",
    "Ran",
    "Served",
    "call_tool",
    "leave_waiting",
    "run_cli",
    "serve_demo",
    "serve_mock",
    "serve_script",
]

WITHOUT_EXTRAS = (
    "import sys; sys.modules['rich'] = sys.modules['prompt_toolkit'] = None\n"
    "from agent_harness.cli import main; main(prog_name='agent-harness')"
)
"""A program: the command line where the extra is not installed."""


@attrs.frozen
class Ran:
    """
    A process that has ended.
    """

    code: int | None
    output: str
    errors: str


@attrs.frozen
class Served:
    """
    A server in a thread, and its model.
    """

    url: str
    model: ScriptedModel
    loop: asyncio.AbstractEventLoop


async def run_cli(*arguments: str, cwd: Path | None = None, given: str | None = "", **variables: str) -> Ran:
    """
    ``agent-harness`` with *arguments* from its start to its end; *given* is its standard input, nothing if None.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-W", "error", "-m", "agent_harness", *arguments,
        cwd=cwd or Path(__file__).parent, env=environment(**variables),
        stdin=asyncio.subprocess.DEVNULL if given is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(START_S):
            output, errors = await process.communicate(None if given is None else given.encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    return Ran(process.returncode, output.decode(), errors.decode())


@contextmanager
def serve_script(*steps: Step | Callable[..., Step] | Exception) -> Iterator[Served]:
    """
    A server whose model answers by these steps.
    """
    model = ScriptedModel(steps)  # type: ignore[arg-type]
    loops: list[asyncio.AbstractEventLoop] = []

    async def build() -> web.Application:
        loops.append(asyncio.get_running_loop())
        return make_app(Harness({"default": model}))

    with ThreadServer(build) as server:
        yield Served(server.url, model, loops[0])


@contextmanager
def serve_demo() -> Iterator[str]:
    """
    A server with the demo model; its URL.
    """

    async def build() -> web.Application:
        return make_app(open_demo_harness(Settings()))

    with ThreadServer(build) as server:
        yield server.url


@contextmanager
def serve_mock() -> Iterator[str]:
    """
    The strict mock model server; its base URL without ``/v1``.
    """

    async def build() -> web.Application:
        return make_mock_app()

    with ThreadServer(build) as server:
        yield server.url


async def leave_waiting(url: str) -> str:
    """
    A session whose turn waits for the result of a call of ``elsewhere``; its model is to make one.
    """
    tools = [{"type": "function", "name": "elsewhere", "description": "", "parameters": {"type": "object"}}]
    async with ClientSession() as client:
        async with client.post(f"{url}/v1/sessions", json={}) as response:
            session: str = (await response.json())["id"]
        path = f"{url}/v1/sessions/{session}/events?stream=true"
        async with client.post(path, json=user("go", tools=tools)) as stream:
            while b'"waiting"' not in await stream.content.readline():
                pass
    return session


def call_tool(name: str, **arguments: Any) -> Step:
    """
    A step that calls one tool.
    """
    return call(name, json.dumps(arguments))
