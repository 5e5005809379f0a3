"""
What is refused before a body counts: paths, methods, sessions, sizes, media types; and which refusal comes first.
"""

import asyncio
import io
import json
import logging

import pytest
from aiohttp import web

from agent_harness.config import Limits
from agent_harness.engine.harness import Harness
from agent_harness.llm.scripted import ScriptedModel, call, say
from agent_harness.server import make_app
from tests.support import WAIT_S, Api, Talk, strict_json, user

JSON = {"Content-Type": "application/json"}

SESSION_ROUTES = [
    ("GET", ""), ("PATCH", ""), ("DELETE", ""), ("GET", "/items"), ("GET", "/responses"), ("GET", "/responses/resp_x"),
    ("GET", "/request"), ("POST", "/fork"), ("POST", "/events"), ("GET", "/stream"),
]  # fmt: skip


async def raw(api: Api, data: bytes) -> bytes:
    """What the server answers to these bytes on a connection of their own."""
    async with asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection(api.client.host, api.client.port)
        try:
            writer.write(data)
            head = await reader.readuntil(b"\r\n\r\n")
            (length,) = [line for line in head.split(b"\r\n") if line.startswith(b"Content-Length: ")]
            return head + await reader.readexactly(int(length[16:]))
        finally:
            writer.close()


def plain(method: str, target: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [
        f"{method} {target} HTTP/1.1",
        "Host: x",
        "Connection: close",
        f"Content-Length: {len(body)}",
        *headers,
        "",
        "",
    ]
    return "\r\n".join(lines).encode("latin-1") + body


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v1/",
        "/v1/sessions/",
        "/v1/session",
        "/V1/sessions",
        "/v2/sessions",
        "/sessions",
        "/healthz",
        "/health/",
        "/v1/sessions/sess_x/nope",
        "/v1/sessions/sess_x/items/msg_1",
        "/v1/sessions/sess_x/responses/a/b",
        "/v1/responses",
        "/v1/chat/completions",
        "/favicon.ico",
        "/%00",
        "/%ff",
    ],
)
async def test_a_path_that_is_none_is_answered_in_the_error_shape(serve, path):
    api = await serve()
    for method in ("GET", "POST", "DELETE", "PUT"):
        await api.refused(method, path, status=404, code="unknown_path")


async def test_a_method_that_a_path_does_not_have_is_refused_and_the_others_are_named(serve):
    api = await serve()
    talk = await api.open()
    for method, path in (
        ("POST", "/health"), ("PUT", "/v1/sessions"), ("DELETE", "/v1/sessions"), ("PATCH", "/v1/sessions"),
        ("POST", talk.path), ("PUT", talk.path), ("GET", f"{talk.path}/events"), ("DELETE", f"{talk.path}/items"),
        ("POST", f"{talk.path}/stream"), ("GET", f"{talk.path}/fork"), ("POST", f"{talk.path}/request"),
        ("OPTIONS", "/v1/sessions"), ("PROPFIND", "/v1/sessions"), ("POST", "/v1/sessions/sess_none"),
    ):  # fmt: skip
        await api.refused(method, path, status=405, code="method_not_allowed")
    answer = await api.ask("PUT", "/v1/sessions")
    assert {"GET", "POST"} <= set(answer.headers["Allow"].split(","))


async def test_an_unknown_session_is_not_found_on_every_route(serve):
    api = await serve()
    for method, tail in SESSION_ROUTES:
        body = {"json": {}} if method in ("PATCH", "POST") else {}
        await api.refused(method, f"/v1/sessions/sess_none{tail}", status=404, code="unknown_session", **body)


@pytest.mark.parametrize(
    "name",
    [
        "..%2f..%2fx",
        "a%2fb",
        "a%5cb",
        "a\\b",
        "%2e",
        "%2e%2e",
        "x%00",
        "x%0d%0aSet-Cookie:%20y",
        "x%0aSet-Cookie:y",
        "s" * 20_000,
        "%ff%fe",
        "%F0%9F%99%82",
        "%7Bsession_id%7D",
        "sess_%3Cscript%3E",
        "%20",
        "%E2%80%A8",
        "..;",
        "%252e%252e",
        "a%3Fb",
        "a%23b",
    ],
)
async def test_odd_session_ids_are_not_found_and_never_reflected_in_headers(serve, name):
    """B162."""
    api = await serve()
    for method, tail in SESSION_ROUTES:
        body = {"json": {}} if method in ("PATCH", "POST") else {}
        answer = await api.ask(method, f"/v1/sessions/{name}{tail}", **body)
        assert answer.status in (400, 404, 405) and answer.body["error"]["type"], (method, tail, answer.body)
        assert "Set-Cookie" not in answer.headers
        assert not any("script" in value or "sess_" in value for value in answer.headers.values())


@pytest.mark.parametrize(
    "target", ["/v1/sessions/../../x", "/v1/sessions/./items", "/v1/sessions/../sessions/x", "http://x/nope"]
)
async def test_paths_with_dots_reach_no_session(serve, target):
    """B162, not tidied up by the client."""
    api = await serve()
    answer = await raw(api, plain("GET", target))
    assert answer.split(b" ")[1] in (b"400", b"404"), answer[:200]
    assert strict_json(answer.partition(b"\r\n\r\n")[2])["error"]["code"] in ("unknown_path", "unknown_session")


