"""
Who may come in.
"""

from collections.abc import Mapping
from typing import Any

import pytest
from yarl import URL

from agent_harness.engine.harness import Harness
from agent_harness.llm.scripted import ScriptedModel, say
from agent_harness.server import Access, make_app
from agent_harness.server.auth import LOOPBACK_HOSTS
from tests.support import Api, Stream, types, user

KEYS = {"alice": "key-of-alice", "bob": "key-of-bob"}
PAGE = "https://app.example"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def serve(aiohttp_client: Any, *steps: Any, **access: Any) -> Api:
    model = ScriptedModel(steps)
    return Api(await aiohttp_client(make_app(Harness({"default": model}), Access(**access))), model)


ROUTES = [
    ("POST", "/v1/sessions"),
    ("GET", "/v1/sessions"),
    ("GET", "/v1/sessions/{id}"),
    ("PATCH", "/v1/sessions/{id}"),
    ("DELETE", "/v1/sessions/{id}"),
    ("GET", "/v1/sessions/{id}/items"),
    ("GET", "/v1/sessions/{id}/responses"),
    ("GET", "/v1/sessions/{id}/responses/resp_1"),
    ("GET", "/v1/sessions/{id}/request"),
    ("GET", "/v1/sessions/{id}/stream"),
    ("POST", "/v1/sessions/{id}/events"),
    ("POST", "/v1/sessions/{id}/fork"),
    ("GET", "/nothing"),
    ("PUT", "/v1/sessions"),
]


@pytest.mark.parametrize("method, path", ROUTES)
async def test_without_the_right_key_no_route_says_anything(aiohttp_client: Any, method: str, path: str) -> None:
    """
    Precedence: 401 before 404 and 405.
    """
    api = await serve(aiohttp_client, keys=KEYS)
    made = await api.ask("POST", "/v1/sessions", json={}, headers=bearer("key-of-bob"))
    for headers, code in (
        ({}, "missing_key"),
        ({"Authorization": "key-of-alice"}, "missing_key"),
        ({"Authorization": "Basic key-of-alice"}, "missing_key"),
        ({"Authorization": "Bearer "}, "missing_key"),
        (bearer("key-of-alic"), "wrong_key"),
        (bearer("key-of-alicé"), "wrong_key"),
    ):
        where = path.replace("{id}", made.body["id"])
        error = await api.refused(method, where, status=401, code=code, headers=headers)
        assert "key-of" not in str(error)


async def test_each_of_several_keys_lets_in_and_health_needs_none(aiohttp_client: Any) -> None:
    api = await serve(aiohttp_client, keys=KEYS)
    for key in KEYS.values():
        assert (await api.ask("GET", "/v1/sessions", headers=bearer(key))).status == 200
    health = await api.ask("GET", "/health")
    assert health.status == 200 and b"key-of" not in health.raw


async def test_an_idempotency_key_belongs_to_its_caller(aiohttp_client: Any) -> None:
    api = await serve(aiohttp_client, keys=KEYS)
    once = {"Idempotency-Key": "one"}
    made = [await api.ask("POST", "/v1/sessions", json={}, headers=bearer(key) | once) for key in KEYS.values()]
    again = await api.ask("POST", "/v1/sessions", json={}, headers=bearer("key-of-bob") | once)
    assert made[0].body["id"] != made[1].body["id"] == again.body["id"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8787", "127.0.0.1.evil.example", "localhost.evil", "[::2]:1", ""]
)
async def test_a_rebound_host_name_is_refused_before_anything_else(aiohttp_client: Any, host: str) -> None:
    api = await serve(aiohttp_client, hosts=LOOPBACK_HOSTS, keys=KEYS)
    await api.refused("GET", "/health", status=403, code="bad_host", headers={"Host": host})


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8787", "[::1]:80", "[::1]"])
async def test_loopback_names_are_answered_on_any_port(aiohttp_client: Any, host: str) -> None:
    api = await serve(aiohttp_client, hosts=LOOPBACK_HOSTS)
    assert (await api.ask("GET", "/health", headers={"Host": host})).status == 200


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "file://", "", "https://app.example.evil"]
)
@pytest.mark.parametrize("kind", ["application/json", "text/plain", "application/x-www-form-urlencoded", None])
async def test_a_foreign_origin_is_refused_and_starts_no_turn(
    aiohttp_client: Any, origin: str, kind: str | None
) -> None:
    """
    B160: whatever the content type.
    """
    api = await serve(aiohttp_client, say("no"), origins=(PAGE,))
    session = await api.create()
    headers = {"Origin": origin} | ({"Content-Type": kind} if kind else {})
    path = f"/v1/sessions/{session['id']}/events"
    body = b'{"type":"message","data":{"content":"hi"}}'
    answer = await api.ask("POST", path, data=body, headers=headers)
    assert (answer.status, answer.body["error"]["code"]) == (403, "bad_origin")
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert (await api.get(f"/v1/sessions/{session['id']}")) == session
    assert not api.model.requests


