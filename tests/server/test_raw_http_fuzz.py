"""
Requests with anything in them, on real sockets: no 500, no stuck connection, and nothing changed but what was told.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from agent_harness.server import app as app_module
from tests.server.raw import JSON, Start, plain, status_of

pytestmark = pytest.mark.usefixtures("no_error_in_the_log")

TOKENS = [b"\0", b"\r", b"\n", b"\r\n", b"\r\n\r\n", b" ", b":", b"\xff", b"%", b"%00", b"/../", b"?", b"#", b"0",
          b"-1", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 3\r\n", b"HTTP/1.0", b"\t", b";", b"{",
          b'"', b"a" * 5000]  # fmt: skip


def mutate(request: bytes, rng: random.Random) -> bytes:
    """
    *request* with one to three bytes or pieces exchanged, put in, taken out or said twice.
    """
    data = bytearray(request)
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(data))
        end = min(len(data), start + rng.choice((0, 0, 1, 1, 2, 8, 40)))
        match rng.randrange(4):
            case 0:
                data[start:end] = rng.choice(TOKENS)
            case 1:
                data[start:end] = data[start:end] * 2
            case 2:
                data[start : max(end, start + 1)] = b""
            case _:
                data[start] = rng.randrange(256)
        data = data or bytearray(b" ")
    return bytes(data)


@pytest.mark.parametrize("seed", range(8))
async def test_requests_with_anything_in_them_change_nothing_that_was_not_told(
    start: Start, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "IDLE_CONNECTION_S", 0.3)
    server = await start(body_s=0.1, queued_messages=10_000)
    rng = random.Random(seed)
    whole = [server.post(), server.post("Transfer-Encoding: chunked", length=False, body=b"2\r\n{}\r\n0\r\n\r\n")]
    whole.append(plain("POST", "/v1/sessions", JSON, "Connection: close", body=b'{"metadata": {"a": "b"}}'))
    requests = [mutate(rng.choice(whole), rng) for _ in range(100)]
    async with asyncio.TaskGroup() as group:
        answers = [group.create_task(server.send(request)) for request in requests]
    told = [status_of(answer.result()) for answer in answers]

    assert not [status for status in told if status is not None and status >= 500]
    # A connection may bring several requests.
    taken = sum(answer.result().count(b" 202 Accepted") for answer in answers)
    made = sum(answer.result().count(b" 201 Created") for answer in answers)
    assert len(server.session.transcript.turns) == taken and len(server.harness) == 1 + made
    assert {400, 404} <= set(told) and {201, 202} & set(told) and await server.is_well()
