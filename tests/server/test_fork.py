"""
Forks: a new session with the settled items of another.
"""

import asyncio

from agent_harness.llm.base import Ended, ItemAdded, ItemDone, TextDelta
from agent_harness.llm.scripted import Step, call, say
from tests.support import TOOL, Talk, heard


async def fork(talk: Talk, **body) -> Talk:
    answer = await talk.api.ask("POST", f"{talk.path}/fork", json=body)
    assert answer.status == 201, answer.body
    copy = Talk(talk.api, answer.body["id"])
    assert answer.body == await copy.snapshot()
    return copy


def bare(items):
    return [{key: item[key] for key in item if key not in ("id", "response_id", "created_at")} for item in items]


async def tool_talk(serve, *more) -> Talk:
    api = await serve(call("look_up", '{"widget_id": 1}', "c1"), say("blue"), *more)
    talk = await api.open(agent={"instructions": "Be brief.", "model": "m-1"}, metadata={"a": "1"})
    await talk.park("look")
    await talk.result("c1", "blue")
    await talk.stream.until_status("idle")
    return talk


async def test_a_fork_has_everything_settled_under_new_ids(serve):
    talk = await tool_talk(serve, say("from the fork"))
    before = await talk.raw()
    source = await talk.snapshot()
    copy = await (await fork(talk)).snapshot()
    assert await talk.raw() == before
    assert copy["id"] != source["id"] and copy["status"] == "idle" and copy["response_id"] is None
    assert (copy["agent"], copy["metadata"]) == (source["agent"], source["metadata"])
    assert (copy["usage"], copy["queued"], copy["required_actions"], copy["seq"]) == (None, [], [], 0)
    assert bare(copy["items"]) == bare(source["items"])
    assert not {item["id"] for item in copy["items"]} & {item["id"] for item in source["items"]}
    assert all(item["response_id"] is None for item in copy["items"])
    assert [item["call_id"] for item in copy["items"] if "call_id" in item] == ["c1", "c1"]
    copied = Talk(talk.api, copy["id"])
    assert (await talk.api.get(f"{copied.path}/responses"))["data"] == []
    await copied.turn("again")
    assert heard(talk.api.model, 2)[:4] == [
        *heard(talk.api.model, 1),
        {"type": "message", "role": "assistant", "content": "blue"},
    ]
    assert await talk.raw() == before


async def test_a_fork_needs_no_body(serve):
    talk = await tool_talk(serve)
    answer = await talk.api.ask("POST", f"{talk.path}/fork")
    assert answer.status == 201 and len(answer.body["items"]) == 4


async def test_a_fork_up_to_an_item_includes_it(serve):
    talk = await tool_talk(serve)
    items = await talk.items()
    for index, item in enumerate(items):
        if item["type"] != "function_call":
            copy = await fork(talk, up_to_item_id=item["id"])
            assert bare(await copy.items()) == bare(items[: index + 1])


async def test_a_fork_between_call_and_output_closes_the_call(serve):
    talk = await tool_talk(serve, say("ok"))
    items = await talk.items()
    copy = await fork(talk, up_to_item_id=items[1]["id"])
    copied = await copy.items()
    assert [item["type"] for item in copied] == ["message", "function_call", "function_call_output"]
    assert copied[1]["status"] == "incomplete" and copied[1]["call_id"] == "c1"
    assert (copied[2]["origin"], copied[2]["is_error"]) == ("harness", True)
    assert (await copy.snapshot())["required_actions"] == []
    body = {"type": "function_call_output", "data": {"call_id": "c1", "output": "blue"}}
    error = await copy.refused(body, status=409, code="call_closed", param="data.call_id")
    assert error["closed_by"] == "harness"
    await copy.turn()
    sent = heard(talk.api.model, 2)
    assert [item["type"] for item in sent] == ["message", "function_call", "function_call_output", "message"]


