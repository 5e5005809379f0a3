"""
What the tests of the HTTP side share: a client that checks the shape of every answer, and a reader of event streams
that checks the shape of every frame.

Each wait is bounded by `WAIT_S`; nothing here sleeps.
"""

import asyncio
import io
import json
from collections.abc import Callable
from typing import Any

import attrs
import orjson
from aiohttp import ClientResponse, ClientTimeout
from aiohttp.test_utils import TestClient
from yarl import URL

from agent_harness.llm.scripted import ScriptedModel

__all__ = ["DONE", "TOOL", "WAIT_S", "Api", "Frame", "Stream", "Talk", "heard", "strict_json", "types", "user"]

WAIT_S = 5.0
"""Longest any test waits for anything, in seconds."""

DONE = "[DONE]"

TOOL: dict[str, Any] = {
    "type": "function",
    "name": "look_up",
    "parameters": {"type": "object", "properties": {"widget_id": {"type": "integer"}}, "required": ["widget_id"]},
}
"""A client tool in the flat shape."""


def strict_json(text: str | bytes) -> Any:
    """
    *text* as JSON; NaN and its like are a failure.
    """

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def user(text: str, **extra: Any) -> dict[str, Any]:
    """
    The body of a message event.
    """
    return {"type": "message", "data": {"role": "user", "content": text}, **extra}


def heard(model: ScriptedModel, index: int) -> list[dict[str, Any]]:
    """
    The items that the model was sent with its call number *index* (from 0; negative from the end).
    """
    items: list[dict[str, Any]] = orjson.loads(model.body(model.requests[index]))["input"]
    return items


@attrs.frozen
class Frame:
    """
    One frame of a stream; ``data`` is the parsed JSON, or `DONE`.
    """

    event: str | None
    id: int | None
    data: Any
    raw: bytes

    @property
    def seq(self) -> int:
        seq: int = self.data["seq"]
        return seq


def types(frames: list[Frame]) -> list[str]:
    """
    The event types of *frames*; statuses with their status, the end as `DONE`.
    """
    told = []
    for frame in frames:
        if frame.data == DONE:
            told.append(DONE)
        elif frame.event == "session.status":
            told.append(f"session.status {frame.data['status']}")
        else:
            told.append(frame.event or "")
    return told


def read_frame(block: bytes) -> Frame:
    """
    One block between blank lines as a frame; whatever the contract does not allow in it is a failure.
    """
    fields: dict[str, str] = {}
    text = block.decode()
    assert "\r" not in text and len(text.splitlines()) == len(text.split("\n")), text
    for line in text.split("\n"):
        if line == ": ping":
            continue
        name, colon, value = line.partition(": ")
        assert colon and name in ("event", "id", "retry", "data") and name not in fields, line
        fields[name] = value
    if fields["data"] == DONE:
        assert list(fields) == ["data"], fields
        return Frame(None, None, DONE, block)
    data = strict_json(fields["data"])
    number = int(fields["id"]) if "id" in fields else None
    assert data["type"] == fields["event"], text
    assert isinstance(data["seq"], int) and number in (None, data["seq"]), text
    assert fields.get("retry", "1000") == "1000", text
    return Frame(fields["event"], number, data, block)


class Stream:
    """
    Reads frames from an open response. ``frames`` is all that was read, ``raw`` the bytes that came.
    """

    def __init__(self, response: ClientResponse) -> None:
        self.response = response
        self.frames: list[Frame] = []
        self.raw = bytearray()
        self._rest = bytearray()

    async def next(self) -> Frame | None:
        """
        The next frame, or None at the end of the body.
        """
        end = self._rest.find(b"\n\n")
        async with asyncio.timeout(WAIT_S):
            while end < 0:
                chunk = await self.response.content.readany()
                if not chunk:
                    assert not self._rest.replace(b": ping\n", b""), self._rest
                    return None
                searched = max(0, len(self._rest) - 1)
                self.raw += chunk
                self._rest += chunk
                end = self._rest.find(b"\n\n", searched)
        block = bytes(self._rest[:end])
        del self._rest[: end + 2]
        frame = read_frame(block)
        self.frames.append(frame)
        return frame

    async def until(self, wanted: str | Callable[[Frame], bool]) -> list[Frame]:
        """
        Read up to and including a frame of the type *wanted*, or that it is true of; what was read by this call.
        """
        seen: list[Frame] = []
        while True:
            frame = await self.next()
            assert frame is not None, f"the stream ended before {wanted}: {types(seen)}"
            seen.append(frame)
            if frame.event == wanted or (callable(wanted) and frame.data != DONE and wanted(frame)):
                return seen

    async def until_status(self, status: str) -> list[Frame]:
        """
        Read up to and including the next ``session.status`` with that *status*.
        """
        return await self.until(lambda frame: frame.event == "session.status" and frame.data["status"] == status)

    async def rest(self) -> list[Frame]:
        """
        Read to the end of the body.
        """
        seen: list[Frame] = []
        while (frame := await self.next()) is not None:
            seen.append(frame)
        return seen

    def close(self) -> None:
        """
        Leave.
        """
        self.response.close()


@attrs.frozen
class Answer:
    """
    A whole answer; ``body`` is the parsed JSON.
    """

    status: int
    body: Any
    headers: Any
    raw: bytes


