"""
Keys are seen by nobody: not in answers, streams, the log or what the settings show of themselves.
"""

from __future__ import annotations

import io
from typing import Any

from agent_harness.config import ProviderSettings, Settings
from agent_harness.llm.scripted import say
from agent_harness.server import Access
from tests.security.conftest import Serve
from tests.support import Stream, user

KEYS = {"alice": "key-of-alice-7f3a", "bob": "key-of-bob-91c2"}
WRONG = "wrong-key-c0ffee"
ROUTES = [
    ("GET", "/health"),
    ("GET", "/openapi.json"),
    ("GET", "/v1/sessions"),
    ("GET", "{session}"),
    ("GET", "{session}/items"),
    ("GET", "{session}/responses"),
    ("GET", "{session}/request"),
    ("PATCH", "{session}"),
    ("POST", "{session}/fork"),
    ("GET", "/nothing"),
    ("PUT", "{session}"),
    ("DELETE", "{session}"),
]


async def test_no_key_right_or_wrong_is_in_an_answer_a_stream_or_the_log(serve: Serve, log: io.StringIO) -> None:
    api = await serve(say("hi"), access=Access(keys=KEYS))
    told = bytearray()

    async def ask(method: str, path: str, key: str, **options: Any) -> Any:
        headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "one"} | options.pop("headers", {})
        body: dict[str, Any] = {"json": {}} if method in ("POST", "PATCH") and "json" not in options else {}
        answer = await api.ask(method, path, headers=headers, **body, **options)
        told.extend(answer.raw + str(answer.headers).encode())
        return answer

    for key in KEYS.values():
        made = await ask("POST", "/v1/sessions", key, json={"metadata": {"a": "b"}})
        session = f"/v1/sessions/{made.body['id']}"
        headers = {"Authorization": f"Bearer {key}"}
        async with api.client.post(f"{session}/events?stream=true", json=user("hi"), headers=headers) as answer:
            stream = Stream(answer)
            await stream.rest()
            told += stream.raw
        for method, path in ROUTES:
            for given in (WRONG, f"{key}x", key):
                await ask(method, path.replace("{session}", session), given)
        # In the wrong place: where a proxy or a page may have put it.
        await ask("GET", f"/v1/sessions?api_key={key}", WRONG)
        await ask("GET", f"/{key}", WRONG, headers={"Authorization": f"Basic {key}", "x-api-key": key})

    assert log.getvalue().count("request refused") > 10
    for secret in (*KEYS.values(), WRONG):
        assert secret.encode() not in told
        assert secret not in log.getvalue()


def test_settings_and_access_do_not_show_their_keys() -> None:
    provider = ProviderSettings(api_key="upstream-key-5d", headers={"api-key": "header-key-5d"})
    shown = repr(Settings(providers=(provider,), api_keys=KEYS)) + repr(Access(keys=KEYS))

    for secret in (*KEYS.values(), "upstream-key-5d", "header-key-5d"):
        assert secret not in shown
