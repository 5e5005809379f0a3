"""
The model server of the soak, a process of its own: Responses dialect, every request held to STRICT, faults on demand.

What it answers follows from the last user text (see `soak_plan`). ``GET /soak/stats`` gives the counts and the
refusals; ``POST /soak/forget?session=`` the outputs in the session's last good request, and forgets the session.
"""

import asyncio
import collections
import json
import socket
import struct
import sys
from typing import Any

import attrs
from aiohttp import web
from soak_plan import find_step, name_of

from agent_harness.testing.mock_entry import read_entry
from agent_harness.testing.mock_responses import ResponsesStream
from agent_harness.testing.strict import SessionMemory, StrictError, StrictOptions, check_request, parse_body

SILENCE_S = 10.0
"""How long this server says nothing when it stalls, in seconds; longer than the idle limit of the soak's settings."""

SHOWN = 20
"""Most refusals that are kept word for word."""

HEADERS = {"content-type": "text/event-stream; charset=utf-8"}


@attrs.define
class Known:
    """
    What is remembered of one session: for STRICT, and how often each plan's fault has struck.
    """

    strict: SessionMemory = attrs.field(factory=SessionMemory)
    struck: dict[str, int] = attrs.field(factory=dict)


class Upstream:
    """
    The server's state and handlers.
    """

    def __init__(self) -> None:
        self.sessions: collections.defaultdict[str, Known] = collections.defaultdict(Known)
        self.counts: collections.Counter[str] = collections.Counter()
        self.refusals: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """
        ``POST /v1/responses``.
        """
        raw = await request.read()
        self.counts["requests"] += 1
        session_id = request.headers.get("x-session-id", "")
        known = self.sessions[session_id]
        try:
            body = parse_body(raw)
            passed = check_request("responses", body, raw, StrictOptions(), known.strict)
        except StrictError as error:
            self.counts["refused"] += 1
            if len(self.refusals) < SHOWN:
                self.refusals.append(f"{session_id}: {json.dumps(error.to_body())}")
            return web.json_response(error.to_body(), status=400)
        plan, step = find_step(body["input"])
        fault = self.strike(known, plan, step)
        if fault in ("429", "500"):
            headers = {"retry-after": "0.2"} if fault == "429" else {}
            return web.json_response({"error": {"message": "soak", "type": "x"}}, status=int(fault), headers=headers)
        if fault == "silence":
            await wait_while_there(request)
        if fault in ("silence", "reset"):
            return reset(request)
        stream = ResponsesStream(read_entry(make_entry(plan, step), "entry"), body, len(raw))
        answer = stream.build()
        known.strict.last = passed or known.strict.last
        known.strict.answers.remember(answer.items)
        frames = [frame.data for frame in answer.frames]
        return await send(request, frames, fault, plan["pace_s"] if step == len(plan["rounds"]) else 0.0)

    def strike(self, known: Known, plan: dict[str, Any], step: int) -> str:
        """
        The fault that this request meets, or "".
        """
        if not plan["fault"] or step != plan["fault_round"]:
            return ""
        struck = known.struck.get(plan["key"], 0)
        if struck >= plan["fault_times"]:
            return ""
        known.struck[plan["key"]] = struck + 1
        self.counts[plan["fault"]] += 1
        return str(plan["fault"])

    async def show_stats(self, request: web.Request) -> web.Response:
        """
        ``GET /soak/stats``.
        """
        return web.json_response({"counts": self.counts, "refusals": self.refusals, "sessions": len(self.sessions)})

    async def forget(self, request: web.Request) -> web.Response:
        """
        ``POST /soak/forget``.
        """
        known = self.sessions.pop(request.query["session"], Known())
        items = known.strict.last.items if known.strict.last is not None else ()
        return web.json_response(
            {item["call_id"]: item["output"] for item in items if item.get("type") == "function_call_output"}
        )


def make_entry(plan: dict[str, Any], step: int) -> dict[str, Any]:
    """
    The scripted answer for one step of a plan.
    """
    entry: dict[str, Any] = {"reasoning": "I think."} if plan["reasoning"] else {}
    if step == len(plan["rounds"]):
        return entry | {"deltas": [f"word{number} " for number in range(plan["words"])]}
    calls = []
    for act in plan["rounds"][step]:
        arguments = "[1]" if act == "shapeless" else json.dumps({"act": act})
        calls.append({"name": name_of(act), "arguments": arguments})
    return entry | {"tool_calls": calls} | ({"text": "Let me see."} if len(calls) > 2 else {})


async def send(request: web.Request, frames: list[bytes], fault: str, pace_s: float) -> web.StreamResponse:
    """
    Send an answer: in one piece or frame by frame, whole or with its fault in the middle.
    """
    response = web.StreamResponse(headers=HEADERS)
    pieces = frames if pace_s else [b"".join(frames[: len(frames) // 2]), b"".join(frames[len(frames) // 2 :])]
    try:
        await response.prepare(request)
        for index, piece in enumerate(pieces):
            if fault and index == len(pieces) // 2:
                # What was written must have arrived, or the reset takes it along.
                await (wait_while_there(request) if fault == "stall" else asyncio.sleep(0.02))
                reset(request)
            await response.write(piece)
            if pace_s:
                await asyncio.sleep(pace_s)
        await response.write_eof()
    except ConnectionError:
        pass  # the harness left, or this server did
    return response


async def wait_while_there(request: web.Request) -> None:
    """
    Say nothing until the harness gives up.
    """
    for _ in range(int(SILENCE_S / 0.1)):
        if request.transport is None or request.transport.is_closing():
            return
        await asyncio.sleep(0.1)


def reset(request: web.Request) -> web.Response:
    """
    Reset the connection. What is returned reaches nobody.
    """
    if request.transport is not None:
        connection = request.transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()
    return web.Response(status=500)


async def serve() -> None:
    """
    Serve on a free port of this machine, and print it.
    """
    upstream = Upstream()
    app = web.Application(client_max_size=256 * 1024 * 1024)
    app.router.add_post("/v1/responses", upstream.answer)
    app.router.add_get("/soak/stats", upstream.show_stats)
    app.router.add_post("/soak/forget", upstream.forget)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
