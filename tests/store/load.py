"""
Load on a server that is killed again and again: a strict model server whose answers depend on the request alone, and
clients that remember everything they were told.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import attrs
from aiohttp import web

from agent_harness.testing.mock_entry import Entry, read_entry
from agent_harness.testing.mock_llm import STATE, make_mock_app
from agent_harness.testing.mock_state import MockState

__all__ = ["LoadState", "Talker", "World", "make_load_app"]

WAIT_S = 15.0
"""Longest wait for anything, a restart on a busy machine too, in seconds."""

TOOLS = [{"type": "function", "name": name} for name in ("look", "find")]
CALLS = [{"name": "look", "arguments": '{"a":  1}'}, {"name": "find", "arguments": "{}"}]
ENDED = ("completed", "failed", "cancelled", "incomplete")


class LoadState(MockState):
    """
    Two calls for a message with the word "tools", else a few words, slow enough to be killed in the middle.
    """

    on_request: Callable[[], None] = staticmethod(lambda: None)

    def take(self, key: str) -> Entry | None:
        self.on_request()
        last = self.captured[-1].body["input"][-1]
        wants_tools = last["type"] == "message" and "tools" in json.dumps(last)
        answer: dict[str, Any] = {"text": "One two three four five.", "delay_s": 0.002}
        if wants_tools:
            answer |= {"reasoning": "Let me think.", "tool_calls": CALLS}
        return read_entry(answer, "load")


async def make_load_app(state: LoadState) -> web.Application:
    app = make_mock_app()
    app[STATE] = state
    return app


@attrs.define
class World:
    """
    The server as its clients know it: where it is now, and a count of what they heard.
    """

    url: str = ""
    generation: int = 0
    heard: int = 0
    over: bool = False
    on_heard: Callable[[], None] = lambda: None
    changed: asyncio.Condition = attrs.field(factory=asyncio.Condition)

    async def move(self, url: str) -> None:
        """
        It listens there now.
        """
        async with self.changed:
            self.url, self.generation = url, self.generation + 1
            self.changed.notify_all()

    async def wait_after(self, generation: int) -> None:
        """
        Wait for the next start.
        """
        async with asyncio.timeout(WAIT_S), self.changed:
            await self.changed.wait_for(lambda: self.generation > generation)

    def hear(self) -> None:
        """
        Something was heard.
        """
        self.heard += 1
        self.on_heard()


@attrs.define
class Known:
    """
    What was acknowledged of one session.
    """

    messages: dict[str, str] = attrs.field(factory=dict)
    results: dict[str, str] = attrs.field(factory=dict)
    items: dict[str, dict[str, Any]] = attrs.field(factory=dict)


class Talker:
    """
    A client of the *world*; plays turns in one session after the other until it is over.
    """

    def __init__(self, world: World, http: aiohttp.ClientSession, name: str, seed: int) -> None:
        self.world, self.http, self.name = world, http, name
        self.random = random.Random(seed)
        self.known: dict[str, Known] = {}
        self.outputs: dict[str, str] = {}
        self.executed: dict[str, set[str]] = {}
        self.turns = self.repeated = self.cut = 0

    async def play(self) -> None:
        """
        Turns without end, then one more in each session: what is taken up again must go on, too.
        """
        while not self.world.over:
            session_id = await self.make_session()
            for _ in range(3):
                await self.turn(session_id)
        for session_id in self.known:
            await self.turn(session_id)

    async def make_session(self) -> str:
        status, body = await self.post("/v1/sessions", {"metadata": {"name": self.name}}, key=self.key())
        assert status == 201, body
        self.known[body["id"]] = Known()
        return str(body["id"])

    def key(self) -> str:
        return f"{self.name}-{self.random.getrandbits(64):x}"

    async def turn(self, session_id: str) -> None:
        """
        Say something, answer the calls that come of it, and hear its end.
        """
        self.turns += 1
        text = f"{self.name} {self.turns} {self.random.choice(['tools', 'plain'])}"
        self.executed[text] = set()
        body = {"type": "message", "data": {"content": text}, "tools": TOOLS}
        status, answer = await self.post(f"/v1/sessions/{session_id}/events", body, key=self.key())
        assert status == 202, answer
        self.known[session_id].messages[answer["item_id"]] = text
        while not await self.follow(session_id, answer["response_id"], text):
            pass
        assert len(self.executed[text]) == (2 if text.endswith("tools") else 0), (text, self.executed[text])

    async def follow(self, session_id: str, response_id: str, text: str) -> bool:
        """
        Whether the response has ended; False when the server went away before.
        """
        generation = self.world.generation
        path, first = f"/v1/sessions/{session_id}", True
        async for event in self.events(f"{path}/stream"):
            if first:
                first = False
                _, record = await self.ask("GET", f"{path}/responses/{response_id}")
                if record["status"] in ENDED:
                    assert record["status"] == "completed", record
                    return True
                if self.world.generation != generation:
                    return False
            if event["type"] == "response.output_item.done":
                await self.note(session_id, event["item"], text)
                continue
            response = event.get("response", {})
            if response.get("id") == response_id and response["status"] in ENDED:
                assert event["type"] == "response.completed", event
                return True
        if self.world.generation == generation:
            await self.world.wait_after(generation)
        return False

    async def note(self, session_id: str, item: dict[str, Any], text: str) -> None:
        self.known[session_id].items[item["id"]] = item
        if item["type"] != "function_call" or item["status"] != "action_required":
            return
        call_id = item["call_id"]
        self.executed[text].add(call_id)
        self.repeated += call_id in self.outputs
        output = self.outputs.setdefault(call_id, f"result {self.random.random()}")
        generation = self.world.generation
        # The tool's work.
        for _ in range(self.random.choice([0, 0, 5, 20])):
            await self.ask("GET", "/health")
        if self.world.generation != generation:
            # The call is told again; what it gave is known.
            return
        data = {"call_id": call_id, "output": output}
        body = {"type": "function_call_output", "data": data}
        status, answer = await self.post(f"/v1/sessions/{session_id}/events", body)
        assert status == 202, answer
        self.known[session_id].results[call_id] = output

    async def events(self, path: str) -> AsyncIterator[dict[str, Any]]:
        """
        The events of a stream until it breaks.
        """
        try:
            timeout = aiohttp.ClientTimeout(total=None, sock_read=WAIT_S)
            async with self.http.get(self.world.url + path, timeout=timeout) as response:
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        self.world.hear()
                        yield json.loads(line[6:])
        except (aiohttp.ClientError, ConnectionError):
            return

    async def post(self, path: str, body: Any, key: str | None = None) -> tuple[int, Any]:
        headers = {} if key is None else {"Idempotency-Key": key}
        return await self.ask("POST", path, json=body, headers=headers)

    async def ask(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        """
        Ask until there is an answer, over restarts.
        """
        while True:
            generation = self.world.generation
            try:
                async with asyncio.timeout(WAIT_S):
                    async with self.http.request(method, self.world.url + path, **options) as response:
                        answer = response.status, await response.json()
                self.world.hear()
                return answer
            except (aiohttp.ClientError, ConnectionError):
                if self.world.generation == generation:
                    await self.world.wait_after(generation)

    async def check(self) -> None:
        """
        Everything that was acknowledged is there.
        """
        cut = 0
        for session_id, still in list(self.known.items()):
            # As it is now: more may become known meanwhile.
            known = Known(dict(still.messages), dict(still.results), dict(still.items))
            status, snapshot = await self.ask("GET", f"/v1/sessions/{session_id}")
            assert status == 200, (session_id, snapshot)
            items = {item["id"]: item for item in snapshot["items"]}
            outputs = {item["call_id"]: item for item in items.values() if item["type"] == "function_call_output"}
            for item_id, text in known.messages.items():
                assert items[item_id]["content"][0]["text"] == text
            for call_id, output in known.results.items():
                assert outputs[call_id]["output"] == output
            for item in known.items.values():
                now = items[item["id"]]
                assert now | {"status": ""} == item | {"status": ""}
                assert now["status"] == item["status"] or item["status"] == "action_required"
            cut += sum(item["status"] == "incomplete" for item in items.values())
            assert len(items) == len(snapshot["items"])
        self.cut = cut
