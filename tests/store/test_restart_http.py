"""
What clients see over HTTP when a server with a state is started again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient

from agent_harness.config import Limits
from agent_harness.engine.harness import Harness
from agent_harness.llm.scripted import ScriptedModel, call, say
from agent_harness.server import init_app, make_app
from agent_harness.server.idempotency import KEPT_SESSION_ANSWERS
from agent_harness.store.base import DropAnswer, PutAnswer, Store
from agent_harness.store.memory import MemoryStore
from agent_harness.testing.app_server import AppServer
from tests.store.stores import GatedStore
from tests.support import TOOL, WAIT_S, Api, Stream, user

Serve = Callable[..., Awaitable[Api]]


@asynccontextmanager
async def serving(store: Store, *steps: Any) -> AsyncIterator[Api]:
    """
    A server with the state in *store*; stopped at the end.
    """
    model = ScriptedModel(steps)
    harness = Harness({"default": model}, limits=Limits(), store=store)
    client: TestClient[web.Request, web.Application] = TestClient(AppServer(make_app(harness)))
    await client.start_server()
    try:
        yield Api(client, model)
    finally:
        await client.close()


def keyed(key: str) -> dict[str, Any]:
    return {"headers": {"Idempotency-Key": key}}


async def test_answers_to_keys_come_back_with_what_they_caused() -> None:
    store = MemoryStore()
    async with serving(store, say("hi")) as api:
        made = await api.ask("POST", "/v1/sessions", json={}, **keyed("a"))
        path = f"/v1/sessions/{made.body['id']}"
        sent = await api.ask("POST", f"{path}/events", json=user("hello"), **keyed("b"))
        forked = await api.ask("POST", f"{path}/fork", json={}, **keyed("c"))
        stopped = await api.ask("POST", f"{path}/events", json={"type": "interrupt"}, **keyed("d"))
    async with serving(store) as api:
        for target, body, key, before in (
            ("/v1/sessions", {}, "a", made),
            (f"{path}/events", user("hello"), "b", sent),
            (f"{path}/fork", {}, "c", forked),
            (f"{path}/events", {"type": "interrupt"}, "d", stopped),
        ):
            again = await api.ask("POST", target, json=body, **keyed(key))
            assert (again.status, again.raw) == (before.status, before.raw)
            assert again.headers["idempotency-replayed"] == "true"
        assert len((await api.get("/v1/sessions"))["data"]) == 2
        await api.refused(
            "POST", f"{path}/events", json=user("other"), status=409, code="idempotency_conflict",
            param="Idempotency-Key", **keyed("b"),
        )  # fmt: skip


async def test_a_repeated_stream_of_a_turn_that_ended_before_the_restart_ends() -> None:
    store = MemoryStore()
    async with serving(store, say("hi")) as api:
        path = f"/v1/sessions/{(await api.create())['id']}"
        first = await api.client.post(f"{path}/events?stream=true", json=user("hello"), **keyed("a"))
        frames = await Stream(first).rest()
        response_id = frames[0].data["response_id"]
    async with serving(store) as api:
        again = await api.client.post(f"{path}/events?stream=true", json=user("hello"), **keyed("a"))
        frames = await Stream(again).rest()
        assert frames[0].data["response_id"] == response_id and frames[1].event == "session.gap"
        assert frames[-1].data == "[DONE]"
        assert len((await api.get(f"{path}/responses"))["data"]) == 1


async def test_a_repeated_stream_of_a_turn_that_waits_goes_on_after_the_restart() -> None:
    store = MemoryStore()
    async with serving(store, call("look_up", '{"widget_id": 1}', "c1")) as api:
        path = f"/v1/sessions/{(await api.create())['id']}"
        body = user("hello", tools=[TOOL])
        first = await api.client.post(f"{path}/events?stream=true", json=body, **keyed("a"))
        stream = Stream(first)
        await stream.until_status("waiting")
        number = stream.frames[-1].seq
        stream.close()
    async with serving(store, say("done")) as api:
        again = await api.client.post(f"{path}/events?stream=true", json=body, **keyed("a"))
        stream = Stream(again)
        assert (await stream.next()).data["status"] == "waiting"  # type: ignore[union-attr]
        result = {"type": "function_call_output", "data": {"call_id": "c1", "output": "x"}}
        answer = await api.ask("POST", f"{path}/events", json=result)
        assert answer.status == 202 and answer.body["seq"] > number
        frames = await stream.rest()
        assert [frame.event for frame in frames[-3:-1]] == ["response.completed", "session.status"]
        gap = Stream(await api.client.get(f"{path}/stream?after={number}"))
        await gap.next()
        assert (await gap.next()).event == "session.gap"  # type: ignore[union-attr]
        gap.close()


async def test_no_answer_is_sent_before_what_it_tells_is_written() -> None:
    store = GatedStore()
    async with serving(store, say("hi")) as api:
        path = f"/v1/sessions/{(await api.create())['id']}"
        store.shut()
        asked: list[asyncio.Task[Any]] = [asyncio.create_task(api.ask("POST", f"{path}/events", json=user("hello")))]
        while not (await api.get("/health"))["running_turns"]:
            pass
        asked += [
            asyncio.create_task(api.ask("GET", path)),
            asyncio.create_task(api.ask("GET", f"{path}/items")),
            asyncio.create_task(api.ask("POST", f"{path}/events", json={"type": "nonsense"})),
            asyncio.create_task(api.client.get(f"{path}/stream")),
        ]
        # Answered without the store, and behind the others on the wire.
        for _ in range(5):
            assert (await api.ask("GET", "/health")).status == 200
        assert not any(task.done() for task in asked)
        store.open()
        async with asyncio.timeout(WAIT_S):
            answers = await asyncio.gather(*asked)
        assert [answer.status for answer in answers] == [202, 200, 200, 400, 200]
        answers[-1].close()


async def test_a_disk_that_fails_is_answered_500_and_then_503(caplog: pytest.LogCaptureFixture) -> None:
    store = GatedStore()
    async with serving(store, say("hi")) as api:
        path = f"/v1/sessions/{(await api.create())['id']}"
        stream = Stream(await api.client.get(f"{path}/stream"))
        await stream.next()
        store.broken = True
        await api.refused("POST", f"{path}/events", json=user("hello"), status=500, code="internal_error")
        assert [frame.event for frame in await stream.rest()] == ["session.lagged"]
        for method, target, body in (("POST", f"{path}/events", user("hello")), ("POST", "/v1/sessions", {})):
            await api.refused(method, target, json=body, status=500, code="internal_error")
        await api.refused("GET", path, status=500, code="internal_error")
        assert (await api.get("/health"))["status"] == "shutting_down"
    assert "No space left" in caplog.text
    # Of the message nothing was written, and nobody was told otherwise.
    store.broken = False
    async with serving(store) as api:
        assert (await api.get(path))["items"] == []


async def test_answers_over_the_bound_are_dropped_from_the_store_too() -> None:
    store = GatedStore()
    async with serving(store) as api:
        path = f"/v1/sessions/{(await api.create())['id']}"
        for number in range(KEPT_SESSION_ANSWERS + 3):
            await api.ask("POST", f"{path}/events", json={"type": "interrupt"}, **keyed(str(number)))
    changes = [change for changes in store.lists for change in changes]
    assert len([change for change in changes if isinstance(change, PutAnswer)]) == KEPT_SESSION_ANSWERS + 3
    assert [change.name[-1] for change in changes if isinstance(change, DropAnswer)] == ["0", "1", "2"]
    assert len(list(store.load_answers())) == KEPT_SESSION_ANSWERS


async def test_an_application_around_it_takes_up_the_sessions_when_it_starts() -> None:
    store = MemoryStore()
    async with serving(store) as api:
        session_id = (await api.create())["id"]
    app = init_app(web.Application(), Harness({"default": ScriptedModel()}, store=store))
    async with TestClient(AppServer(app)) as client:
        answer = await client.get(f"/agents-backend/v1/sessions/{session_id}")
        assert answer.status == 200
