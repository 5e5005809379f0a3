"""
PATCH and DELETE.
"""

import asyncio
import json

import pytest

from agent_harness.llm.base import ItemAdded, ItemDone, TextDelta
from agent_harness.llm.scripted import Step, call, say
from tests.support import DONE, TOOL, Talk, types


def held(gate: asyncio.Event) -> Step:
    """
    An answer that stops in the middle of its text.
    """
    return Step((ItemAdded(0, "message"), TextDelta(0, "par"), gate, TextDelta(0, "tial"), ItemDone(0)))


async def patch(talk: Talk, **body):
    answer = await talk.api.ask("PATCH", talk.path, json=body)
    assert answer.status == 200, answer.body
    return answer.body


async def test_patch_merges_what_it_names_and_leaves_the_rest(serve):
    api = await serve()
    agent = {"name": "clerk", "instructions": "Be brief.", "temperature": 0.5, "tools": [TOOL], "max_model_calls": 7}
    talk = await api.open(agent=agent, metadata={"a": "1", "b": "2"})
    before = await talk.snapshot()
    after = await patch(talk, agent={"instructions": "Be long."}, metadata={"b": "3", "c": "4"})
    assert after["agent"] == before["agent"] | {"instructions": "Be long."}
    assert after["metadata"] == {"a": "1", "b": "3", "c": "4"}
    assert after == await talk.snapshot() and after["seq"] == before["seq"] + 1


async def test_patch_with_null_brings_the_default_back(serve):
    api = await serve()
    agent = {"name": "clerk", "temperature": 0.5, "tools": [TOOL], "max_model_calls": 7, "tool_choice": "none"}
    talk = await api.open(agent=agent, metadata={"a": "1", "b": "2"})
    after = await patch(talk, agent=dict.fromkeys(agent), metadata={"a": None, "never": None})
    assert after["agent"] == (await api.create())["agent"]
    assert after["metadata"] == {"b": "2"}


async def test_patch_publishes_agent_and_metadata_whole(serve):
    api = await serve()
    talk = await api.open(agent={"name": "clerk"}, metadata={"a": "1"})
    after = await patch(talk, metadata={"b": "2"})
    (frame,) = await talk.stream.until("session.updated")
    assert frame.data == {
        "type": "session.updated",
        "seq": 1,
        "agent": after["agent"],
        "metadata": {"a": "1", "b": "2"},
    }
    assert frame.id == 1


async def test_patch_while_a_call_waits_is_in_force_from_the_next_model_call_and_the_call_stays_answerable(serve):
    api = await serve(call("look_up", '{"widget_id": 1}', "c1"), say("done"))
    talk = await api.open(agent={"tools": [TOOL], "instructions": "old", "model": "m-1"})
    await talk.park(tools=None)
    await patch(talk, agent={"instructions": "new", "model": "m-2", "tools": None, "temperature": 0})
    assert (await talk.snapshot())["status"] == "waiting"
    assert (await talk.result("c1", "blue"))["accepted"] is True
    await talk.stream.until_status("idle")
    first, second = api.model.requests
    assert (first.instructions, first.model, len(first.tools)) == ("old", "m-1", 1)
    assert (second.instructions, second.model, second.tools, second.temperature) == ("new", "m-2", (), 0)


async def test_patch_during_an_answer_does_not_touch_that_answer(serve):
    gate = asyncio.Event()
    api = await serve(held(gate), say("second"))
    talk = await api.open(agent={"instructions": "old"})
    await talk.send()
    await talk.stream.until("response.output_text.delta")
    await patch(talk, agent={"instructions": "new"})
    gate.set()
    frames = await talk.stream.until_status("idle")
    assert "session.updated" in types(frames)
    await talk.turn()
    assert [request.instructions for request in api.model.requests] == ["old", "new"]


async def test_an_empty_patch_changes_nothing(serve):
    api = await serve()
    talk = await api.open(agent={"name": "clerk"}, metadata={"a": "1"})
    before = await talk.snapshot()
    after = await patch(talk)
    assert (after["agent"], after["metadata"]) == (before["agent"], before["metadata"])


@pytest.mark.parametrize(
    "body, code, param",
    [
        ({"name": "x"}, "unknown_field", "name"),
        ({"agent": {"nme": "x"}}, "unknown_field", "agent.nme"),
        ({"agent": {"temperature": "hot"}}, "invalid_value", "agent.temperature"),
        ({"agent": {"max_model_calls": 0}}, "invalid_value", "agent.max_model_calls"),
        ({"agent": {"tool_timeout_s": 0}}, "invalid_value", "agent.tool_timeout_s"),
        ({"agent": {"tools": [TOOL, TOOL]}}, "invalid_tool", "agent.tools[1].name"),
        ({"agent": []}, "invalid_value", "agent"),
        ({"metadata": {"k": 1}}, "invalid_value", "metadata.k"),
        ({"metadata": {str(n): "" for n in range(16)}}, "invalid_value", "metadata"),
        ({"items": []}, "unknown_field", "items"),
        ([], "invalid_value", None),
        (None, "invalid_value", None),
    ],
)
async def test_a_bad_patch_changes_nothing(serve, body, code, param):
    api = await serve()
    talk = await api.open(agent={"name": "clerk"}, metadata={"a": "1"})
    before = await talk.raw()
    await api.refused("PATCH", talk.path, data=json.dumps(body),
                      headers={"Content-Type": "application/json"}, status=400, code=code, param=param)  # fmt: skip
    assert await talk.raw() == before


