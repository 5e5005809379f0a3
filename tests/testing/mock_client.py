"""
A client of the mock model server, and the readers of its streams, for the tests beside it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any, TypeVar

import aiohttp

Body = dict[str, Any]
T = TypeVar("T")
PATHS = {"responses": "/v1/responses", "chat": "/v1/chat/completions"}
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}
CALL = {"call_id": "call_1", "name": "look", "arguments": '{"widget_id": 42}'}


async def soon(thing: Awaitable[T]) -> T:
    return await asyncio.wait_for(thing, 5)


class Mock:
    """
    Asks one mock server, as its tester and as a model's client.
    """

    def __init__(self, url: str, client: aiohttp.ClientSession) -> None:
        self.url = url
        self.client = client

    async def post(self, path: str, body: Any = None) -> Body:
        async with self.client.post(self.url + path, json=body or {}) as response:
            assert response.status == 200, await response.text()
            return dict(await response.json())

    async def get(self, path: str) -> Body:
        async with self.client.get(self.url + path) as response:
            return dict(await response.json())

    async def script(self, *entries: Body, **fields: Any) -> None:
        await self.post("/mock/configure", {"responses": entries, **fields})

    async def ask(
        self, dialect: str, text: Any = "hi", *, session: str | None = None, **fields: Any
    ) -> tuple[int, Any]:
        headers = {"x-session-id": session} if session else {}
        async with self.client.post(
            self.url + PATHS[dialect], json=make_body(dialect, text, **fields), headers=headers
        ) as got:
            raw = await got.text()
            return got.status, json.loads(raw) if got.content_type == "application/json" else read_events(raw)

    def open(self, dialect: str, **fields: Any) -> Any:
        return self.client.post(self.url + PATHS[dialect], json=make_body(dialect, "hi", stream=True, **fields))

    async def captured(self, key: str = "") -> list[Body]:
        return list((await self.get(f"/mock/requests?key={key}"))["requests"])


def make_body(dialect: str, text: Any, **fields: Any) -> Body:
    items = text if isinstance(text, list) else [{"role": "user", "content": text}]
    return {"model": "m", ("input" if dialect == "responses" else "messages"): items, **fields}


def read_events(raw: str) -> list[Any]:
    """
    Read a stream: its JSON events, each named by its `event:` line in Responses; "[DONE]" as it is.
    """
    events: list[Any] = []
    assert not raw or raw.endswith("\n\n")
    for frame in raw.split("\n\n")[:-1]:
        *names, data = frame.split("\n")
        held = data.removeprefix("data: ")
        events.append(held if held == "[DONE]" else json.loads(held))
        if names:
            assert names == [f"event: {events[-1]['type']}"]
    return events


async def read_until_broken(content: aiohttp.StreamReader) -> bytes:
    """
    Give what can be read until the connection breaks; it must break.
    """
    raw = b""
    try:
        while not content.at_eof():
            raw += await content.readany()
    except aiohttp.ClientError:
        return raw
    raise AssertionError("the stream ended well")


def join_text(dialect: str, events: list[Any]) -> str:
    if dialect == "responses":
        return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    choices = [choice for event in events if event != "[DONE]" for choice in event["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)
