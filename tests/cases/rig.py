"""
One session over real sockets: the server, the adapter of a dialect, and the strict mock model server behind it.

Everything is asked over HTTP, of both servers; what the model was sent comes from the mock's captured requests.
"""

import asyncio
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from aiohttp.test_utils import TestClient

from agent_harness.testing.strict import Dialect
from tests.support import WAIT_S, Frame, Talk

__all__ = [
    "DIALECTS",
    "TOOLS",
    "Case",
    "Clock",
    "Sent",
    "begun",
    "calling",
    "chat_stream",
    "frame",
    "raw_calls",
    "responses_stream",
]

DIALECTS: tuple[Dialect, ...] = ("responses", "chat")

TOOLS = [
    {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}} for name in ("look", "find")
]

Entry = dict[str, Any]


@attrs.frozen
class Sent:
    """
    A model request as the mock server captured it.
    """

    dialect: Dialect
    status: int | None
    body: dict[str, Any]

    @property
    def said(self) -> list[tuple[Any, ...]]:
        """
        What it says, in the same form for both dialects: ``("user", content)``, ``("assistant", text)``,
        ``("call", call_id, name, arguments)``, ``("output", call_id, output)``. Texts are strings, other content is as
        it was sent.
        """
        if self.dialect == "responses":
            return [entry for item in self.body["input"] for entry in read_item(item)]
        return [entry for message in self.body["messages"] for entry in read_message(message)]

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        """
        The entries of `said` of one kind, without it.
        """
        return [entry[1:] for entry in self.said if entry[0] == kind]


def read_item(item: dict[str, Any]) -> list[tuple[Any, ...]]:
    kind = item.get("type", "message")
    if kind == "message":
        return [(item["role"], read_content(item["content"]))]
    if kind == "function_call":
        return [("call", item["call_id"], item["name"], item["arguments"])]
    if kind == "function_call_output":
        return [("output", item["call_id"], item["output"])]
    return [(kind, item)]


