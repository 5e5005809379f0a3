"""
Every answer and every error names its request, and so do the log lines it causes.
"""

import io
import logging
import re
from typing import Any

import orjson
import pytest
from aiohttp import web

from agent_harness.engine.harness import Harness
from agent_harness.llm.scripted import ScriptedModel, call, say
from agent_harness.logs import REQUEST_ID, SESSION_ID, Line, setup_logs
from agent_harness.protocol.requests import read_update
from agent_harness.server import HARNESS, Access, init_app, make_app
from tests.support import Api, Stream, Talk, types, user

OURS = re.compile(r"req_[0-9a-f]{16,}")
SANE = ["a", "A-z.0_9", "x" * 128, "4bf92f3577b34da6a3ce929d0e0e4736"]
NOT_SANE = ["", " ", "x" * 129, "a b", "a/b", "a\tb", 'a"b', "é", "a=b", "%0a"]


async def ask(api: Api, method: str = "GET", path: str = "/health", given: str | None = None, **options: Any) -> Any:
    headers = options.pop("headers", {}) | ({} if given is None else {"X-Request-Id": given})
    return await api.ask(method, path, headers=headers, **options)


@pytest.mark.parametrize("given", SANE, ids=lambda given: str(given)[:20])
async def test_a_clients_own_sane_id_comes_back(serve: Any, given: str) -> None:
    api = await serve()

    assert (await ask(api, given=given)).headers.getall("x-request-id") == [given]
    refused = await ask(api, path="/nothing", given=given)
    assert refused.headers["x-request-id"] == refused.body["error"]["request_id"] == given


@pytest.mark.parametrize("given", NOT_SANE, ids=lambda given: ascii(given)[:20])
async def test_another_id_is_replaced_by_a_random_one(serve: Any, given: str) -> None:
    api = await serve()
    refused = await ask(api, path="/nothing", given=given)

    assert OURS.fullmatch(refused.headers["x-request-id"])
    assert refused.body["error"]["request_id"] == refused.headers["x-request-id"]


async def test_each_request_of_a_connection_has_an_id_of_its_own(serve: Any) -> None:
    api = await serve()
    ids = {(await ask(api)).headers["x-request-id"] for _ in range(20)}

    assert len(ids) == 20 and all(map(OURS.fullmatch, ids))


REFUSED = [
    ("GET", "/nothing", {}, 404),
    ("PUT", "/v1/sessions", {}, 405),
    ("GET", "/v1/sessions/sess_none", {}, 404),
    ("POST", "/v1/sessions", {"data": b"{"}, 415),
    ("POST", "/v1/sessions", {"data": b"{", "headers": {"Content-Type": "application/json"}}, 400),
    ("POST", "/v1/sessions", {"data": b"[1]", "headers": {"Content-Type": "application/json"}}, 400),
    ("GET", "/v1/sessions?limit=x", {}, 400),
    ("GET", "/v1/sessions", {"headers": {"Origin": "https://evil.example"}}, 403),
]


@pytest.mark.parametrize("method, path, options, status", REFUSED)
async def test_every_refusal_has_its_id_in_header_and_body(
    serve: Any, method: str, path: str, options: dict[str, Any], status: int
) -> None:
    api = await serve()
    refused = await ask(api, method, path, **options)

    assert refused.status == status
    assert refused.body["error"]["request_id"] == refused.headers["x-request-id"]


async def test_a_missing_key_and_a_preflight_have_theirs(aiohttp_client: Any) -> None:
    access = Access(keys={"a": "key"}, origins=("https://app.example",))
    api = Api(await aiohttp_client(make_app(Harness({}), access)), ScriptedModel())
    refused = await ask(api, path="/v1/sessions", given="mine")
    assert refused.status == 401 and refused.body["error"]["request_id"] == "mine"

    headers = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST", "x-request-id": "before"}
    preflight = await api.client.options("/v1/sessions", headers=headers)
    assert preflight.status == 204 and preflight.headers["x-request-id"] == "before"


async def test_streams_of_both_kinds_have_their_id(serve: Any) -> None:
    api = await serve(say("one"))
    talk = Talk(api, (await api.create())["id"])
    followed = await api.client.get(f"{talk.path}/stream", headers={"x-request-id": "follow-1"})
    sent = await api.client.post(f"{talk.path}/events?stream=true", json=user("hi"), headers={"x-request-id": "send-1"})

    assert followed.headers["x-request-id"] == "follow-1" and sent.headers["x-request-id"] == "send-1"
    assert b"[DONE]" in await sent.read()
    followed.close()


async def test_a_repeated_request_has_its_own_id_not_that_of_the_first(serve: Any) -> None:
    api = await serve()
    first, again = [
        await ask(api, "POST", "/v1/sessions", given=given, json={}, headers={"Idempotency-Key": "k"})
        for given in ("one", "two")
    ]

    assert (first.headers["x-request-id"], again.headers["x-request-id"]) == ("one", "two")
    assert again.body == first.body and again.headers["idempotency-replayed"] == "true"


