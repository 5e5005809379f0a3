"""
Requests that are tried again, the bounds of that, and what a client leaves behind: nothing.
"""

import asyncio
import gc
import os
import warnings
from typing import Any

import pytest
import uvloop
from aiohttp import web

from agent_harness.client import Client
from agent_harness.engine.harness import Harness
from agent_harness.errors import InternalError, InvalidRequest, RateLimited, Unavailable
from agent_harness.llm.scripted import ScriptedModel, call, say
from agent_harness.protocol.events import SessionStatus
from agent_harness.server import make_app

WAIT_S = 5.0


class Answers:
    """
    Answers in turn; the last one for ever. ``asked`` is what was asked.
    """

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path, dict(request.headers), await request.read()))
        status, body, headers = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if status is None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return web.json_response(body, status=status, headers=headers)


def refused(status: int, code: str = "x", **headers: str) -> Any:
    return status, {"error": {"code": code, "message": "No.", "param": None}}, headers


BROKEN = (None, None, {})
CREATED = (201, {"id": "sess_1"}, {})


@pytest.mark.parametrize(
    "failures",
    [
        [BROKEN] * 3,
        [refused(503, "shutting_down"), refused(502), refused(504)],
        [refused(429, "queue_full", **{"Retry-After": "0.01"})],
        [refused(503, "shutting_down", **{"Retry-After": "0.02"}), BROKEN],
    ],
)
async def test_what_may_pass_is_tried_again_with_the_same_key_and_body(pretend: Any, failures: list[Any]) -> None:
    answers = Answers(*failures, CREATED)
    client = await pretend(answers.answer)
    async with asyncio.timeout(WAIT_S):
        session = await client.sessions.create(metadata={"a": "b"})
    assert session.id == "sess_1" and len(answers.asked) == len(failures) + 1
    assert len({(headers["Idempotency-Key"], body) for _, _, headers, body in answers.asked}) == 1


async def test_each_command_has_a_key_of_its_own(pretend: Any) -> None:
    answers = Answers(CREATED)
    client = await pretend(answers.answer)
    for _ in range(3):
        await client.sessions.create()
    assert len({headers["Idempotency-Key"] for _, _, headers, _ in answers.asked}) == 3


