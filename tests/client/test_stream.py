"""
Following a session: reconnects, what is told again and what is not, gaps, and the end.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from agent_harness.client import EventStream
from agent_harness.errors import NotFound
from agent_harness.llm.base import ItemAdded, ItemDone, TextDelta
from agent_harness.llm.scripted import Step, call, say
from agent_harness.protocol.events import (
    OutputItemDone,
    ResponseCompleted,
    SessionDeleted,
    SessionGap,
    SessionStatus,
)
from agent_harness.protocol.events import (
    TextDelta as TextDeltaEvent,
)
from agent_harness.protocol.items import FunctionCall, FunctionCallOutput
from agent_harness.protocol.tolerant import AnyEvent, UnknownEvent
from tests.client.proxy import Proxy

WAIT_S = 5.0


async def read(events: EventStream, count: int) -> list[AnyEvent]:
    async with asyncio.timeout(WAIT_S):
        return [await anext(events) for _ in range(count)]


async def read_all(events: Any) -> list[AnyEvent]:
    async with asyncio.timeout(WAIT_S):
        return [event async for event in events]


async def read_until(events: Any, wanted: Callable[[AnyEvent], bool]) -> list[AnyEvent]:
    seen: list[AnyEvent] = []
    async with asyncio.timeout(WAIT_S):
        async for event in events:
            seen.append(event)
            if wanted(event):
                return seen
    raise AssertionError(seen)


def types(events: list[AnyEvent]) -> list[str]:
    return [event.type for event in events]


# Against the real server.


async def test_a_stream_begins_with_the_present_status_and_ends_with_the_session(serve: Any) -> None:
    served = await serve(say("hi"))
    session = await served.client.sessions.create()
    events = session.follow()
    [status] = await read(events, 1)
    assert isinstance(status, SessionStatus) and status.status == "idle" and events.seq == 0
    await session.run("hello")
    await session.update(metadata={"a": "b"})
    await served.client.sessions.delete(session.id)
    told = types(await read_all(events))
    assert told[-2:] == ["session.updated", "session.deleted"] and told.count("response.completed") == 1


async def test_a_number_resumes_behind_it(serve: Any) -> None:
    served = await serve(say("hi"))
    session = await served.client.sessions.create()
    await session.run("hello")
    newest = (await session.snapshot()).seq
    async with session.follow(after=newest - 2) as events:
        told = await read(events, 3)
        assert types(told) == ["session.status", "response.completed", "session.status"] and events.seq == newest


async def test_open_calls_are_announced_first_to_who_follows_from_now_on(serve: Any) -> None:
    served = await serve(call("plain", "{}", "c1") + call("plain", "{}", "c2"))
    session = await served.client.sessions.create()
    reply = session.send("go", tools=[{"type": "function", "name": "plain"}])
    await read_until(reply, lambda event: isinstance(event, SessionStatus) and event.status == "waiting")
    async with session.follow() as events:
        told = await read(events, 3)
    assert [event.item.call_id for event in told[1:]] == ["c1", "c2"] and all(event.replayed for event in told[1:])
    assert events.seq == (await session.snapshot()).seq


async def test_no_session_is_the_servers_not_found(serve: Any) -> None:
    served = await serve()
    session = await served.client.sessions.create()
    await served.client.sessions.delete(session.id)
    with pytest.raises(NotFound, match="no such session"):
        await read(session.follow(), 1)


async def test_a_session_deleted_while_no_connection_stood_is_not_found(serve: Any, connect: Any) -> None:
    served = await serve()
    async with Proxy(served.port) as proxy:
        session = await connect(proxy.url).sessions.create()
        events = session.follow(after=0)
        await read(events, 1)
        await served.client.sessions.delete(session.id)
        proxy.cut_all()
        with pytest.raises(NotFound):
            await read(events, 2)


async def test_the_end_of_the_server_ends_the_stream(serve: Any) -> None:
    served = await serve()
    session = await served.client.sessions.create()
    events = session.follow()
    await read(events, 1)
    await served.harness.aclose()
    assert await read_all(events) == []


async def test_leaving_by_dropping_the_stream_closes_its_connection(serve: Any, connect: Any) -> None:
    served = await serve(say("hi"))
    async with Proxy(served.port) as proxy:
        session = await connect(proxy.url).sessions.create()
        async for _ in session.follow():
            break
        async with asyncio.timeout(WAIT_S):
            await proxy.none_left.wait()


async def lose_events(session: Any, proxy: Proxy, cause: Callable[[], Awaitable[Any]]) -> None:
    """
    Let *cause* happen while nobody can connect.
    """
    proxy.closed = True
    proxy.cut_all()
    await cause()
    proxy.closed = False


async def test_events_that_are_kept_no_longer_show_as_a_gap(serve: Any, connect: Any) -> None:
    served = await serve(say("one"), say("two", "2", "3"), replay_events=4)
    async with Proxy(served.port) as proxy:
        session = await connect(proxy.url).sessions.create()
        events = session.follow(after=0)
        await read(events, 1)
        other = await served.client.sessions.get(session.id)
        await lose_events(session, proxy, lambda: other.run("hello"))
        gap, *rest = await read(events, 5)
        newest = (await other.snapshot()).seq
        assert gap == SessionGap(0, newest - 3) and events.seq == newest
        assert types(rest)[-2:] == ["response.completed", "session.status"]


@pytest.mark.parametrize("kept", [1, 2, 3, 6])
async def test_a_turn_that_ended_in_a_gap_ends_its_reply(serve: Any, connect: Any, kept: int) -> None:
    gate = asyncio.Event()
    held = Step((ItemAdded(0, "message"), TextDelta(0, "par"), gate, TextDelta(0, "tial"), ItemDone(0)))
    served = await serve(held, replay_events=kept)
    async with Proxy(served.port) as proxy:
        session = await connect(proxy.url).sessions.create()
        other = await served.client.sessions.get(session.id)
        reply = session.send("hi")
        await read_until(reply, lambda event: isinstance(event, TextDeltaEvent | SessionGap))

        async def end() -> None:
            gate.set()
            await read_until(
                other.follow(after=0), lambda event: isinstance(event, SessionStatus) and event.status == "idle"
            )

        await lose_events(session, proxy, end)
        told = await read_all(reply)
        assert types(told)[-1] == "response.completed" and types(told).count("response.completed") == 1
        result = await reply.result()
        assert (result.status, result.text, len(result.items)) == ("completed", "partial", 2)


async def test_calls_announced_in_a_gap_are_run_and_calls_closed_in_it_are_cancelled(serve: Any, connect: Any) -> None:
    begun, ended, ran = asyncio.Event(), asyncio.Event(), []

    async def first() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def second() -> str:
        ran.append(1)
        return "second ran"

    served = await serve(call("first", "{}", "c1"), call("second", "{}", "c2"), say("done"), replay_events=1)
    async with Proxy(served.port) as proxy:
        session = await connect(proxy.url).sessions.create()
        other = await served.client.sessions.get(session.id)
        reply = session.send("hi", tools=[first, second])
        waiting = lambda event: isinstance(event, SessionStatus) and event.status == "waiting"  # noqa: E731
        reading = asyncio.ensure_future(reply.result())
        async with asyncio.timeout(WAIT_S):
            await begun.wait()

        async def go_on() -> None:
            async with other.follow() as events:
                await other.submit("c1", "by another")
                await read_until(events, waiting)

        await lose_events(session, proxy, go_on)
        async with asyncio.timeout(WAIT_S):
            result = await reading
            await ended.wait()
    outputs = [item.output for item in result.items if isinstance(item, FunctionCallOutput)]
    assert outputs == ["by another", "second ran"] and ran == [1] and result.text == "done"


async def test_calls_of_the_turn_before_are_not_run_for_a_message_that_waits_behind_it(
    serve: Any, connect: Any
) -> None:
    ran: list[str] = []

    def work() -> str:
        ran.append("here")
        return "here"

    served = await serve(call("work", "{}", "c1"), say("one"), call("work", "{}", "c2"), say("two"), replay_events=1)
    async with Proxy(served.port) as proxy:
        session = await connect(proxy.url).sessions.create()
        other = await served.client.sessions.get(session.id)
        first = other.send("first", tools=[{"type": "function", "name": "work"}])
        await read_until(first, lambda event: isinstance(event, SessionStatus) and event.status == "waiting")
        second = session.send("second", tools=[work])
        await read(second, 1)
        await lose_events(session, proxy, lambda: queue_two_more(other))
        await read_until(second, lambda event: isinstance(event, SessionGap))
        async with asyncio.timeout(WAIT_S):
            await other.submit("c1", "by hand")
            result = await second.result()
    assert ran == ["here"] and result.text == "two"


async def queue_two_more(session: Any) -> None:
    for text in ("third", "fourth"):
        await read(session.send(text), 1)


async def test_a_reader_that_lags_is_resumed_with_a_gap_and_told_nothing_else(serve: Any) -> None:
    served = await serve(say("one", *["x" * 500_000] * 60), replay_events=10, backlog_events=10)
    session = await served.client.sessions.create()
    async with session.follow(after=0) as events:
        await read(events, 1)
        async with session.send("hello") as reply, asyncio.timeout(WAIT_S):
            await anext(reply)
            async with session.follow() as other:
                await read_until(other, lambda event: isinstance(event, SessionStatus) and event.status == "idle")
        told = await read_until(events, lambda event: isinstance(event, ResponseCompleted))
    assert types(told).count("session.gap") == 1 and "session.lagged" not in types(told)
    assert types(told)[-1] == "response.completed" and told[types(told).index("session.gap") - 1].type != "session.gap"


# Against a server that says what it is told to.


def frame(kind: str, number: int | None, **data: Any) -> bytes:
    head = f"event: {kind}\n" + (f"id: {number}\n" if number is not None else "")
    body = {"type": kind, **({"seq": number} if number is not None else {}), **data}
    return f"{head}data: {json.dumps(body)}\n\n".encode()


def status(seq: int, *open_calls: str, **more: Any) -> bytes:
    actions = [
        {"type": "function_call", "response_id": "r", "call_id": c, "name": "f", "arguments": "{}", "expires_at": None}
        for c in open_calls
    ]
    shown = {"status": "idle", "response_id": None, "required_actions": actions, "queued": [], "last_error": None}
    return frame("session.status", None, seq=seq, **shown, **more)


def announced(seq: int, call_id: str) -> bytes:
    item = {
        "id": f"fc_{call_id}",
        "type": "function_call",
        "status": "action_required",
        "call_id": call_id,
        "name": "f",
        "arguments": "{}",
        "created_at": 1,
        "response_id": "r",
    }
    return frame("response.output_item.done", None, seq=seq, response_id="r", output_index=0, item=item, replayed=True)


def delta(number: int, text: str = "x") -> bytes:
    return frame(
        "response.output_text.delta", number, response_id="r", item_id="m", output_index=0, content_index=0, delta=text
    )


DONE = b"data: [DONE]\n\n"


class Played:
    """
    A handler that plays one list of bytes a connection, and notes what number each came with.
    """

    def __init__(self, *connections: list[bytes]) -> None:
        self.connections = list(connections)
        self.resumed: list[str | None] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if not request.path.endswith("/stream"):
            return web.json_response({"id": "sess_1"})
        self.resumed.append(request.headers.get("Last-Event-ID"))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for chunk in self.connections.pop(0):
            await response.write(chunk)
        if request.transport is not None and self.connections:
            request.transport.close()
        return response


async def play(pretend: Any, played: Played, after: int | None = None) -> tuple[list[AnyEvent], EventStream]:
    client = await pretend(played.answer)
    session = await client.sessions.get("sess_1")
    events = session.follow(after)
    return await read_all(events), events


async def test_a_cut_in_the_middle_of_a_frame_resumes_before_it(pretend: Any) -> None:
    whole = delta(3, "three")
    played = Played([status(0), delta(1), delta(2), whole[: len(whole) // 2]], [status(3), whole, delta(4), DONE])
    told, events = await play(pretend, played)
    assert types(told) == ["session.status"] + ["response.output_text.delta"] * 4
    assert played.resumed == [None, "2"] and events.seq == 4


async def test_a_stream_without_a_number_resumes_from_its_first_frame(pretend: Any) -> None:
    played = Played([status(7)], [status(8), delta(8), DONE])
    told, _ = await play(pretend, played)
    assert types(told) == ["session.status", "response.output_text.delta"] and played.resumed == [None, "7"]


async def test_a_number_is_kept_if_the_first_connection_told_nothing(pretend: Any) -> None:
    played = Played([], [status(9)[:20]], [status(9)], [status(9), delta(6), DONE])
    told, _ = await play(pretend, played, after=5)
    assert types(told) == ["session.status", "response.output_text.delta"] and played.resumed == ["5"] * 4


async def test_a_cut_between_announcements_loses_and_repeats_none(pretend: Any) -> None:
    opening = status(4, "c1", "c2")
    played = Played(
        [opening, announced(4, "c1")],
        [opening, announced(4, "c1"), announced(4, "c2")],
        [status(5), delta(5), DONE],
    )
    told, _ = await play(pretend, played)
    calls = [
        event.item.call_id
        for event in told
        if isinstance(event, OutputItemDone) and isinstance(event.item, FunctionCall)
    ]
    assert (
        calls == ["c1", "c2"]
        and types(told).count("session.status") == 1
        and types(told)[-1] == "response.output_text.delta"
    )
    assert played.resumed == [None, None, "4"]


async def test_what_was_told_is_not_told_again_by_a_server_that_repeats_itself(pretend: Any) -> None:
    played = Played([status(0), delta(1), delta(2), delta(2)], [status(3), delta(1), delta(2), delta(3), DONE])
    told, _ = await play(pretend, played)
    assert types(told).count("response.output_text.delta") == 3


async def test_session_lagged_is_a_reason_to_connect_again_and_no_event(pretend: Any) -> None:
    lagged = frame("session.lagged", None, seq=9)
    played = Played([status(0), delta(1), lagged], [status(9), delta(2), DONE])
    told, _ = await play(pretend, played)
    assert "session.lagged" not in types(told) and played.resumed == [None, "1"]


@pytest.mark.parametrize("first, resumed", [(6, "5"), (1, "0"), (None, "9")])
async def test_after_a_gap_numbers_go_on_where_it_says(pretend: Any, first: int | None, resumed: str) -> None:
    gap = frame("session.gap", None, seq=9, after="3", first_seq=first)
    following = [delta(number) for number in range(first or 10, 12)]
    played = Played([status(9), gap], [status(9), *following, DONE])
    told, _ = await play(pretend, played, after=3)
    assert types(told) == ["session.status", "session.gap"] + ["response.output_text.delta"] * len(following)
    assert played.resumed == ["3", resumed]


async def test_events_nobody_knows_are_unknown_events_and_count(pretend: Any) -> None:
    new = frame("session.renamed", 1, name="x")
    broken = frame("response.output_text.delta", 2, response_id="r")
    unnumbered = frame("session.hint", None, seq=2, text="hello")
    no_json = b"event: noise\ndata: what?\n\n"
    played = Played([status(0), new, broken, unnumbered, no_json], [status(3), delta(3), DONE])
    told, events = await play(pretend, played)
    assert types(told)[1:] == [
        "session.renamed",
        "response.output_text.delta",
        "session.hint",
        "noise",
        "response.output_text.delta",
    ]
    assert all(isinstance(event, UnknownEvent) for event in told[1:5]) and told[1].data["name"] == "x"
    assert played.resumed == [None, "2"] and events.seq == 3


async def test_the_end_of_the_session_is_an_event_and_the_end(pretend: Any) -> None:
    played = Played([status(0), frame("session.deleted", 1, id="sess_1"), DONE])
    told, events = await play(pretend, played)
    assert told[1:] == [SessionDeleted("sess_1")] and await read_all(events) == []


async def test_frames_of_many_megabytes_pass(pretend: Any) -> None:
    text = "y" * 20_000_000
    told, _ = await play(pretend, Played([status(0), delta(1, text), DONE]))
    assert isinstance(told[1], TextDeltaEvent) and told[1].delta == text


async def test_silence_counts_as_a_broken_connection(pretend: Any) -> None:
    played = Played([status(0), delta(1)], [status(1), delta(2), DONE])
    never = asyncio.Event()
    calls = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal calls
        calls += 1
        if calls != 2:
            return await played.answer(request)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for chunk in played.connections.pop(0):
            await response.write(chunk)
        async with asyncio.timeout(WAIT_S):
            await never.wait()
        return response

    client = await pretend(handler, idle_timeout_s=0.5)
    events = (await client.sessions.get("sess_1")).follow()
    told = await read_all(events)
    never.set()
    assert types(told).count("response.output_text.delta") == 2
