"""
A mock model server that speaks both of OpenAI's dialects, answers from scripts and refuses what the real API refuses.

`POST /v1/responses`, `POST /v1/chat/completions` (streamed and not) and `GET /v1/models` are the provider's side. A
request takes the queue whose `match` stands in its last user text, else the one named like its model, else `default`.
Without an answer left it gets a 500 that names the key. Unless `strict` says otherwise a request must pass every rule
of the module `strict`; refused, it gets a 400 and uses up no answer. The header `x-session-id` tells the session.

The tester's side, all JSON:

- `POST /mock/configure {"key": "default", "match"?, "responses": [entry…], "strict"?: bool | {option: bool}}`
- `POST /mock/set_fallback {"response": entry | null}`: answers whenever a queue is empty
- `POST /mock/reset`: forgets all of it, drops parked requests
- `GET /mock/requests?key=` → `{"requests": [{"path", "headers", "body", "status", "key"}]}`; header names in lower case
- `GET /gate/pending` → `{"pending": n}`; `POST /gate/release {"count"?}` → `{"released", "pending"}`
- `GET /stats` → `{"requests": {path: n}, "open", "disconnects", "pending"}`
- `?wait=n` on `/gate/pending`, `?open=n` and `?disconnects=n` on `/stats` hold the answer until that number is reached,
  at most 5 s

An entry may have, all optional:

- `text`, and `deltas`: how it is split; `tool_calls` `[{"call_id"?, "name", "arguments", "deltas"?}]`, sent after it;
  `reasoning`, sent before it
- `recall`: a regular expression whose first match in the request's items becomes the text (group 1 if it has one,
  "not found" without a match)
- `usage`, put in as it is; `finish`: "length" or "content_filter" for an answer that is cut in its last item (Chat
  Completions takes any other word, too)
- `error` (string or object) with `status_code` (500) and `headers`
- `raw`: strings or `{"hex"}`, sent as they are, each in one write, with `status_code` and `headers` if given
- `block`: true parks the request before the first byte, n after n frames
- `delay_s`: seconds before each delta
- `disconnect_after`: n resets the connection after n frames, -1 before the first byte
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import attrs
from aiohttp import web

from agent_harness.testing.mock_chat import build_chat
from agent_harness.testing.mock_entry import Entry, read_entry, recall_text
from agent_harness.testing.mock_exchange import CutShort, Exchange, make_error, reply, send_document, send_stream
from agent_harness.testing.mock_responses import ResponsesStream, read_raw_items
from agent_harness.testing.mock_state import Captured, MockState
from agent_harness.testing.mock_streams import Answer, Frame
from agent_harness.testing.strict import Dialect, StrictError, check_request, parse_body

__all__ = ["make_mock_app", "serve_mock"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

STATE = web.AppKey("STATE", MockState)
DIALECTS: dict[str, Dialect] = {"/v1/responses": "responses", "/v1/chat/completions": "chat"}
MAX_BODY = 128 * 1024 * 1024
POLL_S = 0.005
WAIT_S = 5.0


async def answer_model(request: web.Request) -> web.StreamResponse:
    """
    Answer a model request, count it, and keep it for the tester.
    """
    state = request.app[STATE]
    stats = state.stats
    stats.requests[request.path] += 1
    stats.open += 1
    exchange = Exchange(state, request, Captured(request.path, {}, None))
    try:
        return await run_exchange(exchange, await request.read())
    except ConnectionError:
        stats.disconnects += 1
    except CutShort:
        await exchange.abort()
    except asyncio.CancelledError:
        stats.disconnects += 1
        raise
    finally:
        stats.open -= 1
    return web.Response(status=500) if exchange.response is None else exchange.response


async def run_exchange(exchange: Exchange, raw: bytes) -> web.StreamResponse:
    """
    Check a request, take its answer from the script and send it.
    """
    state, request, captured = exchange.state, exchange.request, exchange.captured
    dialect = DIALECTS[request.path]
    memory = state.find_session(request.headers.get("x-session-id"))
    captured.headers = {name.lower(): value for name, value in request.headers.items()}
    state.captured.append(captured)
    try:
        captured.body = raw.decode(errors="replace")
        body = captured.body = parse_body(raw)
        captured.key = state.choose(dialect, body)
        passed = check_request(dialect, body, raw, state.read_strictness(captured.key), memory)
    except StrictError as error:
        return reply(captured, 400, error.to_body())
    entry = state.take(captured.key)
    if entry is None:
        message = f"The mock's queue '{captured.key}' has no answer left and no fallback is set."
        headers = {"x-should-retry": "false"}
        return reply(captured, 500, make_error(message, 500, code="mock_queue_exhausted"), headers)
    if entry.block is True:
        await exchange.park()
    if entry.error is not None:
        status = entry.status_code or 500
        return reply(captured, status, make_error(entry.error, status), entry.headers)
    if entry.disconnect_after is not None and entry.disconnect_after < 0:
        raise CutShort
    if entry.recall is not None:
        entry = attrs.evolve(entry, text=recall_text(dialect, body, entry.recall))
    answer = build_answer(dialect, entry, body, len(raw))
    if (entry.status_code or 200) == 200:
        memory.last = passed or memory.last
        memory.answers.remember(answer.items)
    if body.get("stream") is True or entry.raw is not None:
        return await send_stream(exchange, entry, answer)
    return await send_document(exchange, entry, answer)


def build_answer(dialect: Dialect, entry: Entry, body: dict[str, Any], request_bytes: int) -> Answer:
    """
    Build the answer that `entry` scripts to the request `body`.
    """
    if entry.raw is not None:
        items = read_raw_items(entry.raw) if dialect == "responses" else []
        return Answer([Frame(data, is_delta=True) for data in entry.raw], {}, items)
    if dialect == "responses":
        return ResponsesStream(entry, body, request_bytes).build()
    return build_chat(entry, body, request_bytes)


async def list_models(request: web.Request) -> web.Response:
    """
    List the mock's own model and one for each queue.
    """
    names = dict.fromkeys(["mock", *request.app[STATE].queues])
    models = [{"id": name, "object": "model", "created": 1_700_000_000, "owned_by": "mock"} for name in names]
    return web.json_response({"object": "list", "data": models})


@web.middleware
async def answer_bad_input(request: web.Request, handler: Handler) -> web.StreamResponse:
    """
    Answer 400 to a tester's request that cannot be read.
    """
    if request.path in DIALECTS:
        return await handler(request)
    try:
        return await handler(request)
    except ValueError as error:
        return web.json_response(make_error(str(error), 400), status=400)


async def read_json(request: web.Request) -> dict[str, Any]:
    """
    Read a tester's request: lenient JSON, lone surrogates and all; an empty body is an empty object.

    :raises ValueError: when it is no JSON object.
    """
    raw = await request.read()
    body = json.loads(raw) if raw else {}
    if not isinstance(body, dict):
        raise ValueError("body: expected an object")
    return body


async def configure(request: web.Request) -> web.Response:
    """
    Set up one queue.
    """
    key, count = request.app[STATE].configure(await read_json(request))
    return web.json_response({"key": key, "queued": count})


async def set_fallback(request: web.Request) -> web.Response:
    """
    Set or clear the answer for empty queues.
    """
    held = (await read_json(request)).get("response")
    request.app[STATE].fallback = None if held is None else read_entry(held, "response")
    return web.json_response({"fallback": held is not None})


async def reset(request: web.Request) -> web.Response:
    """
    Forget everything.
    """
    request.app[STATE].reset()
    return web.json_response({"reset": True})


async def list_requests(request: web.Request) -> web.Response:
    """
    Give the captured model requests in order of arrival, all or those of one key.
    """
    key = request.query.get("key")
    captured = [held for held in request.app[STATE].captured if not key or held.key == key]
    return web.json_response({"requests": [attrs.asdict(held, recurse=False) for held in captured]})


async def count_pending(request: web.Request) -> web.Response:
    """
    Count the parked requests.
    """
    gate = request.app[STATE].gate
    if "wait" in request.query:
        await hold_until(gate.count, int(request.query["wait"]))
    return web.json_response({"pending": gate.count()})


async def release_gate(request: web.Request) -> web.Response:
    """
    Let parked requests go on, the longest waiting first.
    """
    gate = request.app[STATE].gate
    count = (await read_json(request)).get("count")
    if count is not None and not isinstance(count, int):
        raise ValueError("count: expected a number")
    return web.json_response({"released": gate.release(count), "pending": gate.count()})


async def show_stats(request: web.Request) -> web.Response:
    """
    Give the counts since the last reset.
    """
    state = request.app[STATE]
    for name in ("open", "disconnects"):
        if name in request.query:
            await hold_until(partial(getattr, state.stats, name), int(request.query[name]))
    return web.json_response({**attrs.asdict(state.stats), "pending": state.gate.count()})


async def hold_until(count: Callable[[], int], wanted: int) -> None:
    """
    Wait until a number is reached, at most `WAIT_S`.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + WAIT_S
    while count() != wanted and loop.time() < end:  # noqa: ASYNC110 - a connection tells nobody when it closes
        await asyncio.sleep(POLL_S)