async def test_a_body_that_is_no_json_is_refused_without_an_origin_too(aiohttp_client: Any) -> None:
    """
    B160: a form post of a page that sends no Origin starts nothing.
    """
    api = await serve(aiohttp_client)
    session = await api.create()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        await api.refused(
            "POST",
            f"/v1/sessions/{session['id']}/events",
            data=b'{"type":"interrupt"}',
            headers={"Content-Type": kind},
            status=415,
            code="unsupported_media_type",
        )


async def test_the_servers_own_origin_is_no_foreign_one(aiohttp_client: Any) -> None:
    api = await serve(aiohttp_client)
    url = api.client.make_url("/")
    headers = {"Origin": f"http://{url.host}:{url.port}"}
    assert (await api.ask("POST", "/v1/sessions", json={}, headers=headers)).status == 201


async def test_the_preflight_of_an_allowed_origin_is_answered_and_of_another_refused(aiohttp_client: Any) -> None:
    """
    B161: the exact origin, Vary, and never a star.
    """
    api = await serve(aiohttp_client, origins=(PAGE,), keys=KEYS)
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}

    async def preflight(origin: str) -> tuple[int, Mapping[str, str]]:
        url = URL("/v1/sessions", encoded=True)
        async with api.client.request("OPTIONS", url, headers={"Origin": origin, **asked}) as answer:
            return answer.status, answer.headers.copy()

    status, headers = await preflight(PAGE)
    assert status == 204
    assert headers["Access-Control-Allow-Origin"] == PAGE and headers["Vary"] == "Origin"
    assert headers["Access-Control-Allow-Methods"] == "GET, POST, PATCH, DELETE"
    assert headers["Access-Control-Allow-Headers"] == "authorization, content-type, idempotency-key, last-event-id"
    status, headers = await preflight("https://evil.example")
    assert status == 403 and "Access-Control-Allow-Origin" not in headers


async def test_a_page_of_an_allowed_origin_reads_answers_errors_and_streams(aiohttp_client: Any) -> None:
    """
    B161: the stream with Last-Event-ID too.
    """
    api = await serve(aiohttp_client, say("hi"), origins=(PAGE,))
    page = {"Origin": PAGE}
    made = await api.ask("POST", "/v1/sessions", json={}, headers=page)
    missing = await api.ask("GET", "/v1/sessions/none", headers=page)
    assert made.headers["Access-Control-Allow-Origin"] == missing.headers["Access-Control-Allow-Origin"] == PAGE
    path = f"/v1/sessions/{made.body['id']}"
    await api.ask("POST", f"{path}/events", json=user("hi"), headers=page)
    resume = page | {"Last-Event-ID": "0"}
    async with api.client.get(f"{path}/stream?until=idle", headers=resume) as answer:
        assert answer.headers["Access-Control-Allow-Origin"] == PAGE
        assert types(await Stream(answer).rest())[-1] == "[DONE]"
