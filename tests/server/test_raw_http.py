"""
Bytes that no HTTP client would send, on real sockets: each is answered or the connection closed within bounds, none is
answered by a 500, a refused one changes nothing, and none makes an error of the server's in its log.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import zlib
from typing import Any

import pytest

from agent_harness.llm.scripted import say
from agent_harness.server import app as app_module
from tests.server.raw import JSON, MESSAGE, Start, body_of, plain, read_all, status_of
from tests.support import WAIT_S, strict_json, user

pytestmark = pytest.mark.usefixtures("no_error_in_the_log")

# Heads that are none.

HEADS = [
    b"\x00\x01\x02\xff\xfe\r\n\r\n",
    b"\xff" * 100_000,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) + b"\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET /health\r\n\r\n",
    b"GET /health HTTP/9.9\r\nHost: x\r\n\r\n",
    b"GET /health http/1.1\r\nHost: x\r\n\r\n",
    b"GET /health HTTP/1.1 x\r\nHost: x\r\n\r\n",
    b"GET /he alth HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /he\0alth HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /he\ralth HTTP/1.1\r\nHost: x\r\n\r\n",
    b"G\0T /health HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://[::1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"a" * 70_000 + b": x\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 5_000 + b"\r\n",
]


@pytest.mark.parametrize("head", HEADS, ids=lambda head: repr(head[:40]))
async def test_what_is_no_request_is_refused_and_the_connection_closed(start: Start, head: bytes) -> None:
    server = await start()
    before = server.state()
    assert status_of(await server.send(head)) in (400, 404, 405, 431, None)
    assert server.state() == before and await server.is_well()


HEADERS = [
    "No colon",
    "Space : x",
    ": x",
    "X: a\0b",
    "X: a\rInjected: b",
    "X: a\x7fb",
    "X\x01: a",
    "\xe9: a",
    "X: a\r\n folded",
    "Content-Length: 1",
    "Content-Length: 99999",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding : chunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    "Transfer-Encoding: identity",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: xchunked",
    "Content-Encoding: gzip",
    "Content-Encoding: deflate",
    "Content-Encoding: br",
]


@pytest.mark.parametrize("header", HEADERS, ids=repr)
async def test_a_message_under_a_bad_or_contradicting_header_starts_nothing(start: Start, header: str) -> None:
    """
    Two lengths, and a length beside chunks, are how requests are smuggled past a proxy.
    """
    server = await start(body_s=0.2)
    before = server.state()
    assert status_of(await server.send(server.post(header))) in (400, None)
    assert server.state() == before and await server.is_well()


@pytest.mark.parametrize("length", ["-1", "+5", "1e3", "0x10", "5 5", "5,5", "", " ", "5\0", "9" * 30, "\xb2"])
async def test_a_length_that_is_no_number_is_refused(start: Start, length: str) -> None:
    server = await start(body_s=0.2)
    before = server.state()
    request = server.post(f"Content-Length: {length}", length=False)
    assert status_of(await server.send(request)) in (400, 413, None)
    assert server.state() == before and await server.is_well()


CHUNKS = [
    b"zz\r\nx\r\n0\r\n\r\n",
    b"-1\r\nx\r\n0\r\n\r\n",
    b"\r\n\r\n",
    b"0x10\r\nx",
    b"5\r\nabcdeXX0\r\n\r\n",
    b"5\nabcde\n0\n\n",
    b"ffffffffffffffffff\r\nx",
    b"5;" + b"a" * 200_000 + b"\r\nabcde\r\n0\r\n\r\n",
    b"1" * 100_000,
    b"0\r\nTrailer: " + b"a" * 200_000 + b"\r\n\r\n",
    b"0\r\nBad trailer\r\n\r\n",
    b"1\r\n{\r\n",
    b"",
]


@pytest.mark.parametrize("chunks", CHUNKS, ids=lambda chunks: repr(chunks[:30]))
async def test_bad_chunks_are_refused_or_time_out(start: Start, chunks: bytes) -> None:
    server = await start(body_s=0.2)
    before = server.state()
    request = server.post("Transfer-Encoding: chunked", body=chunks, length=False)
    answer = await server.send(request)
    assert status_of(answer) in (400, None), answer[:300]
    assert server.state() == before and await server.is_well()


async def test_whole_chunks_with_extensions_and_trailers_are_a_body(start: Start) -> None:
    server = await start(say("hi"))
    size = f"{len(MESSAGE):x};ext=1\r\n".encode()
    chunks = size + MESSAGE + b"\r\n0\r\nTrailer: x\r\n\r\n"
    request = server.post("Transfer-Encoding: chunked", body=chunks, length=False)
    assert status_of(await server.send(request)) == 202


# Bodies that do not come.


async def test_a_body_that_does_not_come_is_waited_for_only_so_long(start: Start) -> None:
    server = await start(body_s=0.1)
    before = server.state()
    for request in (
        server.post("Content-Length: 999", length=False),
        server.post("Content-Length: 999", length=False, body=b""),
        server.post("Transfer-Encoding: chunked", length=False, body=b"5\r\n{"),
    ):
        answer = await server.send(request)
        assert status_of(answer) == 400 and body_of(answer)["error"]["code"] == "invalid_json"
    assert server.state() == before and await server.is_well()


async def test_a_head_that_does_not_come_is_waited_for_only_so_long(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "IDLE_CONNECTION_S", 0.1)
    server = await start()
    for head in (b"", b"G", b"GET /health HTTP/1.1\r\nHost: x\r\nX: "):
        assert await server.send(head) == b""


async def test_a_body_cut_short_by_the_end_of_our_direction_starts_nothing(start: Start) -> None:
    server = await start(body_s=0.2)
    before = server.state()
    for request in (
        server.post()[:-5],
        server.post("Content-Length: 999", length=False),
        server.post("Transfer-Encoding: chunked", length=False, body=b"5\r\n{"),
        server.post()[:40],
    ):
        assert status_of(await server.send(request, end=True)) in (400, None)
    assert server.state() == before and await server.is_well()


async def test_an_upload_that_is_broken_off_starts_nothing_and_leaves_no_connection(start: Start) -> None:
    server = await start()
    before = server.state()
    for request in (server.post()[:-5], server.post("Transfer-Encoding: chunked", length=False, body=b"ff\r\n{")):
        async with server.connect() as (_, writer):
            writer.write(request)
            await writer.drain()
    assert await server.is_well()
    assert server.runner.server is not None
    async with asyncio.timeout(WAIT_S):
        while server.runner.server.connections:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert server.state() == before


async def test_a_whole_request_on_a_half_closed_connection_is_answered_or_the_connection_closed(start: Start) -> None:
    server = await start(say("hi"))
    assert status_of(await server.send(server.post(), end=True)) in (202, None)
    assert await server.is_well()


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_body_that_swells_is_refused_at_the_bound(start: Start, coding: str) -> None:
    server = await start(body_bytes=100_000)
    before = server.state()
    blank = b" " * 30_000_000
    packed = gzip.compress(blank) if coding == "gzip" else zlib.compress(blank)
    assert len(packed) < 100_000
    answer = await server.send(server.post(f"Content-Encoding: {coding}", body=packed))
    assert status_of(answer) == 413 and body_of(answer)["error"]["code"] == "request_too_large"
    assert server.state() == before and await server.is_well()


async def test_a_packed_body_is_a_body(start: Start) -> None:
    server = await start(say("hi"))
    answer = await server.send(server.post("Content-Encoding: gzip", body=gzip.compress(MESSAGE)))
    assert status_of(answer) == 202


# Several requests on one connection.


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = await reader.readuntil(b"\r\n\r\n")
    [length] = [line[16:] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length: ")]
    return int(head.split(b" ")[1]), strict_json(await reader.readexactly(int(length)))


async def test_requests_sent_ahead_are_answered_in_order(start: Start) -> None:
    server = await start(say("one"), say("two"))
    path = f"/v1/sessions/{server.session.id}"
    bodies = [json.dumps(user(f"message {number}")).encode() for number in range(20)]
    async with server.connect() as (reader, writer):
        writer.write(plain("GET", "/health") + plain("GET", "/nope") + plain("PUT", "/health"))
        writer.write(b"".join(plain("POST", f"{path}/events", JSON, body=body) for body in bodies))
        writer.write(plain("GET", path))
        answers = [await read_answer(reader) for _ in range(24)]
    assert [status for status, _ in answers] == [200, 404, 405, *[202] * 20, 200]
    seen = [answer["seq"] for _, answer in answers[3:]]
    assert seen == sorted(seen)
    said = [item["content"][0]["text"] for item in answers[-1][1]["items"] if item["origin"] == "client"]
    assert said == [f"message {number}" for number in range(20)]


async def test_garbage_behind_requests_ends_the_connection_and_is_no_request(start: Start) -> None:
    server = await start(say("hi"))
    body = plain("POST", server.events, JSON, body=MESSAGE)
    async with server.connect() as (reader, writer):
        writer.write(plain("GET", "/health") + body)
        assert [(await read_answer(reader))[0] for _ in range(2)] == [200, 202]
        writer.write(b"\0\0garbage\r\n\r\n" + body)
        assert status_of(await read_all(reader)) in (400, None)
    assert len(server.session.transcript.turns) == 1


async def test_a_refused_body_is_not_taken_for_the_next_request(start: Start) -> None:
    """
    Smuggling: what stands in a body is a body, whatever the answer.
    """
    server = await start()
    before = server.state()
    inner = plain("POST", server.events, JSON, body=MESSAGE)
    async with server.connect() as (reader, writer):
        for path, headers, status in (
            ("/nope", (JSON,), 404),
            ("/health", (), 405),
            (server.events, ("Content-Type: text/plain",), 415),
            (server.events, (JSON, "Origin: https://evil.example"), 403),
        ):
            writer.write(plain("POST", path, *headers, body=inner))
            assert (await read_answer(reader))[0] == status
        writer.write(plain("GET", "/health"))
        assert (await read_answer(reader))[0] == 200
    assert server.state() == before


# Old and seldom, but right.


@pytest.mark.parametrize("header", ["X: y", "Connection: keep-alive", "Connection: close"])
async def test_http_1_0_is_answered(start: Start, header: str) -> None:
    server = await start(say("hi"))
    request = server.post(header, version="1.0").replace(b"Connection: close\r\n", b"", 1)
    async with server.connect() as (reader, writer):
        writer.write(request)
        assert (await read_answer(reader))[0] == 202
        if "keep-alive" not in header:
            assert await reader.read() == b""


async def test_a_client_that_waits_to_be_told_to_go_on_is_told(start: Start) -> None:
    server = await start(say("hi"))
    async with server.connect() as (reader, writer):
        writer.write(server.post("Expect: 100-continue")[: -len(MESSAGE)])
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(MESSAGE)
        assert (await read_answer(reader))[0] == 202


async def test_an_expectation_nobody_knows_is_refused_in_the_error_shape(start: Start) -> None:
    server = await start()
    before = server.state()
    for method, path in (("POST", server.events), ("POST", "/v1/sessions"), ("GET", "/health")):
        answer = await server.send(plain(method, path, JSON, "Expect: cake", "Connection: close", body=MESSAGE))
        assert status_of(answer) == 400 and body_of(answer)["error"]["param"] == "Expect"
    assert server.state() == before


@pytest.mark.parametrize("header", ["Host: y", "Content-Type: text/plain", "Idempotency-Key: b", "X: a\nInjected: b"])
async def test_a_header_given_twice_or_broken_by_a_line_feed_breaks_nothing(start: Start, header: str) -> None:
    server = await start(say("hi"))
    answer = await server.send(server.post("Idempotency-Key: a", header))
    assert status_of(answer) in (202, 400) and await server.is_well()


@pytest.mark.parametrize("header", ["Upgrade: websocket", "Upgrade: h2c\r\nHTTP2-Settings: x"])
async def test_an_upgrade_is_not_taken_up(start: Start, header: str) -> None:
    server = await start()
    request = f"GET /health HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n{header}\r\n\r\n"
    async with server.connect() as (reader, writer):
        writer.write(request.encode())
        assert (await read_answer(reader))[0] == 200


@pytest.mark.parametrize("method", ["CONNECT x:443", "TRACE /health", "OPTIONS *", "GET http://y/nope"])
async def test_methods_and_targets_for_proxies_lead_nowhere(start: Start, method: str) -> None:
    server = await start()
    async with server.connect() as (reader, writer):
        writer.write(f"{method} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        status, answer = await read_answer(reader)
    assert status in (404, 405) and answer["error"]["type"] and await server.is_well()


# The log.


async def test_a_request_that_is_no_http_is_one_quiet_line_in_the_log_without_its_bytes(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server = await start()
    await server.send(b"GET / HTTP/1.1\r\nX: \0stolen-line\r\n\r\n")
    [record] = [record for record in caplog.records if record.name == "agent_harness.connections"]
    assert record.levelno == logging.INFO and not record.exc_info
    assert record.getMessage() == "request malformed reason=BadHttpMessage"