async def close(app: web.Application) -> None:
    """
    End what is parked or delayed, so that a server's shutdown waits for nobody.
    """
    app[STATE].is_closing = True
    app[STATE].gate.cut()


def make_mock_app() -> web.Application:
    """
    Make the server's application; every one has its own state.
    """
    app = web.Application(client_max_size=MAX_BODY, middlewares=[answer_bad_input])
    app[STATE] = MockState()
    app.on_shutdown.append(close)
    for path in DIALECTS:
        app.router.add_post(path, answer_model)
    app.router.add_get("/v1/models", list_models)
    app.router.add_post("/mock/configure", configure)
    app.router.add_post("/mock/reset", reset)
    app.router.add_post("/mock/set_fallback", set_fallback)
    app.router.add_get("/mock/requests", list_requests)
    app.router.add_get("/gate/pending", count_pending)
    app.router.add_post("/gate/release", release_gate)
    app.router.add_get("/stats", show_stats)
    return app


async def serve_mock(host: str, port: int, *, on_listening: Callable[[str], None] | None = None) -> None:
    """
    Serve until cancelled. `on_listening` gets the base URL once the port is open (port 0 picks a free one).

    :raises OSError: when the address cannot be had.
    """
    runner = web.AppRunner(make_mock_app(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        if on_listening is not None:
            on_listening("http://{}:{}".format(*runner.addresses[0][:2]))
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
