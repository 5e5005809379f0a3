"""
Routes: decode, ask the engine, encode. Nothing is decided here.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from agent_harness.engine.replies import Interrupted, Sent
from agent_harness.engine.session import Session
from agent_harness.errors import InvalidRequest, NotFound, UnsupportedMediaType
from agent_harness.protocol.commands import Interrupt, SendMessage, SubmitOutput
from agent_harness.protocol.decode import parse_json
from agent_harness.protocol.encode import dump_json, to_wire
from agent_harness.protocol.pages import make_page
from agent_harness.protocol.requests import read_create, read_events, read_fork, read_page, read_update
from agent_harness.server.auth import needs_no_key
from agent_harness.server.holding import HARNESS
from agent_harness.server.idempotency import KeptAnswers, answer_once, keep_answer, keep_sent
from agent_harness.server.stream import let_begin, stream_message, stream_session
from agent_harness.version import VERSION

__all__ = ["ANSWERS", "HARNESS", "ROUTES"]

ANSWERS: web.AppKey[KeptAnswers] = web.AppKey("answers", KeptAnswers)

ROUTES = web.RouteTableDef()


def _answer(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=dump_json(value) + b"\n", status=status, content_type="application/json")


def _session(request: web.Request) -> Session:
    return request.app[HARNESS].get(request.match_info["session_id"])


async def _read_body(request: web.Request, *, optional: bool = False) -> bytes:
    """
    The bytes of the JSON body; ``{}`` for an absent one that is *optional*.

    Raises:
        RequestTooLarge, UnsupportedMediaType: in this order.
    """
    if request.content_length is not None and request.content_length > request.client_max_size:
        raise web.HTTPRequestEntityTooLarge(request.client_max_size, request.content_length)
    if not request.body_exists and optional:
        return b"{}"
    if request.content.is_eof():
        # All of it came with the head, as small bodies do: there is nothing to wait for, and no timer to set.
        body = await request.read()
    else:
        body = await _wait_for_body(request)
    if request.content_type != "application/json" or "Content-Type" not in request.headers:
        raise UnsupportedMediaType("The body must be JSON: send it with the header Content-Type: application/json.")
    return body


async def _wait_for_body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(request.app[HARNESS].limits.body_s):
            return await request.read()
    except TimeoutError:
        message = "The body did not come in time. Nothing was changed."
        raise InvalidRequest(message, code="invalid_json") from None


async def _answer_once(
    request: web.Request,
    session: Session | None,
    handle: Callable[[bytes], Awaitable[web.StreamResponse]],
    *,
    optional: bool = False,
) -> web.StreamResponse:
    """
    Read the body and answer it by *handle*, under the request's Idempotency-Key if it has one.
    """
    body = await _read_body(request, optional=optional)

    async def stream_again(sent: Sent) -> web.StreamResponse:
        assert session is not None
        headers = {"idempotency-replayed": "true"}
        return await stream_message(request, session, sent, request.app[HARNESS].limits.ping_s, headers)

    return await answer_once(request, request.app[ANSWERS], session, body, lambda: handle(body), stream_again)


def _flag(query: Mapping[str, str], name: str, default: bool) -> bool:
    value = query.get(name)
    if value not in (None, "true", "false"):
        raise InvalidRequest(f"{name} is true or false.", param=name)
    return default if value is None else value == "true"


# Routes are tried in this order: first the two that are asked for all the time.


@ROUTES.post("/v1/sessions/{session_id}/events")
async def post_events(request: web.Request) -> web.StreamResponse:
    """
    A command, or a batch of results.
    """
    session = _session(request)
    answer = await _answer_once(request, session, lambda body: _carry_out(request, session, body))
    if not answer.prepared:
        await let_begin()
    return answer


@ROUTES.get("/v1/sessions/{session_id}/stream", allow_head=False)
async def follow_session(request: web.Request) -> web.StreamResponse:
    """
    The session's events from now on, or from a number.
    """
    session = _session(request)
    return await stream_session(request, session, request.app[HARNESS].limits.ping_s)


@ROUTES.get("/health")
@needs_no_key
async def health(request: web.Request) -> web.Response:
    """
    Liveness, version and counts.
    """
    harness = request.app[HARNESS]
    return _answer(
        {
            "status": "shutting_down" if harness.draining else "ok",
            "version": VERSION,
            "sessions": len(harness),
            "running_turns": harness.running_turns,
        }
    )


@ROUTES.post("/v1/sessions")
async def create_session(request: web.Request) -> web.StreamResponse:
    """
    Make a session.
    """

    async def handle(body: bytes) -> web.StreamResponse:
        command = read_create(parse_json(body), int(time.time()))
        return _answer(to_wire(request.app[HARNESS].create(command).snapshot()), 201)

    return await _answer_once(request, None, handle, optional=True)


@ROUTES.get("/v1/sessions")
async def list_sessions(request: web.Request) -> web.Response:
    """
    A page of sessions, without their items.
    """
    page = read_page(request.query, default_order="desc")
    sessions = request.app[HARNESS].sessions()
    return _answer(
        make_page(page, sessions, lambda row: to_wire(row.snapshot(include_items=False)), lambda row: row.id)
    )


@ROUTES.get("/v1/sessions/{session_id}")
async def get_session(request: web.Request) -> web.Response:
    """
    The snapshot of a session.
    """
    session = _session(request)
    return _answer(to_wire(session.snapshot(include_items=_flag(request.query, "include_items", True))))


@ROUTES.patch("/v1/sessions/{session_id}")
async def update_session(request: web.Request) -> web.Response:
    """
    Change agent and metadata.
    """
    session = _session(request)
    session.update(read_update(parse_json(await _read_body(request))))
    return _answer(to_wire(session.snapshot()))


@ROUTES.delete("/v1/sessions/{session_id}")
async def delete_session(request: web.Request) -> web.Response:
    """
    End a session and forget it.
    """
    session = _session(request)
    await request.app[HARNESS].delete(session)
    return _answer({"id": session.id, "object": "session.deleted", "deleted": True})


@ROUTES.get("/v1/sessions/{session_id}/items")
async def list_items(request: web.Request) -> web.Response:
    """
    A page of the settled transcript.
    """
    session = _session(request)
    page = read_page(request.query, default_order="asc")
    return _answer(make_page(page, session.transcript.settled(), to_wire, lambda item: item.id))


@ROUTES.get("/v1/sessions/{session_id}/responses")
async def list_responses(request: web.Request) -> web.Response:
    """
    A page of turn records.
    """
    session = _session(request)
    page = read_page(request.query, default_order="asc")
    return _answer(make_page(page, list(session.transcript.turns.values()), to_wire, lambda turn: turn.id))


@ROUTES.get("/v1/sessions/{session_id}/responses/{response_id}")
async def get_response(request: web.Request) -> web.Response:
    """
    One turn record.
    """
    turn = _session(request).transcript.turns.get(request.match_info["response_id"])
    if turn is None:
        raise NotFound("This session has no such response.", code="unknown_response")
    return _answer(to_wire(turn))


@ROUTES.get("/v1/sessions/{session_id}/request")
async def get_request(request: web.Request) -> web.Response:
    """
    The body that the next model call would have.
    """
    return web.Response(body=_session(request).preview_body() + b"\n", content_type="application/json")


@ROUTES.post("/v1/sessions/{session_id}/fork")
async def fork_session(request: web.Request) -> web.StreamResponse:
    """
    A new session with the items of this one.
    """
    source = _session(request)

    async def handle(body: bytes) -> web.StreamResponse:
        fork = request.app[HARNESS].fork(source, read_fork(parse_json(body)))
        return _answer(to_wire(fork.snapshot()), 201)

    return await _answer_once(request, source, handle, optional=True)


async def _carry_out(request: web.Request, session: Session, body: bytes) -> web.StreamResponse:
    command = read_events(parse_json(body))
    streamed = _flag(request.query, "stream", False)
    if streamed and not isinstance(command, SendMessage):
        raise InvalidRequest("Only a message can be streamed.", param="stream")
    match command:
        case SendMessage():
            sent = session.send(command, follow=streamed)
            if streamed:
                keep_sent(request, sent)
                return await stream_message(request, session, sent, request.app[HARNESS].limits.ping_s)
            answer = to_wire(sent)
            if sent.waiting_for is None:
                del answer["waiting_for"]
            return _answer(answer, 202)
        case SubmitOutput():
            return _answer(to_wire(session.submit_all([command.data], ["data.call_id"])[0]), 202)
        case Interrupt():

            def keep(answer: Interrupted) -> None:
                keep_answer(request, _answer(to_wire(answer), 202))

            return _answer(to_wire(await session.interrupt(command, keep)), 202)
        case _:
            params = [f"events[{index}].data.call_id" for index in range(len(command))]
            results = session.submit_all([result.data for result in command], params)
            return _answer({"results": to_wire(results)}, 202)
