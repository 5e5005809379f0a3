"""
What the tests of ``providers check`` share: model servers that answer well or spoil something, and the command.

Each server is the strict mock behind a middleware that gives it the right answer, and may refuse or spoil requests as
some real server does. The command runs as a person would run it, and is judged by what it prints and its exit code.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web
from click.testing import CliRunner, Result

from agent_harness.cli import main
from agent_harness.testing.mock_llm import DIALECTS, STATE, make_mock_app
from agent_harness.testing.threads import ThreadServer

PROBES = ["text", "bound", "tool", "recall", "interrupt", "parked", "parts"]

Body = dict[str, Any]
Spoil = Callable[[str, Body], Body | None]
"""
What a server does with a request to a path: None if nothing special, ``{"refuse": words}`` for a 400, ``{"status": n}``
for another status, else an answer for the mock to give.
"""


def read_items(body: Body) -> list[Body]:
    items: list[Body] = body.get("messages") or body.get("input") or []
    return items


def is_user(item: Body) -> bool:
    return item.get("role") == "user"


def answer_well(body: Body) -> Body:
    """
    What a good model would say: a call where it is asked for one, else whatever color it was told of.
    """
    bound = body.get("max_completion_tokens") or body.get("max_tokens") or body.get("max_output_tokens")
    if bound == 16:
        return {"text": "one two three", "finish": "length"}
    if body.get("tools") and is_user(read_items(body)[-1]) and "picture" not in json.dumps(read_items(body)[-1]):
        return {"tool_calls": [{"name": "lookup_widget", "arguments": '{"widget_id": 42}'}]}
    found = re.search(r"ultramarine-\w+", json.dumps(body))
    return {"text": f"It is {found.group()}." if found else "Hello there."}


@contextmanager
def serve(spoil: Spoil = lambda path, body: None) -> Iterator[str]:
    """
    The base URL of such a server.
    """

    @web.middleware
    async def prepare(request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path not in DIALECTS:
            return web.json_response({"error": {"message": f"Unknown route {request.path}"}}, status=404)
        body = await request.json()
        spoilt = spoil(request.path, body) or {}
        if "refuse" in spoilt or "status" in spoilt:
            error = {"error": {"message": spoilt.get("refuse", "Bad Request")}}
            return web.json_response(error, status=spoilt.get("status", 400))
        request.app[STATE].reset()
        request.app[STATE].configure({"key": "default", "responses": [spoilt or answer_well(body)]})
        answer: web.StreamResponse = await handler(request)
        return answer

    async def make() -> web.Application:
        app = make_mock_app()
        app.middlewares.append(prepare)
        return app

    with ThreadServer(make) as server:
        yield f"{server.url}/v1"


def check(url: str, *options: str, key: str | None = "sk-test", api: str | None = "chat") -> Result:
    """
    Run the command.
    """
    environ = {"OPENAI_API_KEY": key, "OPENAI_BASE_URL": None}
    dialect = [] if api is None else ["--api", api]
    command = ["providers", "check", "--base-url", url, "--model", "mock", *dialect, *options]
    return CliRunner().invoke(main, command, env=environ)


def report(url: str, **options: Any) -> Body:
    """
    The command's JSON, and that its exit code tells the same.
    """
    result = check(url, "--json", **options)
    found: Body = json.loads(result.stdout)
    assert result.exit_code == (0 if found["ok"] else 1), result.output
    assert result.stderr == ""
    return found


def statuses(found: Body) -> dict[str, str]:
    return {probe["name"]: probe["status"] for probe in found["probes"]}


def says(found: Body, name: str) -> str:
    return " ".join(next(probe for probe in found["probes"] if probe["name"] == name)["says"])


def refuse_if(wrong: Callable[[Body], bool], words: str) -> Spoil:
    return lambda path, body: {"refuse": words} if wrong(body) else None
