"""
The seam to a model server: what is sent, what every failure becomes, and that nothing is left open.
"""

import asyncio
import inspect
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from email.utils import formatdate
from pathlib import Path
from typing import Any

import orjson
import pytest

from agent_harness.config import ProviderSettings
from agent_harness.errors import ModelError
from agent_harness.llm.upstream import Upstream, UpstreamError, read_count, read_error
from agent_harness.llm.upstream_errors import POLICY, read_error_body, read_error_frame, read_retry_after
from agent_harness.llm.upstream_frames import EventReader
from tests.engine.rig import ticks
from tests.llm.raw_upstream import Answer, RawUpstream, serve_raw

KEY = "sk-test-0123456789"
TRANSPORTS = ("aiohttp", "openai")
GOOD = b'event: x\ndata: {"n":1}\n\ndata: [DONE]\n\n'


# The transport of the test that runs: each that asks a server does so over both.
chosen = [TRANSPORTS[0]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if inspect.iscoroutinefunction(metafunc.function):
        metafunc.parametrize("transport", TRANSPORTS, indirect=True)


@pytest.fixture(autouse=True)
def transport(request: pytest.FixtureRequest) -> None:
    chosen[0] = getattr(request, "param", TRANSPORTS[0])


def make_settings(raw: RawUpstream | None = None, **fields: Any) -> ProviderSettings:
    fields = {"api_key": KEY, "api_key_env": None, "idle_timeout_s": 4.0, "connect_timeout_s": 2.0} | fields
    fields = {"base_url": raw.url if raw else "http://127.0.0.1:9/v1", "transport": chosen[0]} | fields
    return ProviderSettings(**fields)


async def read_events(
    upstream: Upstream, path: str, body: bytes, session_id: str
) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
    stream = await upstream.open(path, body, session_id)
    try:
        while (events := await stream.next()) is not None:
            for event in events:
                yield event
    finally:
        await stream.aclose()


async def read_all(
    settings: ProviderSettings, body: bytes = b"{}", times: int = 1
) -> tuple[list[tuple[str, dict[str, Any]]], UpstreamError | None]:
    """
    The events of one answer (of the last of several) and what it failed with.
    """
    upstream = Upstream(settings)
    found: list[tuple[str, dict[str, Any]]] = []
    try:
        async with asyncio.timeout(5):
            for _ in range(times):
                found = []
                async with aclosing(read_events(upstream, "/responses", body, "sess_1")) as events:
                    async for event in events:
                        found.append(event)
    except UpstreamError as error:
        return found, error
    finally:
        await upstream.aclose()
    return found, None


async def fail_with(*answers: Answer | bytes, **fields: Any) -> UpstreamError:
    async with serve_raw(*answers) as raw:
        _, error = await read_all(make_settings(raw, **fields))
    assert error is not None
    return error


# What is sent.


async def test_a_request_carries_the_key_the_session_and_the_providers_headers() -> None:
    async with serve_raw(GOOD) as raw:
        events, error = await read_all(make_settings(raw, headers={"X-Extra": "e"}), b'{"a":1}')
    assert (events, error) == ([("x", {"n": 1})], None)
    assert (raw.paths, raw.bodies) == (["/v1/responses"], [b'{"a":1}'])
    head = raw.heads[0]
    assert head["authorization"] == f"Bearer {KEY}"
    assert head["x-session-id"] == "sess_1"
    assert head["x-extra"] == "e"
    assert head["content-type"] == "application/json"
    assert head["accept"] == "text/event-stream"


async def test_nothing_of_the_environment_leaks_into_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ORG_ID", "PROJECT_ID", "ADMIN_KEY", "API_KEY"):
        monkeypatch.setenv(f"OPENAI_{name}", "leaked")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/leaked")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "x-leak: leaked\nauthorization: Bearer leaked")
    async with serve_raw(GOOD) as raw:
        for fields in ({"api_key": None, "needs_key": False}, {}):
            assert await read_all(make_settings(raw, **fields)) == ([("x", {"n": 1})], None)
    assert "authorization" not in raw.heads[0]
    assert raw.heads[1]["authorization"] == f"Bearer {KEY}"
    assert not [head for head in raw.heads if "leak" in str(head) or any("stainless" in name for name in head)]


async def test_a_missing_key_is_told_with_the_variable_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    _, error = await read_all(make_settings(api_key=None, api_key_env="SOME_KEY", name="mine"))
    assert error is not None
    assert (error.code, error.retryable) == ("provider_auth", False)
    assert "'mine'" in error.message
    assert "environment variable SOME_KEY" in error.message
    _, error = await read_all(make_settings(api_key=None))
    assert error is not None
    assert "set its api_key" in error.message


async def test_a_key_in_the_headers_is_a_key() -> None:
    async with serve_raw(GOOD) as raw:
        settings = make_settings(raw, api_key=None, headers={"api-key": "azure-key-1"})
        assert (await read_all(settings))[1] is None
    assert raw.heads[0]["api-key"] == "azure-key-1"
    assert "authorization" not in raw.heads[0]


async def test_requests_go_through_the_proxy_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with serve_raw(GOOD) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
        settings = make_settings(base_url="http://models.example/v1")
        assert await read_all(settings) == ([("x", {"n": 1})], None)
        assert proxy.paths == ["http://models.example/v1/responses"]
        assert proxy.heads[0]["host"] == "models.example"
        async with serve_raw(GOOD) as raw:
            monkeypatch.setenv("no_proxy", "127.0.0.1")
            assert await read_all(make_settings(raw)) == ([("x", {"n": 1})], None)
    assert (len(raw.paths), len(proxy.paths)) == (1, 1)


async def test_a_query_of_the_base_url_stays_behind_the_path() -> None:
    if chosen[0] == "openai":
        pytest.skip("the SDK takes a query for a part of the path")
    async with serve_raw(GOOD) as raw:
        assert (await read_all(make_settings(base_url=f"{raw.url}/?api-version=7")))[1] is None
    assert raw.paths == ["/v1/responses?api-version=7"]


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """
    A certificate for 127.0.0.1 that nobody vouches for, its key behind it.
    """
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes certificates, is not installed")
    path, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*command.split(), "-keyout", key, "-out", path], check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + key.read_bytes())
    return path