def read_message(message: dict[str, Any]) -> list[tuple[Any, ...]]:
    if message["role"] == "system":
        return []
    if message["role"] == "tool":
        return [("output", message["tool_call_id"], message["content"])]
    calls = [
        ("call", call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    ]
    # An answer of calls alone has the empty content.
    said = [] if calls and not message["content"] else [(message["role"], read_content(message["content"]))]
    return [*said, *calls]


def read_content(content: Any) -> Any:
    if isinstance(content, list) and all("text" in part for part in content):
        return "".join(part["text"] for part in content)
    return content


class Case(Talk):
    """
    A session, and the tester's side of its model server. ``stream`` follows it from its beginning.
    """

    dialect: Dialect
    mock: TestClient[Any, Any]

    async def tell_mock(self, path: str, body: Any = None) -> Any:
        """
        POST *body* to the mock, or GET without one.
        """
        async with asyncio.timeout(WAIT_S + 1):
            # As a file: the client warns of large bodies given as bytes.
            data = None if body is None else io.BytesIO(json.dumps(body).encode())
            ask = self.mock.get(path) if data is None else self.mock.post(path, data=data)
            async with ask as response:
                assert response.status == 200, await response.text()
                return await response.json()

    async def script(self, *entries: Entry, strict: Mapping[str, bool] | None = None) -> None:
        """
        What the model answers from now on.
        """
        await self.tell_mock("/mock/configure", {"responses": list(entries), "strict": strict})

    async def requests(self) -> list[Sent]:
        """
        The session's model requests so far, in order.
        """
        captured = (await self.tell_mock("/mock/requests"))["requests"]
        return [
            Sent("chat" if held["path"].endswith("completions") else "responses", held["status"], held["body"])
            for held in captured
            if held["headers"].get("x-session-id") == self.id
        ]

    async def parked(self, count: int) -> None:
        """
        Wait until *count* model requests are parked.
        """
        assert (await self.tell_mock(f"/gate/pending?wait={count}"))["pending"] == count

    async def release(self) -> None:
        """
        Let parked model requests go on.
        """
        await self.tell_mock("/gate/release", {})

    async def upstreams(self, count: int) -> None:
        """
        Wait until *count* model requests are being answered.
        """
        assert (await self.tell_mock(f"/stats?open={count}"))["open"] == count

    async def settle(self) -> None:
        """
        Let both servers do what they have to do now.
        """
        for _ in range(3):
            await self.snapshot()
            await self.requests()

    async def waiting(self) -> list[dict[str, Any]]:
        """
        Read on until the session waits for its client; the open calls.
        """
        actions: list[dict[str, Any]] = (await self.stream.until_status("waiting"))[-1].data["required_actions"]
        return actions

    async def rests(self) -> str:
        """
        Read on until the session rests; its status.
        """
        frames = await self.stream.until(is_rest)
        return str(frames[-1].data["status"])

    async def record(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """
        The record of the turn that a message began.
        """
        record: dict[str, Any] = await self.api.get(f"{self.path}/responses/{sent['response_id']}")
        return record

    async def says(self, text: str = "And now?") -> dict[str, Any]:
        """
        Send a message whose turn is scripted to end without calls, and wait for its end; the turn's record. The stream
        is read past whatever came before.
        """
        sent = await self.send(text)
        await self.stream.until(lambda frame: is_end(frame) and frame.data["response"]["id"] == sent["response_id"])
        await self.stream.until(is_rest)
        return await self.record(sent)

    async def texts(self) -> list[tuple[str, str]]:
        """
        The snapshot's messages: role and text.
        """
        return [
            (item["role"], "".join(part.get("text", "") for part in item["content"]))
            for item in await self.items()
            if item["type"] == "message"
        ]


class Clock:
    """
    The event loop's clock, which can be put forward: timers that were set before come due at once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ahead = 0.0
        self.time = loop.time
        loop.time = lambda: self.time() + self.ahead  # type: ignore[method-assign]

    def put_forward(self, seconds: float) -> None:
        self.ahead += seconds


def is_rest(frame: Frame) -> bool:
    return frame.event == "session.status" and frame.data["status"] in ("idle", "failed")


def is_end(frame: Frame) -> bool:
    return frame.event in (
        "response.completed",
        "response.failed",
        "response.incomplete",
        "response.cancelled",
    )


# Answers of the model.


def calling(*call_ids: str, arguments: str = "{}", **extra: Any) -> Entry:
    """
    An answer with a call of ``look`` under each id.
    """
    return {"tool_calls": [{"call_id": each, "name": "look", "arguments": arguments} for each in call_ids], **extra}


def begun(dialect: Dialect) -> int:
    """
    After how many frames of an answer of text its first word is out.
    """
    return 5 if dialect == "responses" else 2


def frame(value: Any, event: str | None = None) -> str:
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(value)}\n\n"


def chat_stream(*deltas: Mapping[str, Any], finish: str | None = "tool_calls", done: bool = True) -> list[str]:
    """
    A stream of Chat Completions made of these deltas.
    """
    chunks = [(delta, None) for delta in deltas] + ([({}, finish)] if finish else [])
    return [
        *(frame({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}) for delta, reason in chunks),
        *(["data: [DONE]\n\n"] if done else []),
    ]


def responses_stream(*items: Mapping[str, Any], **response: Any) -> list[str]:
    """
    A stream of the Responses API made of these items, each whole.
    """
    events: list[dict[str, Any]] = [{"type": "response.created", "response": {}}]
    for index, item in enumerate(items):
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": {"output": list(items), **response}})
    return [frame(event, event["type"]) for event in events]


def raw_calls(dialect: Dialect, *calls: Sequence[Any]) -> Entry:
    """
    An answer of calls that are sent as they are: name, arguments (of any type), and a call id if there is a third.
    """
    if dialect == "chat":
        pieces = [
            {"index": at, "function": {"name": name, "arguments": arguments}, **({"id": rest[0]} if rest else {})}
            for at, (name, arguments, *rest) in enumerate(calls)
        ]
        return {"raw": chat_stream({"tool_calls": pieces})}
    items = [
        {
            "type": "function_call",
            "id": f"fc_{at}",
            "name": name,
            "arguments": arguments,
            **({"call_id": rest[0]} if rest else {}),
        }
        for at, (name, arguments, *rest) in enumerate(calls)
    ]
    return {"raw": responses_stream(*items)}
