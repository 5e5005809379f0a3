"""
Two server processes behind the nginx of ``examples/router``: all real, on real sockets.
"""

import asyncio
import itertools
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent_harness.client import Client
from agent_harness.llm.scripted import ScriptedModel
from agent_harness.testing.mock_object import MockLLM
from tests.integration.router import require_nginx, routing
from tests.ports import hold_port
from tests.processes import Program, start
from tests.support import DONE, WAIT_S, Answer, Api, Frame, Stream, Talk, types

SESSIONS = 20
MANY = 200
"""Far more than it takes until each process has some."""

pytestmark = pytest.mark.usefixtures("nginx")


@pytest.fixture
def nginx() -> str:
    return require_nginx()


@attrs.frozen
class Site:
    """
    The router, and the processes behind it.
    """

    api: Api
    url: str
    nodes: dict[str, Program]

    async def create(self, key: str | None = None) -> Answer:
        """
        A new session's answer.
        """
        headers = {} if key is None else {"Idempotency-Key": key}
        answer = await self.api.ask("POST", "/v1/sessions", json={}, headers=headers)
        assert answer.status == 201, answer.body
        return answer

    async def create_on(self, node: str) -> Talk:
        """
        A session of that process; as many are made as it takes.
        """
        for _ in range(MANY):
            made = await self.create()
            if node_of(made.body["id"]) == node:
                return Talk(self.api, made.body["id"])
        raise AssertionError(f"{node} gets no session")

    async def open_on(self, node: str) -> Talk:
        """
        The same, followed from its beginning.
        """
        talk = await self.create_on(node)
        talk.stream = await talk.follow(after=0)
        await talk.stream.next()
        return talk

    async def listed(self, node: str) -> set[str]:
        """
        The ids of a process's sessions, as it says itself.
        """
        page = await self.api.get(f"{self.nodes[node].url}/v1/sessions?limit=100")
        assert not page["has_more"]
        return {session["id"] for session in page["data"]}

    async def answered(self, node: str) -> Counter[tuple[str, int]]:
        """
        How many answers a process gave where the path names a session, by method with route, and status.
        """
        async with self.api.client.get(f"/node/{node}/metrics") as answer:
            text = await answer.text()
        return Counter(
            {
                (f"{sample.labels['method']} {sample.labels['route']}", int(sample.labels["status"])): int(sample.value)
                for family in text_string_to_metric_families(text)
                for sample in family.samples
                if sample.name == "agent_harness_http_answers_total" and "{" in sample.labels["route"]
            }
        )


def node_of(session_id: str) -> str:
    kind, node, _ = session_id.split("_")
    assert kind == "sess"
    return node


@asynccontextmanager
async def talking(url: str) -> AsyncIterator[Api]:
    """
    The API behind *url*, with a new connection for each request.
    """
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=WAIT_S)
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as client:
        api: Any = client
        yield Api(api, ScriptedModel())


@asynccontextmanager
async def running(folder: Path, port: int, *arguments: str, **variables: str) -> AsyncIterator[Site]:
    """
    Two processes with *arguments* and states of their own, and the router.
    """
    async with AsyncExitStack() as stack:
        nodes = {name: await stack.enter_async_context(serving(folder, name, *arguments, **variables)) for name in "ab"}
        ports = {name: int(node.url.rpartition(":")[2]) for name, node in nodes.items()}
        url = await stack.enter_async_context(routing(folder, port, ports))
        yield Site(await stack.enter_async_context(talking(url)), url, nodes)


def serving(folder: Path, node: str, *arguments: str, port: str = "0", **variables: str) -> Any:
    state = str(folder / f"{node}.state")
    return start("serve", "--node", node, "--port", port, "--state", state, *arguments, **variables)


@pytest.fixture
async def site(tmp_path: Path, unused_tcp_port: int) -> AsyncIterator[Site]:
    async with running(tmp_path, unused_tcp_port, "--demo") as site:
        yield site


def numbered(frames: list[Frame]) -> list[bytes]:
    return [frame.raw for frame in frames if frame.id is not None]