@pytest.mark.parametrize(
    "media",
    [
        None,
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/jsonx",
        "text/json",
        "",
        "application/xml; charset=utf-8",
    ],
)
async def test_a_body_of_another_media_type_is_refused(serve, media):
    api = await serve()
    talk = await api.open()
    body = json.dumps(user("x")).encode()
    headers = {"Content-Type": media} if media is not None else {}
    skip = {"skip_auto_headers": ["Content-Type"]} if media is None else {}
    for method, path in (
        ("POST", f"{talk.path}/events"),
        ("POST", "/v1/sessions"),
        ("PATCH", talk.path),
        ("POST", f"{talk.path}/fork"),
    ):
        await api.refused(method, path, data=body, headers=headers, **skip, status=415, code="unsupported_media_type")
    assert (await talk.snapshot())["seq"] == 0


@pytest.mark.parametrize(
    "media",
    ["application/json", "application/json; charset=utf-8", "Application/JSON", "application/json;charset=UTF-8"],
)
async def test_json_is_taken_with_and_without_charset(serve, media):
    api = await serve()
    answer = await api.ask("POST", "/v1/sessions", data=b"{}", headers={"Content-Type": media})
    assert answer.status == 201


async def test_an_oversized_body_is_refused_by_its_length_before_it_is_read(serve):
    api = await serve(body_bytes=2000)
    talk = await api.open()
    head = plain("POST", f"{talk.path}/events", b"", *["Content-Type: application/json"]).replace(
        b"Content-Length: 0", b"Content-Length: 999999999"
    )
    answer = await raw(api, head + b"{")
    assert answer.split(b" ")[1] == b"413"
    error = strict_json(answer.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == "request_too_large" and "2,000" in error["message"] and error["param"] is None
    assert (await talk.snapshot())["seq"] == 0


async def test_an_oversized_body_in_chunks_is_refused(serve):
    api = await serve(say("ok"), body_bytes=2000)
    talk = await api.open()

    async def chunks():
        for _ in range(30):
            yield b" " * 100

    for headers in (JSON, {"Content-Type": "text/plain"}):
        await api.refused(
            "POST", f"{talk.path}/events", data=chunks(), headers=headers, status=413, code="request_too_large"
        )
    assert (await talk.snapshot())["seq"] == 0
    body = json.dumps(user("x" * 1900)).encode()
    assert len(body) <= 2000

    async def small():
        yield body[:10]
        yield body[10:]

    answer = await api.ask("POST", f"{talk.path}/events", data=small(), headers=JSON)
    assert answer.status == 202


async def test_the_body_limit_is_16_mib_to_the_byte(serve):
    api = await serve()
    limit = 16 * 1024 * 1024
    assert Limits().body_bytes == limit
    padded = b"{}" + b" " * (limit - 2)
    assert (await api.ask("POST", "/v1/sessions", data=io.BytesIO(padded), headers=JSON)).status == 201
    await api.refused(
        "POST", "/v1/sessions", data=io.BytesIO(padded + b" "), headers=JSON, status=413, code="request_too_large"
    )


async def test_a_body_that_cannot_be_decompressed_is_refused(serve):
    api = await serve()
    headers = JSON | {"Content-Encoding": "gzip"}
    answer = await api.ask("POST", "/v1/sessions", data=b"no gzip", headers=headers)
    assert answer.status == 400 and answer.body["error"]["code"] == "invalid_json"


async def test_the_first_of_several_faults_is_the_one_that_is_told(serve):
    api = await serve(call("look_up", "{}", "c1"), say("done"), body_bytes=2000)
    talk = await api.open()
    await talk.park()
    big, broken, shape = b"[" * 3000, b"{", json.dumps({"type": "message", "datas": 1}).encode()
    text = {"Content-Type": "text/plain"}
    gone = "/v1/sessions/sess_none"
    state = json.dumps({"type": "function_call_output", "data": {"call_id": "nope", "output": 1}}).encode()
    for method, path, data, headers, status, code in (
        ("PUT", "/v1/nope", big, text, 404, "unknown_path"),
        ("PUT", f"{gone}/events", big, text, 405, "method_not_allowed"),
        ("POST", f"{gone}/events", big, text, 404, "unknown_session"),
        ("PATCH", gone, big, text, 404, "unknown_session"),
        ("POST", f"{gone}/fork", broken, text, 404, "unknown_session"),
        ("POST", f"{talk.path}/events", big, text, 413, "request_too_large"),
        ("PATCH", talk.path, big, text, 413, "request_too_large"),
        ("POST", f"{talk.path}/fork", big, text, 413, "request_too_large"),
        ("POST", f"{talk.path}/events", broken, text, 415, "unsupported_media_type"),
        ("POST", f"{talk.path}/events", broken, JSON, 400, "invalid_json"),
    ):
        await api.refused(method, path, data=data, headers=headers, status=status, code=code)
    for data, code in ((shape, ("missing_field", "unknown_field")), (state, ("invalid_value",))):
        answer = await api.ask("POST", f"{talk.path}/events", data=data, headers=JSON)
        assert answer.status == 400 and answer.body["error"]["code"] in code
    rejected = user("x", delivery="reject", tools=[{"type": "function", "name": "a b"}])
    await talk.refused(rejected, status=400, code="invalid_tool", param="tools[0].name")


async def test_a_conflict_comes_before_a_full_queue(serve):
    api = await serve(call("look_up", "{}", "c1"), queued_messages=1)
    talk = await api.open()
    await talk.park()
    await talk.send("waits")
    await talk.refused(user("x", delivery="reject"), status=409, code="turn_in_progress")
    await talk.refused(user("x"), status=429, code="queue_full")


async def test_what_is_wrong_with_a_request_and_a_conflict_come_before_a_full_session(serve):
    api = await serve(call("look_up", "{}", "c1"), items=3)
    talk = await api.open()
    await talk.park()
    await talk.send("fills it")
    await talk.refused(user("x", delivery="reject"), status=409, code="turn_in_progress")
    forced = user("x", tool_choice={"type": "function", "name": "nope"})
    await talk.refused(forced, status=400, code="invalid_value", param="tool_choice")
    await talk.refused(user("x"), status=429, code="session_full")


async def test_an_unknown_call_comes_before_a_conflict_wherever_it_stands_in_a_batch(serve):
    api = await serve(call("look_up", "{}", "c1"), say("done"))
    talk = await api.open()
    await talk.park()
    await talk.result("c1", "teal")
    batch = [
        {"type": "function_call_output", "data": {"call_id": call_id, "output": "grey"}} for call_id in ("c1", "nope")
    ]
    for events, index in ((batch, 1), (batch[::-1], 0)):
        param = f"events[{index}].data.call_id"
        await talk.refused({"events": events}, status=404, code="unknown_call", param=param)
    await talk.refused({"events": batch[:1]}, status=409, code="call_already_answered", param="events[0].data.call_id")


async def test_what_is_not_found_comes_before_too_many_sessions(serve):
    api = await serve(sessions=1)
    session = await api.create()
    await api.refused(
        "POST", "/v1/sessions", json={"agent_id": "no"}, status=404, code="unknown_agent", param="agent_id"
    )
    fork = {"up_to_item_id": "no"}
    path = f"/v1/sessions/{session['id']}/fork"
    await api.refused("POST", path, json=fork, status=404, code="unknown_item", param="up_to_item_id")


async def test_too_many_sessions_are_refused_on_create_and_fork_until_one_is_deleted(serve):
    api = await serve(sessions=2)
    first, _ = await api.create(), await api.create()
    await api.refused("POST", "/v1/sessions", json={}, status=429, code="too_many_sessions")
    await api.refused("POST", f"/v1/sessions/{first['id']}/fork", status=429, code="too_many_sessions")
    bad = {"agent": 1}
    await api.refused("POST", "/v1/sessions", json=bad, status=400, code="invalid_value", param="agent")
    assert (await api.ask("DELETE", f"/v1/sessions/{first['id']}")).status == 200
    assert len((await api.get("/v1/sessions"))["data"]) == 1
    await api.create()


async def test_a_server_that_shuts_down_takes_no_new_sessions(aiohttp_client):
    harness = Harness({"default": ScriptedModel()})
    api = Api(await aiohttp_client(make_app(harness)), ScriptedModel())
    await harness.aclose()
    await api.refused("POST", "/v1/sessions", json={}, status=503, code="shutting_down")


@pytest.mark.parametrize("fault", [ZeroDivisionError, ConnectionResetError, web.HTTPBadGateway])
async def test_a_fault_of_the_server_is_logged_and_told_without_its_traceback(serve, caplog, fault):
    class Broken:
        default_model = "broken"

        def body(self, request):
            raise fault(text="secret detail") if fault is web.HTTPBadGateway else fault("secret detail")

    api = await serve(models={"broken": Broken()})
    talk = Talk(api, (await api.create(agent={"provider": "broken"}))["id"])
    error = await api.refused("GET", f"{talk.path}/request", status=500, code="internal_error")
    assert "secret" not in error["message"]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "secret detail" in caplog.text or fault is web.HTTPBadGateway
    assert "Traceback" in caplog.text


async def test_a_client_that_stops_in_the_middle_of_its_body_leaves_no_trace(serve, caplog):
    api = await serve(say("ok"))
    talk = await api.open()
    _, writer = await asyncio.open_connection(api.client.host, api.client.port)
    writer.write(plain("POST", f"{talk.path}/events", b"", "Content-Type: application/json").replace(
        b"Content-Length: 0", b"Content-Length: 100") + b'{"type":')  # fmt: skip
    await writer.drain()
    writer.transport.abort()
    await talk.turn()
    assert [item["content"][0]["text"] for item in await talk.items()] == ["hello", "ok"]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