async def delete(talk: Talk) -> None:
    answer = await talk.api.ask("DELETE", talk.path)
    assert answer.status == 200
    assert answer.body == {"id": talk.id, "object": "session.deleted", "deleted": True}


async def check_gone(talk: Talk) -> None:
    api = talk.api
    for method, tail in (
        ("GET", ""),
        ("PATCH", ""),
        ("DELETE", ""),
        ("GET", "/items"),
        ("GET", "/responses"),
        ("GET", "/responses/resp_x"),
        ("GET", "/request"),
        ("POST", "/fork"),
        ("POST", "/events"),
        ("GET", "/stream"),
    ):
        body = {"json": {}} if method in ("PATCH", "POST") else {}
        await api.refused(method, talk.path + tail, status=404, code="unknown_session", **body)
    assert talk.id not in [row["id"] for row in (await api.get("/v1/sessions"))["data"]]


async def test_an_idle_session_that_is_deleted_tells_its_followers_and_is_gone(serve):
    api = await serve(say("hi"))
    talk = await api.open()
    await talk.send()
    await talk.stream.until_status("idle")
    await delete(talk)
    frames = await talk.stream.rest()
    assert types(frames) == ["session.deleted", DONE]
    seq = talk.stream.frames[-3].seq + 1
    assert frames[0].data == {"type": "session.deleted", "seq": seq, "id": talk.id}
    await check_gone(talk)


async def test_a_running_turn_is_ended_by_delete(serve):
    gate = asyncio.Event()
    api = await serve(held(gate))
    talk = await api.open()
    sent = await talk.send()
    await talk.stream.until("response.output_text.delta")
    await delete(talk)
    frames = await talk.stream.rest()
    assert types(frames) == [
        "response.output_item.done",
        "session.item",
        "response.cancelled",
        "session.status idle",
        "session.deleted",
        DONE,
    ]
    assert frames[0].data["item"]["status"] == "incomplete"
    assert frames[0].data["item"]["content"][0]["text"] == "par"
    assert frames[2].data["response"]["id"] == sent["response_id"]
    await check_gone(talk)
    assert (await api.get("/health"))["running_turns"] == 0


async def test_a_parked_turn_and_its_queue_are_ended_by_delete_in_order(serve):
    api = await serve(call("look_up", '{"widget_id": 1}', "c1"))
    talk = await api.open()
    first = await talk.park()
    second = await talk.send("second")
    steered = await talk.send("steered", delivery="steer")
    await talk.stream.until(lambda frame: frame.data.get("item", {}).get("id") == steered["item_id"])
    await delete(talk)
    frames = await talk.stream.rest()
    assert types(frames) == [
        "session.item", "response.cancelled", "session.item",
        "response.output_item.done", "response.output_item.done", "session.item",
        "response.cancelled", "session.status idle", "session.deleted", DONE,
    ]  # fmt: skip
    assert [frames[n].data["item"]["status"] for n in (0, 2)] == ["cancelled", "cancelled"]
    assert [frames[n].data["item"]["id"] for n in (0, 2)] == [second["item_id"], steered["item_id"]]
    assert [frames[n].data["response"]["id"] for n in (1, 6)] == [second["response_id"], first["response_id"]]
    assert frames[3].data["item"]["status"] == "incomplete" and frames[4].data["item"]["origin"] == "harness"
    idle = frames[7].data
    assert (idle["response_id"], idle["required_actions"], idle["queued"]) == (None, [], [])
    await check_gone(talk)


async def test_many_deletes_at_once_end_one_session_once(serve):
    api = await serve(call("look_up", '{"widget_id": 1}', "c1"))
    talk = await api.open()
    await talk.park()
    answers = await asyncio.gather(*(api.ask("DELETE", talk.path) for _ in range(5)))
    assert sorted(answer.status for answer in answers) == [200, 404, 404, 404, 404]
    assert types(await talk.stream.rest())[-3:] == ["session.status idle", "session.deleted", DONE]


async def test_deleting_one_session_leaves_the_others_alone(serve):
    api = await serve(call("look_up", '{"widget_id": 1}', "c1"), call("look_up", '{"widget_id": 1}', "c1"), say("done"))
    gone, stays = await api.open(), await api.open()
    await gone.park()
    await stays.park()
    await delete(gone)
    assert (await stays.result("c1"))["accepted"] is True
    assert types(await stays.stream.until_status("idle"))[-2:] == ["response.completed", "session.status idle"]