async def play(site: Site, key: str | None) -> str:
    """
    Whatever can be done with a session, each time over another connection; its id.
    """
    made = await site.create(key)
    if key is not None:
        again = await site.create(key)
        assert (again.raw, again.headers["idempotency-replayed"]) == (made.raw, "true")
    talk = Talk(site.api, made.body["id"])
    talk.stream = await talk.follow(after=0)
    await talk.park()
    [call] = (await talk.snapshot())["required_actions"]
    assert (await talk.result(call["call_id"], "teal"))["accepted"]
    await talk.stream.until_status("idle")
    told = numbered(talk.stream.frames)
    talk.stream.close()

    # Taken up again in the middle, by number.
    resumed = await talk.follow(last_id=len(told) // 2, until="idle")
    assert numbered(await resumed.rest()) == told[len(told) // 2 :]
    assert types(await talk.turn("What was it?"))[-1] == DONE
    assert (await site.api.ask("PATCH", talk.path, json={"metadata": {"seen": "yes"}})).status == 200
    assert await talk.raw() == (await site.api.ask("GET", site.nodes[node_of(talk.id)].url + talk.path)).raw

    forked = await site.api.ask("POST", f"{talk.path}/fork", json={}, headers={"Idempotency-Key": "fork"})
    repeated = await site.api.ask("POST", f"{talk.path}/fork", json={}, headers={"Idempotency-Key": "fork"})
    fork = Talk(site.api, forked.body["id"])
    assert forked.status == 201 and repeated.raw == forked.raw and node_of(fork.id) == node_of(talk.id)
    assert [item["type"] for item in await fork.items()] == [item["type"] for item in await talk.items()]
    assert types(await fork.turn("And here?"))[-1] == DONE
    assert (await site.api.ask("DELETE", fork.path)).status == 200
    await site.api.refused("GET", fork.path, status=404, code="unknown_session")
    return talk.id


async def test_sessions_live_in_both_processes_and_no_request_goes_astray(site: Site) -> None:
    keys = [f"key-{number}" if number % 2 else None for number in range(SESSIONS)]
    async with asyncio.timeout(6 * WAIT_S):
        made = await asyncio.gather(*(play(site, key) for key in keys))
        while len(nodes := {node_of(session_id) for session_id in made}) < 2 and len(made) < MANY:
            made.append(await play(site, f"key-{len(made)}"))

    assert nodes == {"a", "b"} and len(set(made)) == len(made)
    for node in nodes:
        own = {session_id for session_id in made if node_of(session_id) == node}
        assert await site.listed(node) == own
        answers = await site.answered(node)
        refused = {name: count for name, count in answers.items() if name[1] >= 400}
        assert refused == {("GET /v1/sessions/{session_id}", 404): len(own)}, "the deleted forks, and nothing else"
        assert answers["POST /v1/sessions/{session_id}/fork", 201] == 2 * len(own)
        assert answers["GET /v1/sessions/{session_id}/stream", 200] == 2 * len(own)


async def test_the_python_client_with_a_tool_works_through_the_router(site: Site) -> None:
    def look_up(widget_id: int) -> str:
        """
        Look up a widget.

        Args:
            widget_id: its number, e.g. 42.
        """
        return f"widget {widget_id} is teal"

    async with Client(site.url) as client:
        sessions = [await client.sessions.create() for _ in range(6)]
        results = await asyncio.gather(*(session.run("Which?", tools=[look_up]) for session in sessions))
    assert all("is teal" in result.text for result in results)
    for node in site.nodes:
        async with Client(f"{site.url}/node/{node}") as client:
            listed = [session.id async for session in client.sessions.list()]
        assert listed == [session.id for session in reversed(sessions) if node_of(session.id) == node]


async def test_a_delta_arrives_while_the_model_still_speaks(tmp_path: Path, unused_tcp_port: int) -> None:
    with MockLLM() as mock:
        arguments = ("--model", "mock", "--no-key")
        async with running(tmp_path, unused_tcp_port, *arguments, OPENAI_BASE_URL=mock.base_url) as site:
            for node, follow in itertools.product("ab", (follow_session, follow_message)):
                step = mock.block(1).reply(deltas=["first ", "second"])
                talk = await site.open_on(node)
                stream = await follow(talk)
                frames = await stream.until("response.output_text.delta")
                assert frames[-1].data["delta"] == "first "
                # The rest has not even been said.
                await step.parked()
                step.release()
                assert (await stream.until("response.output_text.done"))[-1].data["text"] == "first second"
                for opened in {stream, talk.stream}:
                    opened.close()


async def follow_session(talk: Talk) -> Stream:
    await talk.send()
    return talk.stream


async def follow_message(talk: Talk) -> Stream:
    return await talk.send_streamed()


async def test_a_process_that_is_away_is_waited_for_and_the_others_work_on(tmp_path: Path, site: Site) -> None:
    here, away = await site.create_on("a"), await site.open_on("b")
    await away.park()
    [call] = (await away.snapshot())["required_actions"]
    assert (await site.nodes["b"].end(signal.SIGTERM))[0] == 0
    assert types(await away.stream.rest()) == [DONE]

    port = site.nodes["b"].url.rpartition(":")[2]
    with hold_port(int(port)):
        answer = await site.api.ask("GET", away.path)
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        error = answer.body["error"]
        assert (error["type"], error["code"], error["param"]) == ("server_error", "shutting_down", None)
        assert types(await here.turn())[-1] == DONE
        made = [(await site.create(key)).body["id"] for key in (None, "1", "2", "3", "4", "5")]
        assert {node_of(session_id) for session_id in made} == {"a"}

        async with serving(tmp_path, "b", "--demo", port=port):
            stream = await away.follow()
            await stream.until("response.output_item.done")
            assert (await away.result(call["call_id"], "teal"))["accepted"]
            await stream.until_status("idle")
            stream.close()
            assert "teal" in (await away.items())[-1]["content"][0]["text"]
            await site.create_on("b")


async def test_what_the_router_answers_itself_has_the_shape_of_the_api(site: Site) -> None:
    await site.api.refused("GET", "/v1/sessions?limit=1", status=404, code="unknown_path")
    for session_id in ("sess_c_1", "sess_1", "x", "sess_a_1"):
        await site.api.refused("GET", f"/v1/sessions/{session_id}", status=404, code="unknown_session")
    large = {"Content-Length": str(16 * 1024 * 1024 + 1), "Content-Type": "application/json"}
    await site.api.refused("POST", "/v1/sessions", status=413, code="request_too_large", headers=large, data=b"")


async def test_a_message_that_is_larger_than_what_nginx_keeps_in_memory_arrives_whole(site: Site) -> None:
    text = "w" * 700_000
    for node in site.nodes:
        talk = await site.create_on(node)
        await talk.turn(text)
        assert (await talk.items())[0]["content"] == [{"type": "input_text", "text": text}]
