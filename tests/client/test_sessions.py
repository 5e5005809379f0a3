"""
Sessions at the server: made, found, listed, changed, forked, deleted.
"""

from typing import Any

import pytest

from agent_harness.client import Session
from agent_harness.errors import InvalidRequest, NotFound, RateLimited
from agent_harness.llm.scripted import call, say
from agent_harness.protocol.agents import Agent
from agent_harness.protocol.items import FunctionCallOutput, Message, OutputText
from agent_harness.protocol.pages import Snapshot
from agent_harness.protocol.tools import NamedChoice, Tool


def look_up(widget_id: int) -> str:
    """Look up a widget."""
    return f"widget {widget_id}"


async def test_a_session_is_made_of_an_agent_metadata_and_a_past(serve: Any) -> None:
    served = await serve(say("ok"))
    past = [
        {"type": "message", "role": "user", "content": "hello"},
        {"type": "message", "role": "assistant", "content": "hi"},
    ]
    agent = {"name": "a", "tools": [look_up], "tool_choice": {"type": "function", "name": "look_up"}}
    session = await served.client.sessions.create(agent=agent, metadata={"k": "v"}, items=past)
    snapshot = await session.snapshot()
    assert isinstance(session, Session) and isinstance(snapshot, Snapshot) and snapshot.id == session.id
    assert (snapshot.status, snapshot.agent.name, dict(snapshot.metadata)) == ("idle", "a", {"k": "v"})
    assert snapshot.agent.tools[0].name == "look_up" and snapshot.agent.tools[0].description == "Look up a widget."
    assert snapshot.agent.tool_choice == NamedChoice("look_up")
    assert isinstance(snapshot.items, tuple) and [item.role for item in snapshot.items] == ["user", "assistant"]
    assert snapshot.items[1].content == (OutputText("hi"),)
    assert (await session.snapshot(include_items=False)).items is None


async def test_an_agent_can_be_a_value(serve: Any) -> None:
    served = await serve()
    agent = Agent(model="m", tools=(Tool(name="t", timeout_s=2.0),), tool_timeout_s=None, max_model_calls=3)
    session = await served.client.sessions.create(agent=agent)
    assert (await session.snapshot()).agent == agent


async def test_an_agent_that_the_server_does_not_know_is_not_found(serve: Any) -> None:
    served = await serve()
    with pytest.raises(NotFound, match="nobody") as caught:
        await served.client.sessions.create(agent_id="nobody")
    assert caught.value.code == "unknown_agent"


async def test_the_items_of_one_session_can_begin_another(serve: Any) -> None:
    served = await serve(call("look_up", '{"widget_id": 1}', "c1"), say("ok"))
    first = await served.client.sessions.create()
    await first.run("go", tools=[look_up])
    items = [item async for item in served.client.sessions.items(first.id)]
    second = await served.client.sessions.create(items=items)
    copied = (await second.snapshot()).items or ()
    assert [item.type for item in copied] == [item.type for item in items]
    assert isinstance(copied[2], FunctionCallOutput) and copied[2].output == "widget 1"


async def test_get_finds_a_session_or_raises(serve: Any) -> None:
    served = await serve()
    session = await served.client.sessions.create()
    assert (await served.client.sessions.get(session.id)).id == session.id
    for unknown in ("sess_none", "a/b?c=d#e", "%2e%2e"):
        with pytest.raises(NotFound):
            await served.client.sessions.get(unknown)


@pytest.mark.parametrize("size", [1, 2, 5, 100])
async def test_all_sessions_are_listed_page_by_page(serve: Any, size: int) -> None:
    served = await serve()
    made = [(await served.client.sessions.create()).id for _ in range(5)]
    listed = [snapshot async for snapshot in served.client.sessions.list(page_size=size)]
    assert [snapshot.id for snapshot in listed] == made[::-1] and listed[0].items is None
    assert [snapshot.id async for snapshot in served.client.sessions.list(order="asc", page_size=size)] == made


async def test_an_empty_list_ends_at_once_and_a_bad_page_is_refused(serve: Any) -> None:
    served = await serve()
    assert [snapshot async for snapshot in served.client.sessions.list()] == []
    with pytest.raises(InvalidRequest) as caught:
        await anext(served.client.sessions.list(page_size=0))
    assert caught.value.param == "limit"


async def test_all_items_are_listed_page_by_page(serve: Any) -> None:
    served = await serve(say("one"), say("two"))
    session = await served.client.sessions.create()
    for text in ("a", "b"):
        await session.run(text)
    items = [item async for item in served.client.sessions.items(session.id, page_size=1)]
    backwards = [item async for item in served.client.sessions.items(session.id, order="desc", page_size=3)]
    assert tuple(items) == (await session.snapshot()).items and backwards == items[::-1] and len(items) == 4


async def test_an_update_changes_agent_and_metadata_and_null_takes_away(serve: Any) -> None:
    served = await serve()
    session = await served.client.sessions.create(agent={"model": "m"}, metadata={"a": "1", "b": "2"})
    snapshot = await session.update(agent={"model": None, "tools": [look_up]}, metadata={"a": None, "c": "3"})
    assert snapshot.agent.model is None and snapshot.agent.tools[0].name == "look_up"
    assert dict(snapshot.metadata) == {"b": "2", "c": "3"}


async def test_a_deleted_session_is_gone(serve: Any) -> None:
    served = await serve()
    session = await served.client.sessions.create()
    await served.client.sessions.delete(session.id)
    for again in (served.client.sessions.delete(session.id), session.snapshot(), session.interrupt()):
        with pytest.raises(NotFound):
            await again


async def test_a_fork_has_the_items_up_to_the_one_named(serve: Any) -> None:
    served = await serve(say("one"), say("two"), say("three"))
    session = await served.client.sessions.create(metadata={"a": "b"})
    first = await session.run("a")
    await session.run("b")
    whole = await served.client.sessions.fork(session.id)
    part = await served.client.sessions.fork(session.id, up_to_item_id=first.items[-1].id)
    texts = [
        [item.content[0].text for item in (await fork.snapshot()).items or () if isinstance(item, Message)]
        for fork in (whole, part)
    ]
    assert texts == [["a", "one", "b", "two"], ["a", "one"]]
    assert (await part.run("c")).text == "three" and len((await session.snapshot()).items or ()) == 4
    with pytest.raises(NotFound) as caught:
        await served.client.sessions.fork(session.id, up_to_item_id="msg_none")
    assert caught.value.code == "unknown_item"


async def test_a_full_server_refuses_at_once(serve: Any) -> None:
    served = await serve(sessions=1)
    await served.client.sessions.create()
    with pytest.raises(RateLimited) as caught:
        await served.client.sessions.create()
    assert caught.value.code == "too_many_sessions"
