"""
A server whose two providers speak one dialect each to one mock model server, which keeps the bytes of what it was
asked. Both in threads, on real sockets.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
from aiohttp import web

from agent_harness.config import ProviderSettings, Settings
from agent_harness.server import make_app
from agent_harness.testing.mock_llm import make_mock_app
from agent_harness.testing.strict import Dialect
from agent_harness.testing.threads import ThreadServer
from agent_harness.wiring import open_harness

__all__ = ["DIALECTS", "TOOLS", "Asked", "Servers", "Talk", "serve_both"]

DIALECTS: tuple[Dialect, ...] = ("responses", "chat")
WAIT_S = 10.0
TOOLS = [
    {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}} for name in ("look", "find")
]


@attrs.frozen
class Asked:
    """
    A model request as the mock server received it, and the status it began its answer with.
    """

    dialect: Dialect
    raw: bytes
    status: int

    @property
    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.raw)
        return body

    @property
    def items(self) -> bytes:
        """
        The bytes of all items, joined as they were sent; both adapters send them last.
        """
        key = b'"input":[' if self.dialect == "responses" else b'"messages":['
        _, found, rest = self.raw.partition(key)
        assert found and rest.endswith(b"]}"), self.raw[:200]
        return rest[:-2]


@attrs.define
class Servers:
    """
    Both servers. ``asked`` is every model request since the last `clear`.
    """

    url: str
    mock_url: str
    asked: list[Asked] = attrs.field(factory=list)

    def script(self, entries: Sequence[dict[str, Any]], key: str = "default") -> None:
        """
        What the model answers from now on.
        """
        self.tell_mock("/mock/configure", {"key": key, "responses": list(entries)})

    def clear(self) -> None:
        """
        Forget scripts, sessions and what was asked.
        """
        self.tell_mock("/mock/reset", {})
        self.asked.clear()

    def tell_mock(self, path: str, body: Any = None) -> Any:
        """
        Ask the tester's side of the mock server.
        """
        return fetch(self.mock_url + path, body)

    def api(self, path: str, body: Any = None, method: str | None = None) -> Any:
        """
        Ask the sessions API; a refusal is a failure.
        """
        return fetch(f"{self.url}/v1/sessions{path}", body, method)


class Talk:
    """
    A session of one dialect, with the tools `look` and `find`.
    """

    def __init__(self, servers: Servers, dialect: Dialect, **agent: Any) -> None:
        self.servers = servers
        snapshot = servers.api("", {"agent": {"provider": dialect, "tools": TOOLS, **agent}})
        self.id, self.seq = snapshot["id"], snapshot["seq"]

    def send(self, text: str = "Go.", **extra: Any) -> Any:
        """
        Post a message.
        """
        return self.post({"type": "message", "data": {"role": "user", "content": text}, **extra})

    def result(self, call_id: str, output: Any = None, **data: Any) -> Any:
        """
        Post a result.
        """
        output = f"what {call_id} found" if output is None else output
        return self.post({"type": "function_call_output", "data": {"call_id": call_id, "output": output, **data}})

    def post(self, body: Any) -> Any:
        """
        Post to the session's events.
        """
        return self.servers.api(f"/{self.id}/events", body)

    def turn(self, *entries: dict[str, Any]) -> dict[str, Any]:
        """
        One turn with these answers of the model, its calls answered; its record.
        """
        self.servers.script(entries)
        sent = self.send()
        self.finish()
        return self.record(sent)

    def finish(self, answer: Callable[[list[str]], object] | None = None) -> str:
        """
        Read on until the session rests, and answer what it waits for: with *answer*, which is given the ids of the open
        calls, or one after another. The status it rests in.
        """
        while True:
            event = self.read_until(lambda event: event.get("status") in ("waiting", "idle", "failed"))
            if event["status"] != "waiting":
                return str(event["status"])
            call_ids = [action["call_id"] for action in event["required_actions"]]
            if answer is not None:
                answer(call_ids)
                continue
            for call_id in call_ids:
                self.result(call_id)

    def read_until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """
        Read the session's events on to the first numbered one that is *wanted*.
        """
        pings = 0
        url = f"{self.servers.url}/v1/sessions/{self.id}/stream?after={self.seq}"
        with urllib.request.urlopen(url, timeout=WAIT_S) as stream:
            numbered = False
            for line in stream:
                pings += line.startswith(b": ping")
                assert pings < 2, "what is waited for did not come"
                numbered = line.startswith(b"id:") or (numbered and line != b"\n")
                if numbered and line.startswith(b"data: "):
                    event: dict[str, Any] = json.loads(line[6:])
                    self.seq = event["seq"]
                    if wanted(event):
                        return event
        raise AssertionError("the stream ended before what is waited for came")

    def record(self, sent: Any) -> dict[str, Any]:
        """
        The record of the turn that a message began.
        """
        record: dict[str, Any] = self.servers.api(f"/{self.id}/responses/{sent['response_id']}")
        return record

    def snapshot(self) -> dict[str, Any]:
        """
        The session as it is.
        """
        snapshot: dict[str, Any] = self.servers.api(f"/{self.id}")
        return snapshot


def fetch(url: str, body: Any = None, method: str | None = None) -> Any:
    """
    GET, or POST *body*; the JSON that comes back.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(f"{url} was refused: {error.read()[:500]!r}") from None


@contextmanager
def serve_both(**options: Any) -> Iterator[Servers]:
    """
    The servers, with providers named ``responses`` and ``chat``; *options* are theirs.
    """
    servers = Servers("", "")

    @web.middleware
    async def record(request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path not in ("/v1/responses", "/v1/chat/completions"):
            answer: web.StreamResponse = await handler(request)
            return answer
        raw = await request.read()
        dialect: Dialect = "responses" if request.path == "/v1/responses" else "chat"
        place = len(servers.asked)
        # Until it is known: a request whose client left is answered, since its answer had begun.
        servers.asked.append(Asked(dialect, raw, 200))
        response: web.StreamResponse = await handler(request)
        if place < len(servers.asked):
            servers.asked[place] = Asked(dialect, raw, response.status)
        return response

    async def make_mock() -> web.Application:
        app = make_mock_app()
        app.middlewares.append(record)
        return app

    async def make_server() -> web.Application:
        providers = tuple(
            ProviderSettings(
                name=dialect,
                api=dialect,
                base_url=f"{servers.mock_url}/v1",
                api_key_env=None,
                needs_key=False,
                model="mock",
                **options,
            )
            for dialect in DIALECTS
        )
        return make_app(open_harness(Settings(providers=providers, default_provider="responses")))

    with ThreadServer(make_mock) as mock:
        servers.mock_url = mock.url
        with ThreadServer(make_server) as server:
            servers.url = server.url
            yield servers