@pytest.mark.parametrize(
    "answer, raised",
    [
        (refused(429, "queue_full"), RateLimited),
        (refused(400, "invalid_value"), InvalidRequest),
        (refused(500, "internal_error"), InternalError),
        ((302, {}, {"Location": "/elsewhere"}), InvalidRequest),
        (refused(429, "queue_full", **{"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}), RateLimited),
    ],
)
async def test_what_will_not_pass_is_raised_at_once(pretend: Any, answer: Any, raised: type[Exception]) -> None:
    answers = Answers(answer)
    client = await pretend(answers.answer)
    with pytest.raises(raised):
        await client.sessions.create()
    assert len(answers.asked) == 1


async def test_patience_has_an_end_and_then_the_servers_word_counts(pretend: Any) -> None:
    answers = Answers(refused(503, "shutting_down"))
    client = await pretend(answers.answer, patience_s=0.05)
    with pytest.raises(Unavailable):
        await client.sessions.create()
    assert len(answers.asked) > 1


async def test_a_wait_longer_than_patience_is_not_begun(pretend: Any) -> None:
    answers = Answers(refused(429, "queue_full", **{"Retry-After": "3600"}))
    client = await pretend(answers.answer)
    with pytest.raises(RateLimited):
        await client.sessions.create()
    assert len(answers.asked) == 1


async def test_a_server_that_is_not_there_is_a_connection_error_that_names_it(
    connect: Any, unused_tcp_port: int
) -> None:
    client = connect(f"http://127.0.0.1:{unused_tcp_port}", patience_s=0.05)
    with pytest.raises(ConnectionError, match=f"http://127.0.0.1:{unused_tcp_port} cannot be reached"):
        await client.sessions.create()


async def test_a_slow_answer_is_tried_again(pretend: Any) -> None:
    answers, first, gate = Answers(CREATED), True, asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal first
        if first:
            first = False
            await gate.wait()
        return await answers.answer(request)

    client = await pretend(answer, timeout_s=0.1)
    async with asyncio.timeout(WAIT_S):
        assert (await client.sessions.create()).id == "sess_1"
    gate.set()


async def test_what_is_no_such_server_is_said(pretend: Any) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>welcome</html>")

    client = await pretend(answer)
    with pytest.raises(InternalError, match="no agent-harness server: HTTP 200 without JSON: <html>"):
        await client.sessions.create()


@pytest.mark.parametrize("url", ["127.0.0.1:8787", "ftp://host", "http://", "", "localhost"])
def test_a_base_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="base_url begins with"):
        Client(url)


@pytest.mark.parametrize("prefix", ["", "/agents-backend"])
@pytest.mark.parametrize("end", ["/v1", "/v1/"])
def test_a_base_url_that_ends_in_v1_is_refused_with_the_one_meant(prefix: str, end: str) -> None:
    url = f"http://127.0.0.1:8787{prefix}"
    with pytest.raises(ValueError, match=f"leave it out, '{url}'$"):
        Client(url + end)


async def test_the_key_and_the_prefix_stand_in_each_request(pretend: Any) -> None:
    answers = Answers(CREATED)
    client = await pretend(answers.answer, api_key="secret")
    prefixed = Client(f"{client._connection.base_url}/agents-backend/", api_key="secret")
    async with prefixed:
        await prefixed.sessions.create()
    _, path, headers, _ = answers.asked[0]
    assert path == "/agents-backend/v1/sessions" and headers["Authorization"] == "Bearer secret"
    assert "secret" not in repr(prefixed)


async def test_what_cannot_be_json_is_a_value_error(serve: Any) -> None:
    served = await serve()
    with pytest.raises(ValueError, match="cannot be sent as JSON"):
        await served.client.sessions.create(metadata={"a": "\ud800"})


async def test_the_servers_health_can_be_asked(serve: Any) -> None:
    served = await serve()
    assert (await served.client.health())["status"] == "ok"


def sockets() -> set[str]:
    links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    found = set()
    for link in links:
        try:
            target = os.readlink(link)
        except FileNotFoundError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


async def play_everything(url: str) -> None:
    """
    A turn to its end, one that is left, one that is awaited by another task, a follower, an interrupted function.
    """
    begun = asyncio.Event()

    async def sleep_long() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with Client(url) as client:
        session = await client.sessions.create()
        assert (await session.run("hi")).text == "one"
        following = client.sessions
        events = (await following.get(session.id)).follow(after=0)
        await anext(events)
        waiting = asyncio.ensure_future(read_rest(events))
        reply = session.send("go", tools=[sleep_long])
        async for event in reply:
            if isinstance(event, SessionStatus) and event.status == "waiting":
                break
        await begun.wait()
        stuck = asyncio.ensure_future(reply.result())
        await asyncio.sleep(0)
    for task in (waiting, stuck):
        with pytest.raises(RuntimeError, match="client is closed"):
            await task


async def read_rest(events: Any) -> None:
    async for _ in events:
        pass


async def leave_nothing() -> None:
    model = ScriptedModel([say("one"), call("sleep_long", "{}", "c1")])
    runner = web.AppRunner(make_app(Harness({"default": model})), shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        async with asyncio.timeout(WAIT_S):
            await play_everything(f"http://{host}:{port}")
            ours = [str(task.get_coro()) for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            assert not [name for name in ours if "client" in name or "sleep_long" in name or "Functions" in name]
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_closed_client_leaves_neither_task_nor_socket(new_loop: Any) -> None:
    before = sockets()
    for _ in range(2):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(leave_nothing())
    gc.collect()
    assert sockets() <= before


async def test_a_closed_client_says_so_and_can_be_closed_again(serve: Any) -> None:
    served = await serve()
    session = await served.client.sessions.create()
    await served.client.aclose()
    await served.client.aclose()
    for use in (session.snapshot(), anext(session.follow()), session.run("hi"), served.client.health()):
        with pytest.raises(RuntimeError, match="client is closed"):
            await use


async def test_closing_wakes_who_waits_for_the_next_try(pretend: Any) -> None:
    asked = asyncio.Event()
    answers = Answers(refused(503, "shutting_down", **{"Retry-After": "60"}))

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.set()
        return await answers.answer(request)

    client = await pretend(answer, patience_s=600)
    asking = asyncio.ensure_future(client.sessions.create())
    async with asyncio.timeout(WAIT_S):
        await asked.wait()
        await client.aclose()
        with pytest.raises(RuntimeError, match="client is closed"):
            await asking


async def test_a_client_that_was_never_closed_warns(serve: Any) -> None:
    served = await serve()
    client = Client(served.url)
    await client.health()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: None)  # aiohttp says the same to the loop
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del client
        gc.collect()
        said = [(warning.category, str(warning.message)) for warning in caught]
        # A warning keeps what it is about; aiohttp has some of its own.
        caught.clear()
        gc.collect()
        caught.clear()
    message = f"The client of {served.url} was never closed; await its aclose()."
    assert (ResourceWarning, message) in said and {category for category, _ in said} == {ResourceWarning}


async def test_a_client_that_was_never_used_needs_no_closing() -> None:
    client = Client("http://127.0.0.1:1")
    del client
    gc.collect()