async def test_a_fork_of_a_parked_turn_closes_its_calls_and_the_source_stays_parked(serve):
    two = call("look_up", '{"widget_id": 1}', "c1") + call("look_up", '{"widget_id": 2}', "c2")
    api = await serve(two, say("fork"), say("source"))
    talk = await api.open()
    await talk.park()
    await talk.result("c2", "two")
    await talk.send("queued")
    before = await talk.raw()
    copy = await fork(talk)
    assert await talk.raw() == before
    snapshot = await copy.snapshot()
    assert (snapshot["status"], snapshot["queued"]) == ("idle", [])
    statuses = {item["call_id"]: item["status"] for item in snapshot["items"] if item["type"] == "function_call"}
    assert statuses == {"c1": "incomplete", "c2": "completed"}
    await copy.turn()
    outputs = [item for item in heard(api.model, 1) if item["type"] == "function_call_output"]
    assert [item["call_id"] for item in outputs] == ["c1", "c2"] and outputs[1]["output"] == "two"
    await talk.result("c1", "one")
    await talk.stream.until("response.completed")
    outputs = [item for item in heard(api.model, 2) if item["type"] == "function_call_output"]
    assert [(item["call_id"], item["output"]) for item in outputs] == [("c1", "one"), ("c2", "two")]


async def test_a_fork_of_a_running_answer_leaves_out_what_is_in_progress_or_queued(serve):
    gate = asyncio.Event()
    api = await serve(
        Step((ItemAdded(0, "message"), TextDelta(0, "par"), gate, ItemDone(0))), say("fork"), say("queued")
    )
    talk = await api.open()
    await talk.send("first")
    queued = await talk.send("second")
    await talk.stream.until("response.output_text.delta")
    before = await talk.raw()
    copy = await fork(talk)
    assert [item["content"][0]["text"] for item in await copy.items()] == ["first"]
    running = (await talk.items())[1]
    for item_id in (running["id"], queued["item_id"], "msg_none", ""):
        body = {"up_to_item_id": item_id}
        await api.refused(
            "POST", f"{talk.path}/fork", json=body, status=404, code="unknown_item", param="up_to_item_id"
        )
    assert await talk.raw() == before
    await copy.turn("go on")
    assert [item["content"] for item in heard(api.model, 1)] == ["first", "go on"]
    gate.set()
    await talk.stream.until_status("idle")


async def test_a_fork_of_a_cut_answer_keeps_what_the_source_would_send(serve):
    cut = say("half") + call("look_up", '{"widget_id": 1}', "c1") + Step((Ended("max_output_tokens"),))
    talk = await (await serve(cut, say("fork"), say("source"))).open(agent={"tools": [TOOL]})
    await talk.turn("look")
    copy = await fork(talk)
    assert bare(await copy.items()) == bare(await talk.items())
    assert [item["status"] for item in await copy.items()] == ["completed", "incomplete", "incomplete"]
    await copy.turn("go on")
    await talk.turn("go on")
    assert heard(talk.api.model, 1) == heard(talk.api.model, 2)
    assert [item["content"] for item in heard(talk.api.model, 1)] == ["look", "half", "go on"]


async def test_a_fork_of_a_fork_stands_alone(serve):
    talk = await tool_talk(serve, say("two"))
    copy = await fork(await fork(talk))
    assert bare(await copy.items()) == bare(await talk.items())
    assert (await talk.api.ask("DELETE", talk.path)).status == 200
    await copy.turn("still there?")
    assert heard(talk.api.model, 2)[2] == {"type": "function_call_output", "call_id": "c1", "output": "blue"}


async def test_a_bad_fork_body_is_refused(serve):
    talk = await tool_talk(serve)
    for body, code, param in (
        ({"up_to_item_id": 1}, "invalid_value", "up_to_item_id"),
        ({"up_to": "x"}, "unknown_field", "up_to"),
        ([], "invalid_value", None),
    ):
        await talk.api.refused("POST", f"{talk.path}/fork", json=body, status=400, code=code, param=param)
    answer = await talk.api.ask("POST", f"{talk.path}/fork", json={"up_to_item_id": None})
    assert answer.status == 201
    assert len((await talk.api.get("/v1/sessions"))["data"]) == 2
