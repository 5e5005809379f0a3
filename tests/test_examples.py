"""
The examples, each run as its reader would run it: processes of their own, warnings being errors.
"""

import asyncio
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent_harness.client import Client
from tests.integration.router import command as router_command

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
WAIT_S = 20.0
"""Longest wait for one thing, in seconds; a browser takes seconds to start where the machine is busy."""

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

PLUGIN = "agent_harness.testing.plugin"

PIPE = asyncio.subprocess.PIPE


def environment(**variables: str) -> dict[str, str]:
    """
    This checkout first, output as it comes, and no model server but the example's own.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "PYTHON", "PYTEST_"))}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **variables}


async def run(*arguments: str | Path) -> tuple[int | None, str, str]:
    """
    Python with *arguments*, from its start to its end: the exit code, standard output, standard error.
    """
    command = [sys.executable, "-W", "error", *map(str, arguments)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment(), stdout=PIPE, stderr=PIPE)
    try:
        async with asyncio.timeout(WAIT_S):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    return process.returncode, output.decode(), errors.decode()


@asynccontextmanager
async def serving(example: str, port: int) -> AsyncIterator[str]:
    """
    An example's server, once it listens; at the end it is interrupted, and must end well and in silence.
    """
    command = [sys.executable, "-W", "error", EXAMPLES / example, "--port", str(port)]
    process = await asyncio.create_subprocess_exec(
        *map(str, command), cwd=ROOT, env=environment(), stdout=PIPE, stderr=PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            line = b"begin"
            while line and b"Running on" not in line:
                line = await process.stdout.readline()
        yield f"http://127.0.0.1:{port}"
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(WAIT_S):
            _, errors = await process.communicate()
        assert (process.returncode, errors.decode()) == (0, "")
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


def test_every_example_has_its_test_here() -> None:
    here = Path(__file__).read_text()
    for entry in EXAMPLES.iterdir():
        assert f'"{entry.name}' in here or entry.name == "__pycache__", entry.name


def test_the_router_configuration_is_one_that_nginx_takes(tmp_path: Path) -> None:
    """
    That it does what it should is in tests/integration/test_router.py.
    """
    shutil.copytree(EXAMPLES / "router", tmp_path, dirs_exist_ok=True)
    done = subprocess.run([*router_command(tmp_path), "-t"], capture_output=True, text=True, timeout=WAIT_S)

    assert done.returncode == 0, done.stderr
    assert "test is successful" in done.stderr and "[warn]" not in done.stderr


async def test_in_process_prints_the_answer_and_what_the_session_remembers() -> None:
    code, output, errors = await run(EXAMPLES / "in_process.py")

    found = 'look_up_widget returned {"widget":"number 42","color":"teal"}'
    assert (code, errors) == (0, "")
    assert output == f"{found}\nI remember: {found}\n"


async def test_the_suite_of_a_small_agent_passes() -> None:
    # Where agent-harness is installed, its entry point has loaded the plugin already; this names it where it is not.
    installed = [found.value for found in importlib.metadata.entry_points(group="pytest11")]
    named = () if PLUGIN in installed else ("-p", PLUGIN)

    code, output, errors = await run(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", *named, EXAMPLES / "test_your_agent"
    )

    assert code == 0, output + errors
    assert re.search(r"^5 passed", output, re.MULTILINE)


async def test_the_embedding_application_shows_its_page_and_serves_agents_beside_it(unused_tcp_port: int) -> None:
    async with serving("embed_in_aiohttp/app.py", unused_tcp_port) as url:
        async with aiohttp.ClientSession(url) as browser:
            async with browser.post("/", data={"question": "Is <b>teal</b> in?"}) as answer:
                page = await answer.text()
        async with Client(f"{url}/agents-backend") as client:
            session = await client.sessions.create()
            result = await session.run("hello")

    assert "You said: &#x27;Is &lt;b&gt;teal&lt;/b&gt; in?&#x27;" in page
    assert "1 sessions" in page
    assert (result.status, result.text[:9]) == ("completed", "You said:")


class Page:
    """
    A page in a browser, by the DevTools protocol.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, session_id: str) -> None:
        self._socket = socket
        self._session_id = session_id

    async def ask(self, method: str, **params: Any) -> Any:
        await self._socket.send_json({"id": 1, "sessionId": self._session_id, "method": method, "params": params})
        answer = await receive(self._socket, lambda message: message.get("id") == 1)
        assert "result" in answer, answer
        return answer["result"]

    async def open(self, url: str) -> None:
        await self.ask("Page.enable")
        await self.ask("Page.navigate", url=url)
        await receive(self._socket, lambda message: message.get("method") == "Page.loadEventFired")

    async def run(self, script: str) -> Any:
        """
        What the promise of *script* comes to.
        """
        done = await self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"]["value"]


async def receive(socket: aiohttp.ClientWebSocketResponse, wanted: Any) -> Any:
    async with asyncio.timeout(WAIT_S):
        while not wanted(message := await socket.receive_json()):
            pass
    return message


@asynccontextmanager
async def browsing(folder: Path) -> AsyncIterator[Page]:
    """
    A page of a new browser without a window.
    """
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    options += ["--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
    process = await asyncio.create_subprocess_exec(str(CHROMIUM), *options, stdout=PIPE, stderr=PIPE)
    try:
        assert process.stderr is not None
        found = None
        async with asyncio.timeout(WAIT_S):
            while not found:
                line = (await process.stderr.readline()).decode()
                assert line, "the browser has ended"
                found = re.search(r"ws://\S+", line)
        async with aiohttp.ClientSession() as http, http.ws_connect(found.group(), max_msg_size=0) as socket:
            await socket.send_json({"id": 0, "method": "Target.createTarget", "params": {"url": "about:blank"}})
            target = (await receive(socket, lambda message: message.get("id") == 0))["result"]["targetId"]
            attach = {"targetId": target, "flatten": True}
            await socket.send_json({"id": 0, "method": "Target.attachToTarget", "params": attach})
            session_id = (await receive(socket, lambda message: message.get("id") == 0))["result"]["sessionId"]
            try:
                yield Page(socket, session_id)
            finally:
                await socket.send_json({"id": 0, "method": "Browser.close"})
        async with asyncio.timeout(WAIT_S):
            await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


# Asks, waits for the whole answer, and says it with all statuses that were shown on the way.
ASK = """
(async () => {
  const $ = (id) => document.getElementById(id);
  const seen = [];
  $("note").value = "paint it ultramarine";
  const done = new Promise((resolve) => {
    new MutationObserver(() => {
      const status = $("status").textContent;
      if (seen.at(-1) !== status) seen.push(status);
      if (status !== "running" && status !== "waiting") resolve();
    }).observe($("status"), { childList: true });
  });
  $("form").requestSubmit();
  await done;
  return [seen.join(" "), $("answer").textContent];
})()
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
async def test_the_tool_of_the_page_runs_in_the_browser(unused_tcp_port: int, tmp_path: Path) -> None:
    async with serving("browser_tools/app.py", unused_tcp_port) as url:
        async with browsing(tmp_path / "profile") as page:
            await page.open(url)
            statuses, answer = await page.run(ASK)

    assert statuses == "running waiting running idle"
    assert answer == "read_field returned paint it ultramarine"
