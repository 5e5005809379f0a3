"""
Clients that leave, under servers that let the handlers of such clients go on, as ours does, and under those that cancel
them, as an embedding program's may.
"""

import asyncio
import logging
from typing import Any

import pytest

from agent_harness.config import Limits
from agent_harness.engine.harness import Harness
from agent_harness.llm.base import ItemAdded, ItemDone, TextDelta
from agent_harness.llm.scripted import ScriptedModel, Step, call, say
from agent_harness.server import make_app
from agent_harness.testing.app_server import AppServer
from tests.sockets import get, post, receive, reset, see_gone
from tests.store.stores import GatedStore
from tests.support import TOOL, WAIT_S, Api, Talk, types, user

NEVER_S = 1000.0

both = pytest.mark.parametrize("cancels", [False, True], ids=["handlers go on", "handlers are cancelled"])


def count_handlers() -> int:
    """
    How many tasks there are that serve a connection.
    """
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return names.count("RequestHandler.start")


@both
async def test_followers_that_leave_in_silence_are_gone_and_the_turn_goes_on(
    aiohttp_client: Any, caplog: pytest.LogCaptureFixture, cancels: bool
) -> None:
    """
    B119: one of the session, one of a message; within a ping, or at once where handlers are cancelled.
    """
    gate = asyncio.Event()
    step = Step((ItemAdded(0, "message"), TextDelta(0, "par"), gate, TextDelta(0, "tial"), ItemDone(0)))
    model = ScriptedModel([step])
    harness = Harness({"default": model}, limits=Limits(ping_s=NEVER_S if cancels else 0.02))
    server = AppServer(make_app(harness), handler_cancellation=cancels)
    api = Api(await aiohttp_client(server), model)
    talk = Talk(api, (await api.create())["id"])
    handlers = count_handlers()
    posting = await post(api.client.port, f"{talk.path}/events?stream=true", user("hello"))
    await receive(posting, b"output_text.delta")
    following = await get(api.client.port, f"{talk.path}/stream")
    await receive(following, b"session.status")
    feed = harness.get(talk.id).feed
    assert (feed.followers, count_handlers()) == (2, handlers + 2)
    for sock in (posting, following):
        reset(sock)
    async with asyncio.timeout(WAIT_S):
        while feed.followers or count_handlers() > handlers:
            await api.get("/health")
    gate.set()
    told = types(await (await talk.follow(after=0, until="idle")).rest())
    assert told[-3:] == ["response.completed", "session.status idle", "[DONE]"]
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@both
async def test_a_result_whose_client_leaves_before_its_answer_is_in_force(
    aiohttp_client: Any, caplog: pytest.LogCaptureFixture, cancels: bool
) -> None:
    """
    It leaves while its answer waits for the disk. The turn goes on with the result, and a repeat gets the first answer.
    """
    store = GatedStore()
    model = ScriptedModel([call("look_up", '{"widget_id": 1}', "c1"), say("done")])
    harness = Harness({"default": model}, store=store)
    server = AppServer(make_app(harness), handler_cancellation=cancels)
    api = Api(await aiohttp_client(server), model)
    talk = await api.open()
    await talk.park()
    session = harness.get(talk.id)
    result = {"type": "function_call_output", "data": {"call_id": "c1", "output": "teal"}}
    store.shut()
    leaving = await post(api.client.port, f"{talk.path}/events", result, "Idempotency-Key: one")
    async with asyncio.timeout(WAIT_S):
        while session.transcript.open_calls:
            await api.get("/health")
    port = leaving.getsockname()[1]
    reset(leaving)
    await see_gone(server, port)
    store.open()
    await talk.stream.until_status("idle")
    repeat = await api.ask("POST", f"{talk.path}/events", json=result, headers={"Idempotency-Key": "one"})
    assert (repeat.status, repeat.headers["idempotency-replayed"]) == (202, "true")
    assert [item["output"] for item in await talk.items() if item["type"] == "function_call_output"] == ["teal"]
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@both
async def test_a_message_whose_client_leaves_before_its_answer_is_in_force(
    aiohttp_client: Any, caplog: pytest.LogCaptureFixture, cancels: bool
) -> None:
    """
    The same, with a model that is asked only then.
    """
    store = GatedStore()
    model = ScriptedModel([say("done")])
    harness = Harness({"default": model}, store=store)
    server = AppServer(make_app(harness), handler_cancellation=cancels)
    api = Api(await aiohttp_client(server), model)
    talk = await api.open()
    store.shut()
    leaving = await post(api.client.port, f"{talk.path}/events", user("hello", tools=[TOOL]))
    async with asyncio.timeout(WAIT_S):
        while not harness.running_turns:
            await api.get("/health")
    port = leaving.getsockname()[1]
    reset(leaving)
    await see_gone(server, port)
    assert model.requests == []
    store.open()
    told = types(await talk.stream.until_status("idle"))
    assert "response.completed" in told and len(model.requests) == 1
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