async def test_a_server_is_trusted_by_the_authorities_that_the_environment_names(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    async with serve_raw(GOOD, tls=tls) as raw:
        _, error = await read_all(make_settings(raw))
        assert error is not None
        assert error.code == "provider_unavailable"
        assert "CERTIFICATE_VERIFY_FAILED" in error.message
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert await read_all(make_settings(raw)) == ([("x", {"n": 1})], None)


async def test_a_large_body_is_sent_with_its_length_and_arrives_whole() -> None:
    body = orjson.dumps({"input": "x" * 3_000_000})
    async with serve_raw(GOOD) as raw:
        assert await read_all(make_settings(raw), body) == ([("x", {"n": 1})], None)
    assert raw.bodies == [body]
    assert raw.heads[0]["content-length"] == str(len(body))
    assert "transfer-encoding" not in raw.heads[0]


async def test_of_an_endless_error_only_the_beginning_is_read() -> None:
    if chosen[0] == "openai":
        pytest.skip("the SDK reads errors to their end by itself")
    error = await fail_with(Answer((b"too much " * 1_000,) * 400, status=500))
    assert error.code == "provider_unavailable"
    assert len(error.message) <= 1_000


async def test_a_connection_read_to_its_end_is_used_again() -> None:
    async with serve_raw(Answer((GOOD,), end="keep")) as raw:
        assert await read_all(make_settings(raw), times=3) == ([("x", {"n": 1})], None)
    assert (len(raw.bodies), raw.connections) == (3, 1)


async def test_a_stream_without_an_end_behind_its_end_marker_is_let_go() -> None:
    async with serve_raw(Answer((GOOD,), end="hold")) as raw:
        assert await read_all(make_settings(raw)) == ([("x", {"n": 1})], None)
        async with asyncio.timeout(5):
            await raw.gone.wait()


async def test_finish_takes_what_comes_behind_the_end_marker_and_closes() -> None:
    async with serve_raw(Answer((b'data: {"n":1}\n\ndata: {"n":2}\n\ndata: broken\n\n',), end="hold")) as raw:
        upstream = Upstream(make_settings(raw))
        stream = await upstream.open("/responses", b"{}", "s")
        events = await stream.next()
        assert events is not None
        assert events[0] == ("", {"n": 1})
        async with asyncio.timeout(5):
            await stream.finish()
            await raw.gone.wait()
        await upstream.aclose()


# The policy.


def walk_policy() -> Iterable[tuple[int | None, dict[str, str], str, bool]]:
    for rule in POLICY:
        statuses = [status for status in range(300, 600) if status in rule.statuses]
        for status in statuses:
            earlier = next(other for other in POLICY if status in other.statuses)
            yield status, {"message": "m"}, earlier.code, earlier.retried
        for kind in rule.kinds:
            for key in ("code", "type"):
                yield None, {key: kind, "message": "m"}, rule.code, rule.retried
                yield None, {key: kind.upper(), "message": "m"}, rule.code, rule.retried
            if rule.wins:
                yield 400, {"code": kind, "message": "m"}, rule.code, rule.retried
                yield 429, {"code": kind, "message": "m"}, rule.code, rule.retried


def test_each_row_of_the_policy_is_what_happens() -> None:
    walked = list(walk_policy())
    for status, value, code, retried in walked:
        error = read_error({"error": value}, status=status)
        assert (error.code, error.retryable) == (code, retried), (status, value)
    assert len(walked) > 300
    assert {rule.code for rule in POLICY} <= set(ModelError.codes)


@pytest.mark.parametrize(
    "status, code, retried",
    [
        (400, "provider_rejected", False),
        (401, "provider_auth", False),
        (402, "provider_rejected", False),
        (403, "provider_auth", False),
        (404, "provider_rejected", False),
        (408, "provider_unavailable", True),
        (409, "provider_unavailable", True),
        (413, "context_length_exceeded", False),
        (422, "provider_rejected", False),
        (425, "provider_unavailable", True),
        (429, "rate_limited", True),
        (500, "provider_unavailable", True),
        (502, "provider_unavailable", True),
        (503, "provider_unavailable", True),
        (529, "provider_unavailable", True),
    ],
)
async def test_an_http_error_has_a_code_and_the_providers_words(status: int, code: str, retried: bool) -> None:
    body = b'{"error":{"message":"The words of it.","type":"x"}}'
    error = await fail_with(Answer((body,), status=status, headers=("content-type: application/json",)))
    assert (error.code, error.retryable) == (code, retried)
    assert error.message.startswith(f"The words of it. (HTTP {status}")


@pytest.mark.parametrize(
    "body, words",
    [
        (b'{"error":"model not found"}', "model not found (HTTP 404 Not Found)"),
        (b'{"object":"error","message":"flat","code":404}', "flat (HTTP 404 Not Found)"),
        (b'[{"error":{"message":"in a list"}}]', "in a list (HTTP 404 Not Found)"),
        (b'{"detail":"Not Found"}', "Not Found (HTTP 404 Not Found)"),
        (b'{"detail":[{"loc":["body"],"msg":"bad"}]}', '[{"loc": ["body"], "msg": "bad"}] (HTTP 404 Not Found)'),
        (b"404 page not found", "404 page not found (HTTP 404 Not Found)"),
        (b"<html><body>secret</body></html>", "The model server answered HTTP 404 Not Found."),
        (b"", "The model server answered HTTP 404 Not Found."),
        (b"\xff\xfe", "\ufffd\ufffd (HTTP 404 Not Found)"),
        (b'{"error":{"code":"model_not_found"}}', "model_not_found (HTTP 404 Not Found)"),
    ],
)
def test_an_error_body_is_read_in_every_shape(body: bytes, words: str) -> None:
    error = read_error_body(404, {}, body)
    assert (error.code, error.message) == ("provider_rejected", words)


@pytest.mark.parametrize(
    "status, value",
    [
        (400, {"code": "context_length_exceeded", "message": "m"}),
        (400, {"message": "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens"}),
        (400, {"message": "Your input exceeds the context window of this model."}),
        (400, {"message": "max_tokens is too large: 8192. This model's maximum context length is 8192 tokens"}),
        (500, {"type": "exceed_context_size_error", "message": "the request exceeds the available context size"}),
        (400, {"message": "request (131168 tokens) exceeds the available context size (131072 tokens)"}),
        (400, {"message": "Requested tokens (5000) exceed context window of 4096"}),
        (400, {"message": "The number of tokens to keep from the initial prompt is greater than the context length"}),
        (400, {"message": "the input length exceeds the context length"}),
        (400, {"message": "prompt is too long: 210000 tokens > 200000 maximum"}),
        (400, {"message": "The input token count (1200000) exceeds the maximum number of tokens allowed"}),
        (413, {"message": "Request Entity Too Large"}),
        (None, {"code": "context_length_exceeded", "message": "m"}),
    ],
)
def test_a_transcript_that_is_too_long_has_a_code_of_its_own(status: int | None, value: dict[str, str]) -> None:
    error = read_error({"error": value}, status=status)
    assert (error.code, error.retryable) == ("context_length_exceeded", False)


def test_a_rate_limit_that_counts_tokens_is_no_matter_of_the_context() -> None:
    words = "Request too large for gpt: maximum context length … on tokens per min (TPM)"
    assert read_error({"error": {"message": words}}, status=429).code == "rate_limited"


async def test_an_empty_purse_is_not_retried() -> None:
    body = b'{"error":{"message":"You exceeded your current quota.","code":"insufficient_quota"}}'
    error = await fail_with(Answer((body,), status=429))
    assert (error.code, error.retryable) == ("rate_limited", False)


def test_retry_after_is_read_in_each_of_its_forms() -> None:
    soon = read_retry_after({"retry-after": formatdate(time.time() + 60, usegmt=True)})
    assert soon is not None
    assert 55 < soon <= 60
    assert read_retry_after({"retry-after": formatdate(time.time() - 60, usegmt=True)}) == 0
    assert read_retry_after({"retry-after-ms": "1500", "retry-after": "9"}) == 1.5
    assert read_retry_after({"retry-after-ms": "soon", "retry-after": "9"}) == 9
    assert read_retry_after({"retry-after": "-1"}) == 0
    for useless in ("", "soon", "nan", "inf", "Wed, 99 Foo 2020"):
        assert read_retry_after({"retry-after": useless}) is None
    assert read_retry_after({}) is None


@pytest.mark.parametrize("status, told, expected", [(500, "false", False), (400, "true", True), (503, "maybe", True)])
def test_a_server_that_says_whether_asking_again_helps_is_believed(status: int, told: str, expected: bool) -> None:
    error = read_error_body(status, {"x-should-retry": told}, b'{"error": {"message": "no"}}')
    assert error.retryable is expected


async def test_retry_after_of_a_real_answer_stands_in_the_error() -> None:
    error = await fail_with(Answer((b"{}",), status=429, headers=("Retry-After: 7",)))
    assert (error.code, error.retryable, error.retry_after_s) == ("rate_limited", True, 7.0)


async def test_a_server_that_cannot_be_reached_is_unavailable() -> None:
    async with serve_raw(GOOD) as raw:
        pass
    _, error = await read_all(make_settings(raw))
    assert error is not None
    assert (error.code, error.retryable) == ("provider_unavailable", True)
    assert "cannot be reached" in error.message


async def test_a_name_that_does_not_resolve_is_unavailable() -> None:
    settings = ProviderSettings(base_url="http://nowhere.invalid/v1", api_key=KEY, connect_timeout_s=3)
    _, error = await read_all(settings)
    assert error is not None
    assert error.code == "provider_unavailable"


async def test_a_connection_closed_without_an_answer_is_unavailable() -> None:
    error = await fail_with(Answer(end="drop"))
    assert (error.code, error.retryable) == ("provider_unavailable", True)


async def test_a_redirect_is_not_followed() -> None:
    async with serve_raw(GOOD) as elsewhere:
        error = await fail_with(Answer(status=307, headers=(f"location: {elsewhere.url}",)))
    assert (error.code, error.retryable) == ("provider_rejected", False)
    assert "base_url" in error.message
    assert elsewhere.bodies == []


async def test_a_message_is_cut_and_holds_no_secret() -> None:
    words = f"Incorrect API key provided: {KEY}; x-extra was hush-hush-1. " + "x" * 5_000
    body = orjson.dumps({"error": {"message": words}})
    error = await fail_with(Answer((body,), status=401), headers={"x-extra": "hush-hush-1"})
    assert "Incorrect API key provided: [hidden]; x-extra was [hidden]." in str(error)
    assert (len(error.message), error.message) == (1_000, str(error))
    stream = b"data: " + orjson.dumps({"error": {"message": f"key {KEY}\0 is bad"}}) + b"\n\n"
    assert (await fail_with(stream)).message == "key [hidden]\ufffd is bad"


# Errors inside a stream that began with 200.


@pytest.mark.parametrize(
    "frame, code, words",
    [
        (b'data: {"error":{"message":"quota exceeded"}}', "provider_rejected", "quota exceeded"),
        (b'data: {"error":"quota exceeded"}', "provider_rejected", "quota exceeded"),
        (b'data: {"error":{"message":"quota exceeded"},"choices":[]}', "provider_rejected", "quota exceeded"),
        (b'event: error\ndata: {"message":"boom","code":500}', "provider_unavailable", "boom"),
        (b'data: {"type":"error","code":"server_error","message":"boom"}', "provider_unavailable", "boom"),
        (
            b'event: error\ndata: {"type":"error","error":{"code":"rate_limit_exceeded","message":"boom"}}',
            "rate_limited",
            "boom",
        ),
        (
            b'data: {"type":"response.failed","response":{"error":{"code":"server_error","message":"boom"}}}',
            "provider_unavailable",
            "boom",
        ),
        (b'data: {"error":{"message":"boom","type":"BadRequestError","code":400}}', "provider_rejected", "boom"),
        (b'data: {"error":{"message":"boom","code":"503"}}', "provider_unavailable", "boom"),
        (b"event: error\ndata: {}", "provider_rejected", "reported an error and did not say which"),
        (b'data: {"error":{"type":"overloaded_error"}}', "provider_unavailable", "overloaded_error"),
    ],
)
async def test_an_error_frame_of_any_shape_fails_with_the_providers_words(frame: bytes, code: str, words: str) -> None:
    """
    B100, B101. What came before the error was passed on.
    """
    async with serve_raw(b'data: {"n":1}\n\n' + frame + b"\n\ndata: [DONE]\n\n") as raw:
        events, error = await read_all(make_settings(raw))
    assert events == [("", {"n": 1})]
    assert error is not None
    assert error.code == code
    assert words in error.message


async def test_an_error_that_is_null_says_nothing() -> None:
    """
    B101.
    """
    async with serve_raw(b'data: {"error":null,"n":1}\n\ndata: [DONE]\n\n') as raw:
        assert await read_all(make_settings(raw)) == ([("", {"error": None, "n": 1})], None)
    assert read_error_frame("", {"error": None}) is None


HTML = b"<!doctype html><html><head><title>Sign in</title></head></html>"


@pytest.mark.parametrize(
    "body, code, words",
    [
        (b"", "upstream_invalid", "without a single event"),
        (b": hb\n\n: hb\n\n", "upstream_invalid", "without a single event"),
        (b"data: [DONE]\n\n", "upstream_invalid", "without a single event"),
        (b"retry: 5\n\nid: 1\n\nevent: ping\ndata:\n\n", "upstream_invalid", "without a single event"),
        (b'{"error":{"message":"no such model"}}', "upstream_invalid", "no such model"),
        (b'{\n "error": {"message": "slow down", "code": "rate_limit_exceeded"}\n}', "rate_limited", "slow down"),
        (b'{"id":"resp_1","output":[]}', "upstream_invalid", "JSON document"),
        (b'{"id":"resp_1"', "upstream_invalid", "JSON document"),
        (HTML, "upstream_invalid", "web page (Sign in)"),
        (b"data: {\n\n", "upstream_invalid", "no JSON"),
        (b"data: [1]\n\n", "upstream_invalid", "no JSON object"),
        (b"data: null\n\n", "upstream_invalid", "no JSON object"),
        (b'data: "text"\n\n', "upstream_invalid", "no JSON object"),
        (b'data: {"a":"\xff"}\n\n', "upstream_invalid", "no JSON"),
        (b'data: {"a":"\xed\xa0\xbd"}\n\n', "upstream_invalid", "no JSON"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "upstream_invalid", "no JSON"),
    ],
    ids=range(16),
)
async def test_a_200_that_is_no_stream_of_events_is_invalid(body: bytes, code: str, words: str) -> None:
    """
    B086, and frames that cannot be read.
    """
    error = await fail_with(body)
    assert (error.code, words in error.message) == (code, True), error.message
    assert error.retryable is (code == "rate_limited")


def test_a_frame_over_the_limit_is_invalid() -> None:
    reader = EventReader(limit=100)
    assert reader.feed(b"data: " + b"x" * 200) == []
    assert reader.failure is not None
    assert reader.failure.code == "upstream_invalid"


async def test_what_was_read_before_a_broken_frame_is_passed_on() -> None:
    async with serve_raw(b'data: {"n":1}\n\ndata: {"n":\n\ndata: {"n":3}\n\n') as raw:
        events, error = await read_all(make_settings(raw))
    assert events == [("", {"n": 1})]
    assert error is not None
    assert error.code == "upstream_invalid"


async def test_a_frame_that_the_end_of_the_stream_cuts_is_no_broken_frame() -> None:
    """
    B085: who waits for an end marker says that the stream was cut.
    """
    async with serve_raw(b'data: {"n":1}\n\ndata: {"n":') as raw:
        assert await read_all(make_settings(raw)) == ([("", {"n": 1})], None)


async def test_a_last_frame_without_its_blank_line_is_read() -> None:
    async with serve_raw(b'data: {"n":1}\n\ndata: {"n":2}') as raw:
        assert await read_all(make_settings(raw)) == ([("", {"n": 1}), ("", {"n": 2})], None)


async def test_a_packed_stream_is_unpacked() -> None:
    import gzip

    headers = ("content-type: text/event-stream", "content-encoding: gzip")
    async with serve_raw(Answer((gzip.compress(GOOD),), headers=headers)) as raw:
        assert await read_all(make_settings(raw)) == ([("x", {"n": 1})], None)
    assert (await fail_with(Answer((b"no gzip",), headers=headers))).code == "upstream_invalid"


# Framing.

FRAMINGS: list[tuple[bytes, list[dict[str, Any]]]] = [
    (b'data: {"t":"a\xe2\x80\xa8b\xc2\x85c"}\n\n', [{"t": "a\u2028b\u0085c"}]),
    (':\n\n: ping\n\ndata: {"t":"好🙂"}\n\n:\n\n'.encode(), [{"t": "好🙂"}]),
    (b'data:{"t":\ndata:[1]}\n\n', [{"t": [1]}]),
    (b'\xef\xbb\xbfdata: {"t":1}\n\ndata: {"t":2}\n\n', [{"t": 1}, {"t": 2}]),
    (b'event: ping\ndata: \n\nretry: 10\n\nid: 4\n\n\ndata: {"t":1}\r\n\r\ndata: {"t":2}\r\r', [{"t": 1}, {"t": 2}]),
    (b'data: {"t":"\\ud83d"}\n\ndata: {"t":"\\ude00"}\n\n', [{"t": "\ud83d"}, {"t": "\ude00"}]),
    (b'data: {"t":NaN,"u":"a\tb"}\n\n', [{"t": pytest.approx(float("nan"), nan_ok=True), "u": "a\tb"}]),
]


@pytest.mark.parametrize("stream, values", FRAMINGS, ids=range(len(FRAMINGS)))
def test_every_framing_is_read_however_it_is_split(stream: bytes, values: list[dict[str, Any]]) -> None:
    """
    B091, B092, B094, B097; B090 for the halves of a character.
    """
    splits = [[stream[:cut], stream[cut:]] for cut in range(len(stream))]
    for pieces in [*splits, [bytes((byte,)) for byte in stream]]:
        reader = EventReader()
        events = [event for piece in pieces for event in reader.feed(piece)] + reader.end()
        assert [value for _, value in events] == values
        assert reader.failure is None


async def test_a_frame_of_a_mebibyte_is_read() -> None:
    """
    B098.
    """
    async with serve_raw(b'data: {"t":"' + b"x" * 1_048_576 + b'"}\n\n') as raw:
        events, error = await read_all(make_settings(raw))
    assert error is None
    assert len(events[0][1]["t"]) == 1_048_576


async def test_characters_survive_single_bytes_on_the_wire() -> None:
    """
    B092.
    """
    stream = 'data: {"t":"好🙂"}\n\n'.encode()
    async with serve_raw(Answer([bytes((byte,)) for byte in stream])) as raw:
        assert await read_all(make_settings(raw)) == ([("", {"t": "好🙂"})], None)


# Breaking off.


async def test_a_reset_inside_the_answer_is_a_disconnect() -> None:
    """
    B104, B106.
    """
    async with serve_raw(Answer((b'data: {"n":1}\n\n',), end="reset")) as raw:
        _, error = await read_all(make_settings(raw))
    assert error is not None
    assert (error.code, error.retryable) == ("upstream_disconnected", True)


@pytest.mark.parametrize("end", ["hold", "beat"])
@pytest.mark.parametrize("pieces", [(), (b'data: {"n":1}\n\n',)])
async def test_silence_between_events_ends_the_stream_and_closes_it(end: str, pieces: tuple[bytes, ...]) -> None:
    """
    B107: with and without comments that keep the connection busy, before and after the first event.
    """
    async with serve_raw(Answer(pieces, end=end)) as raw:
        events, error = await read_all(make_settings(raw, idle_timeout_s=0.08))
        async with asyncio.timeout(5):
            await raw.gone.wait()
    assert len(events) == len(pieces)
    assert error is not None
    assert (error.code, error.retryable, error.message) == (
        "upstream_idle",
        False,
        "The model server sent no event for 0.08 s.",
    )


async def test_a_server_that_never_answers_is_silent_too() -> None:
    async with serve_raw(Answer(end="mute")) as raw:
        _, error = await read_all(make_settings(raw, idle_timeout_s=0.05))
        async with asyncio.timeout(5):
            await raw.gone.wait()
    assert error is not None
    assert error.code == "upstream_idle"


async def test_a_chunk_that_is_none_ends_the_stream_long_before_the_idle_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    aiohttp tells nobody when it comes by itself. The SDK's transport finds it at the idle limit.
    """
    monkeypatch.setattr("agent_harness.llm.upstream_http.LOOK_S", 0.02)
    first = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b'f\r\ndata: {"n":1}\n\n\r\n')
        await first.wait()
        writer.write(b"zz\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    idle_s = 60.0 if chosen[0] == "aiohttp" else 0.3
    upstream = Upstream(make_settings(base_url=f"http://127.0.0.1:{port}/v1", idle_timeout_s=idle_s))
    async with server, asyncio.timeout(5):
        events = read_events(upstream, "/responses", b"{}", "s")
        assert await anext(events) == ("", {"n": 1})
        first.set()
        with pytest.raises(UpstreamError) as failed:
            await anext(events)
        await upstream.aclose()
    assert failed.value.code == ("upstream_disconnected" if chosen[0] == "aiohttp" else "upstream_idle")


async def test_a_good_end_that_comes_while_the_loop_is_late_is_a_good_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The connection is closed before the reader hears of the end, and the look at it may come between the two.
    """
    monkeypatch.setattr("agent_harness.llm.upstream_http.LOOK_S", 0.02)
    gate = threading.Event()

    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
            connection.sendall(head + b'data: {"n":1}\n\ndata: {"n":2}\n')
            gate.wait(5)

    def be_late() -> None:
        gate.set()
        thread.join(5)
        time.sleep(0.05)  # until the look is due, too

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        upstream = Upstream(make_settings(base_url=f"http://127.0.0.1:{server.getsockname()[1]}/v1"))
        async with asyncio.timeout(5):
            stream = await upstream.open("/responses", b"{}", "s")
            assert await stream.next() == [("", {"n": 1})]
            reading = asyncio.create_task(stream.next())
            await ticks(3)
            be_late()
            assert await reading == [("", {"n": 2})]
            assert await stream.next() is None
            await upstream.aclose()


async def test_the_status_counts_where_the_body_of_an_error_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The SDK reads it by itself, and finds that at the idle limit.
    """
    monkeypatch.setattr("agent_harness.llm.upstream.ERROR_S", 0.05)
    idle_s = 60.0 if chosen[0] == "aiohttp" else 0.3
    error = await fail_with(Answer((b'{"error":',), status=400, end="hold"), idle_timeout_s=idle_s)
    assert error.code == ("provider_rejected" if chosen[0] == "aiohttp" else "upstream_idle")


async def test_a_broken_answer_is_told_in_one_line_and_without_a_status_that_nobody_sent() -> None:
    error = await fail_with(Answer((b'data: {"n":1}\n\n',), end="reset"))
    assert error.code == "upstream_disconnected"
    assert "400" not in error.message and "\n" not in error.message


async def test_cancelling_closes_the_connection_at_once() -> None:
    async with serve_raw(Answer((b'data: {"n":1}\n\n',), end="hold")) as raw:
        upstream = Upstream(make_settings(raw))
        first = asyncio.Event()

        async def read() -> None:
            async for _ in read_events(upstream, "/responses", b"{}", "s"):
                first.set()

        task = asyncio.create_task(read())
        async with asyncio.timeout(5):
            await first.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await raw.gone.wait()
        await upstream.aclose()


async def test_cancelling_before_the_answer_closes_the_connection() -> None:
    async with serve_raw(Answer(end="mute")) as raw:
        upstream = Upstream(make_settings(raw))
        task = asyncio.create_task(read_events(upstream, "/responses", b"{}", "s").__anext__())
        async with asyncio.timeout(5):
            await raw.asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await raw.gone.wait()
        await upstream.aclose()


async def test_closing_the_generator_closes_the_connection_at_once() -> None:
    async with serve_raw(Answer((b'data: {"n":1}\n\n',), end="hold")) as raw:
        upstream = Upstream(make_settings(raw))
        events = read_events(upstream, "/responses", b"{}", "s")
        assert await anext(events) == ("", {"n": 1})
        async with asyncio.timeout(5):
            await events.aclose()
            await raw.gone.wait()
        await upstream.aclose()


async def test_closing_the_upstream_ends_its_streams() -> None:
    async with serve_raw(Answer((b'data: {"n":1}\n\n',), end="hold")) as raw:
        upstream = Upstream(make_settings(raw))
        events = read_events(upstream, "/responses", b"{}", "s")
        await anext(events)
        await upstream.aclose()
        await upstream.aclose()
        async with asyncio.timeout(5):
            with pytest.raises(UpstreamError) as caught:
                await anext(events)
    assert caught.value.code == "upstream_disconnected"
    with pytest.raises(UpstreamError, match="closed"):
        await anext(read_events(upstream, "/responses", b"{}", "s"))


async def test_an_upstream_that_was_never_used_can_be_closed() -> None:
    await Upstream(make_settings()).aclose()


async def test_many_first_uses_at_once_share_one_client() -> None:
    async with serve_raw(Answer((GOOD,), end="keep")) as raw:
        upstream = Upstream(make_settings(raw))
        await asyncio.gather(*(upstream.warm() for _ in range(4)))

        async def read() -> int:
            return len([event async for event in read_events(upstream, "/responses", b"{}", "s")])

        async with asyncio.timeout(5):
            assert await asyncio.gather(*(read() for _ in range(8))) == [1] * 8
        await upstream.aclose()


async def test_a_client_that_cannot_be_made_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    _, error = await read_all(make_settings(base_url="https://127.0.0.1:9/v1"))
    assert error is not None
    assert error.code == "internal_error"
    assert "cannot be made" in error.message


def test_importing_the_seam_loads_no_sdk() -> None:
    program = "import sys, agent_harness.llm.responses; print('openai' in sys.modules, 'aiohttp' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in ("", *sys.path) if path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["False", "False"]


def test_a_count_is_a_whole_number_or_nothing() -> None:
    """
    B171.
    """
    assert [read_count(value) for value in (0, 7)] == [0, 7]
    assert {read_count(value) for value in (None, "7", True, -1, 1.5, 10**30)} == {None}


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        "",
        [],
        {},
        [[[[[[{}]]]]]],
        {"error": {"error": {"error": {"error": {"error": "deep"}}}}},
        {"message": 7, "code": 10**30, "type": ["x"]},
        {"detail": [{"loc": 10**30, "msg": "\ud83d"}]},
        {"code": "9" * 5000},
    ],
    ids=range(10),
)
def test_an_error_of_no_known_shape_is_an_error_all_the_same(value: Any) -> None:
    error = read_error(value)
    assert error.code == "provider_rejected"
    assert error.message