class Api:
    """
    The sessions API on a real socket, and the model behind it.
    """

    def __init__(self, client: TestClient[Any, Any], model: ScriptedModel) -> None:
        self.client = client
        self.model = model

    async def ask(self, method: str, path: str, **options: Any) -> Answer:
        """
        One request; *path* goes out as it is written.
        """
        if "json" in options:
            # As a file: the client warns of large bodies given as bytes.
            options["data"] = io.BytesIO(json.dumps(options.pop("json")).encode())
            options["headers"] = {"Content-Type": "application/json"} | options.get("headers", {})
        async with asyncio.timeout(WAIT_S):
            async with self.client.request(method, URL(path, encoded=True), **options) as response:
                raw = await response.read()
        assert response.content_type == "application/json", (response.status, raw[:200])
        return Answer(response.status, strict_json(raw) if raw else None, response.headers, raw)

    async def get(self, path: str) -> Any:
        """
        The body of a GET that is answered 200.
        """
        answer = await self.ask("GET", path)
        assert answer.status == 200, answer.body
        return answer.body

    async def refused(
        self, method: str, path: str, *, status: int, code: str, param: str | None = None, **options: Any
    ) -> dict[str, Any]:
        """
        One request that is refused exactly so; the error object.
        """
        answer = await self.ask(method, path, **options)
        assert answer.status == status, (answer.status, answer.raw[:500])
        error: dict[str, Any] = answer.body["error"]
        assert list(answer.body) == ["error"] and list(error)[:4] == ["type", "code", "message", "param"], answer.body
        assert (error["code"], error["param"]) == (code, param), error
        assert isinstance(error["message"], str) and error["message"], error
        assert answer.headers.get("x-should-retry") == ("false" if status in (404, 409) else None)
        kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 409: "conflict_error"}
        kinds |= {429: "rate_limit_error", 500: "server_error", 503: "server_error"}
        assert error["type"] == kinds.get(status, "invalid_request_error")
        return error

    async def create(self, **body: Any) -> dict[str, Any]:
        """
        Make a session; its snapshot.
        """
        answer = await self.ask("POST", "/v1/sessions", json=body)
        assert answer.status == 201, answer.body
        snapshot: dict[str, Any] = answer.body
        return snapshot

    async def open(self, **body: Any) -> "Talk":
        """
        Make a session and follow it from its beginning.
        """
        talk = Talk(self, (await self.create(**body))["id"])
        talk.stream = await talk.follow(after=0)
        await talk.stream.next()
        return talk


class Talk:
    """
    One session of an `Api`. ``stream`` follows it from its beginning, if `Api.open` made it.
    """

    stream: Stream

    def __init__(self, api: Api, session_id: str) -> None:
        self.api = api
        self.id = session_id
        self.path = f"/v1/sessions/{session_id}"

    async def post(self, body: Any) -> Any:
        """
        Post to ``/events``; the body of the 202.
        """
        answer = await self.api.ask("POST", f"{self.path}/events", json=body)
        assert answer.status == 202, answer.body
        return answer.body

    async def send(self, text: str = "hello", **extra: Any) -> Any:
        """
        Post a message.
        """
        return await self.post(user(text, **extra))

    async def result(self, call_id: str, output: Any = "ok", **extra: Any) -> Any:
        """
        Post a result.
        """
        return await self.post(
            {"type": "function_call_output", "data": {"call_id": call_id, "output": output, **extra}}
        )

    async def interrupt(self, **data: Any) -> Any:
        """
        Post an interrupt.
        """
        return await self.post({"type": "interrupt", "data": data})

    async def refused(self, body: Any, *, status: int, code: str, param: str | None = None) -> dict[str, Any]:
        """
        Post what is refused exactly so, and changes nothing.
        """
        before = await self.raw()
        path = f"{self.path}/events"
        error = await self.api.refused("POST", path, json=body, status=status, code=code, param=param)
        assert await self.raw() == before
        return error

    async def snapshot(self) -> Any:
        """
        The session as it is.
        """
        return await self.api.get(self.path)

    async def raw(self) -> bytes:
        """
        The session as it is, byte for byte.
        """
        return (await self.api.ask("GET", self.path)).raw

    async def items(self) -> list[dict[str, Any]]:
        """
        The snapshot's items.
        """
        items: list[dict[str, Any]] = (await self.snapshot())["items"]
        return items

    async def request_body(self) -> Any:
        """
        What the next model call would send.
        """
        return await self.api.get(f"{self.path}/request")

    async def follow(self, *, last_id: Any = None, **query: Any) -> Stream:
        """
        Open the session's stream.
        """
        headers = {} if last_id is None else {"Last-Event-ID": str(last_id)}
        async with asyncio.timeout(WAIT_S):
            response = await self.api.client.get(
                f"{self.path}/stream",
                headers=headers,
                params={name: str(value) for name, value in query.items()},
                timeout=ClientTimeout(total=None),
            )
        assert response.status == 200, await response.read()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        return Stream(response)

    async def send_streamed(self, text: str = "hello", **extra: Any) -> Stream:
        """
        Post a message with ``?stream=true``.
        """
        async with asyncio.timeout(WAIT_S):
            response = await self.api.client.post(
                f"{self.path}/events?stream=true", json=user(text, **extra), timeout=ClientTimeout(total=None)
            )
        assert response.status == 200, await response.read()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        return Stream(response)

    async def turn(self, text: str = "hello", **extra: Any) -> list[Frame]:
        """
        Send a message and read its turn to the end.
        """
        return await (await self.send_streamed(text, **extra)).rest()

    async def park(self, text: str = "look it up", **extra: Any) -> Any:
        """
        Send a message with a tool and read up to ``waiting``; the answer.
        """
        answer = await self.send(text, **({"tools": [TOOL]} | extra))
        await self.stream.until_status("waiting")
        return answer