async def test_an_embedded_server_names_requests_below_its_prefix_and_no_others(aiohttp_client: Any) -> None:
    async def own(request: web.Request) -> web.Response:
        assert REQUEST_ID.get() == ""
        return web.json_response({})

    app = web.Application()
    app.router.add_get("/own", own)
    init_app(app, Harness({}))
    api = Api(await aiohttp_client(app), ScriptedModel())

    refused = await ask(api, path="/agents-backend/nothing", given="mine")
    assert refused.headers["x-request-id"] == refused.body["error"]["request_id"] == "mine"
    assert "x-request-id" not in (await ask(api, path="/own", given="mine")).headers


async def test_a_refusal_is_one_line_with_status_code_and_template_and_nothing_of_the_clients(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="agent_harness")
    api = await serve()
    paths = {
        "/v1/sessions/x%0Aturn%20ended": ("unknown_session", "/v1/sessions/{session_id}"),
        "/nothing%0Aturn%20ended": ("unknown_path", "unknown"),
    }
    for path, (code, route) in paths.items():
        caplog.clear()
        await ask(api, path=path)
        [record] = caplog.records
        assert (record.name, record.levelname) == ("agent_harness.requests", "INFO")
        assert isinstance(record.msg, Line) and record.msg.what == "request refused"
        assert record.msg.fields == {"status": 404, "code": code, "method": "GET", "route": route}
        assert "\n" not in record.getMessage()


async def test_a_follower_that_lags_is_one_line_with_the_ids_of_its_request(
    serve: Any,
) -> None:
    api = await serve()
    talk = Talk(api, (await api.create())["id"])
    followed = await api.client.get(f"{talk.path}/stream", headers={"x-request-id": "follow-1"})
    stream = Stream(followed)
    await stream.next()
    session = api.client.app[HARNESS].get(talk.id)
    root, ours, written = logging.getLogger(), logging.getLogger("agent_harness"), io.StringIO()
    before = (list(root.handlers), root.level, ours.level)
    setup_logs(True, "INFO", written)
    try:
        # It had no chance to read this before it was forgotten.
        session.update(read_update({"metadata": {"a": "b"}}))
        session.feed.forget()
        assert types(await stream.rest())[-1] == "session.lagged"
    finally:
        root.handlers[:], level, ours_level = before
        root.setLevel(level)
        ours.setLevel(ours_level)

    line = orjson.loads(written.getvalue())
    assert (line["message"], line["level"]) == ("follower lagged behind and was cut", "info")
    assert (line["session"], line["request_id"]) == (talk.id, "follow-1")


async def test_a_wrong_key_is_a_warning_without_the_key(aiohttp_client: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="agent_harness")
    api = Api(await aiohttp_client(make_app(Harness({}), Access(keys={"a": "the-right-key"}))), ScriptedModel())
    await ask(api, path="/v1/sessions", headers={"Authorization": "Bearer the-wrong-key"})

    assert [(record.levelname, record.msg.fields["code"]) for record in caplog.records] == [("WARNING", "wrong_key")]
    assert "-key" not in caplog.text


async def test_lines_of_a_request_and_of_the_turn_it_began_bear_its_ids(serve: Any) -> None:
    seen: list[tuple[str, str, str]] = []

    class Note(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if isinstance(record.msg, Line):
                seen.append((record.msg.what, REQUEST_ID.get(), SESSION_ID.get()))

    ours, note = logging.getLogger("agent_harness"), Note()
    before = ours.level
    ours.addHandler(note)
    ours.setLevel(logging.INFO)
    try:
        api = await serve(call("look_up", "{}", "c1"), say("done"))
        made = await ask(api, "POST", "/v1/sessions", given="make", json={})
        talk = Talk(api, made.body["id"])
        talk.stream = await talk.follow(after=0)
        message = user("hi", tools=[{"type": "function", "name": "look_up"}])
        await ask(api, "POST", f"{talk.path}/events", given="send", json=message)
        await talk.stream.until_status("waiting")
        result = {"type": "function_call_output", "data": {"call_id": "c1", "output": "ok"}}
        await ask(api, "POST", f"{talk.path}/events", given="answer", json=result)
        await talk.stream.until_status("idle")
        await ask(api, "POST", f"{talk.path}/events", given="again", json=result | {"data": {"call_id": "c2"}})
        await ask(api, "DELETE", talk.path, given="delete")
    finally:
        ours.removeHandler(note)
        ours.setLevel(before)

    assert seen == [
        ("session created", "make", ""),
        ("call closed", "answer", talk.id),
        ("turn ended", "send", talk.id),
        ("request refused", "again", talk.id),
        ("session ended", "delete", talk.id),
    ]
