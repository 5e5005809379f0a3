"""
Interrupts.
"""

import asyncio

from agent_harness.llm.base import ArgumentsDelta, Ended, ItemAdded, TextDelta
from agent_harness.llm.scripted import Step, call, say
from tests.support import DONE, TOOL, heard, types

LOOK = '{"widget_id": 1}'


def held(gate, *before) -> Step:
    return Step((*before, gate))


def markers(items):
    return [item for item in items if item.get("role") == "user" and item["origin"] == "harness"]


def check_marker(items):
    (marker,) = markers(items)
    assert "interrupted" in marker["content"][0]["text"] and marker["content"][0]["type"] == "input_text"


async def test_an_interrupt_of_an_idle_session_does_nothing(serve):
    api = await serve(say("hi"))
    talk = await api.open()
    assert await talk.interrupt() == {"interrupted": False, "response_id": None, "dropped": [], "seq": 0}
    await talk.turn()
    before = await talk.raw()
    answer = await talk.post({"type": "interrupt"})
    assert answer["interrupted"] is False and answer["dropped"] == [] and await talk.raw() == before
    answer = await talk.interrupt(clear_queue=True, response_id=None)
    assert answer["interrupted"] is False and await talk.raw() == before


async def test_an_interrupt_stops_the_model_at_once_and_keeps_its_partial_text(serve):
    let_go = asyncio.Event()

    class Watched:
        default_model = "watched"

        async def stream(self, request):
            try:
                yield ItemAdded(0, "message")
                yield TextDelta(0, "par")
                await asyncio.Event().wait()
            finally:
                let_go.set()

        def body(self, request):
            return b"{}"

    api = await serve(say("next"), models={"watched": Watched()})
    talk = await api.open(agent={"provider": "watched"})
    sent = await talk.send("first")
    await talk.stream.until("response.output_text.delta")
    seq = (await talk.snapshot())["seq"]
    answer = await talk.interrupt()
    assert answer == {"interrupted": True, "response_id": sent["response_id"], "dropped": [], "seq": seq}
    assert let_go.is_set()
    snapshot = await talk.snapshot()
    assert (snapshot["status"], snapshot["response_id"]) == ("idle", None)
    assert [item["status"] for item in snapshot["items"]] == ["completed", "incomplete", "completed"]
    assert snapshot["items"][1]["content"][0]["text"] == "par"
    check_marker(snapshot["items"])
    frames = await talk.stream.until_status("idle")
    assert types(frames) == ["response.output_item.done", "session.item", "response.cancelled", "session.status idle"]
    assert frames[2].data["response"]["status"] == "cancelled" and frames[0].id == seq + 1
    assert (await api.ask("PATCH", talk.path, json={"agent": {"provider": None}})).status == 200
    await talk.turn("next")
    contents = [item["content"] for item in heard(api.model, 0)]
    assert contents[:2] == ["first", "par"] and contents[-1] == "next" and len(contents) == 4


async def test_an_interrupt_closes_open_calls_with_one_harness_output_each(serve):
    two = call("look_up", LOOK, "c1") + call("look_up", LOOK, "c2") + call("look_up", LOOK, "c3")
    api = await serve(two, say("next"))
    talk = await api.open()
    await talk.park()
    await talk.result("c2", "two")
    assert (await talk.interrupt())["interrupted"] is True
    snapshot = await talk.snapshot()
    assert (snapshot["status"], snapshot["required_actions"]) == ("idle", [])
    calls = {item["call_id"]: item["status"] for item in snapshot["items"] if item["type"] == "function_call"}
    assert calls == {"c1": "incomplete", "c2": "completed", "c3": "incomplete"}
    outputs = {item["call_id"]: item for item in snapshot["items"] if item["type"] == "function_call_output"}
    assert [outputs[name]["origin"] for name in ("c1", "c2", "c3")] == ["harness", "client", "harness"]
    assert [outputs[name]["is_error"] for name in ("c1", "c2", "c3")] == [True, False, True]
    check_marker(snapshot["items"])
    for call_id in ("c1", "c3"):
        body = {"type": "function_call_output", "data": {"call_id": call_id, "output": "late"}}
        error = await talk.refused(body, status=409, code="call_closed", param="data.call_id")
        assert error["closed_by"] == "interrupt"
    frames = await talk.stream.until_status("idle")
    assert types(frames)[-3:] == ["session.item", "response.cancelled", "session.status idle"]
    done = [frame.data["item"] for frame in frames if frame.event == "response.output_item.done"][2:]
    assert [(item["type"], item["call_id"]) for item in done] == [
        ("function_call", "c1"),
        ("function_call_output", "c1"),
        ("function_call", "c3"),
        ("function_call_output", "c3"),
    ]
    await talk.turn("next")
    sent = heard(api.model, 1)
    assert [item.get("call_id") for item in sent] == [None, "c1", "c2", "c3", "c1", "c2", "c3", None, None]


async def test_an_interrupt_names_the_turn_it_means(serve):
    api = await serve(say("one"), call("look_up", LOOK, "c1"))
    talk = await api.open()
    old = (await talk.turn())[0].data["response_id"]
    running = await talk.park()
    queued = await talk.send("queued")
    before = await talk.raw()
    for other in (old, queued["response_id"], "resp_none", ""):
        answer = await talk.interrupt(response_id=other, clear_queue=True)
        assert (answer["interrupted"], answer["dropped"]) == (False, []) and await talk.raw() == before
    answer = await talk.interrupt(response_id=running["response_id"])
    assert (answer["interrupted"], answer["response_id"]) == (True, running["response_id"])


async def test_an_interrupt_does_not_stop_the_queue(serve):
    gate = asyncio.Event()
    api = await serve(held(gate, ItemAdded(0, "message"), TextDelta(0, "par")), say("two"))
    talk = await api.open()
    await talk.send("first")
    second = await talk.send("second")
    await talk.stream.until("response.output_text.delta")
    answer = await talk.interrupt()
    assert answer["dropped"] == []
    frames = await talk.stream.until_status("idle")
    ends = [each for each in types(frames) if each in ("response.cancelled", "response.completed")]
    assert ends == ["response.cancelled", "response.completed"]
    assert frames[-2].data["response"]["id"] == second["response_id"]
    index = types(frames).index("response.cancelled")
    assert types(frames)[index + 1] == "session.status running"
    assert frames[index + 1].data["response_id"] == second["response_id"]
    contents = [item["content"] for item in heard(api.model, 1)]
    assert contents[:2] == ["first", "par"] and "interrupted" in contents[2] and contents[3:] == ["second"]


async def test_clear_queue_drops_all_waiting_messages_before_the_running_turn_ends(serve):
    api = await serve(call("look_up", LOOK, "c1"), say("next"))
    talk = await api.open()
    first = await talk.park("first")
    queued = [await talk.send("q1"), await talk.send("s1", delivery="steer"), await talk.send("q2")]
    own = await talk.send_streamed("q3")
    opening = await own.next()
    ids = [answer["item_id"] for answer in queued] + [opening.data["item_id"]]
    assert (await talk.snapshot())["queued"] == ids
    answer = await talk.interrupt(clear_queue=True)
    assert answer["dropped"] == ids and answer["response_id"] == first["response_id"]
    snapshot = await talk.snapshot()
    assert snapshot["queued"] == [] and not {item["id"] for item in snapshot["items"]} & set(ids)
    check_marker(snapshot["items"])
    frames = (await talk.stream.until_status("idle"))[4:]
    assert types(frames) == [
        "session.item", "response.cancelled", "session.item", "session.item", "response.cancelled",
        "session.item", "response.cancelled", "response.output_item.done", "response.output_item.done",
        "session.item", "response.cancelled", "session.status idle",
    ]  # fmt: skip
    dropped = [frame.data["item"] for frame in frames if frame.event == "session.item"][:4]
    assert [(item["id"], item["status"]) for item in dropped] == [(item_id, "cancelled") for item_id in ids]
    assert types(await own.rest()) == ["session.item", "session.item", "response.cancelled", DONE]
    for each in (queued[0], queued[2]):
        record = await api.get(f"{talk.path}/responses/{each['response_id']}")
        assert record["status"] == "cancelled" and record["completed_at"] is not None
    await talk.turn("next")
    contents = [item["content"] for item in heard(api.model, 1) if item["type"] == "message"]
    assert contents[0] == "first" and contents[-1] == "next" and not {"q1", "s1", "q2", "q3"} & set(contents)


async def test_an_interrupt_before_the_first_delta_leaves_no_answer(serve):
    gate = asyncio.Event()
    api = await serve(held(gate), say("next"))
    talk = await api.open()
    await talk.send("first")
    await talk.stream.until("response.created")
    assert (await talk.interrupt())["interrupted"] is True
    items = await talk.items()
    assert [item["type"] for item in items] == ["message", "message"]
    check_marker(items)
    await talk.turn("next")
    assert [item["role"] for item in heard(api.model, -1)] == ["user"] * 3


async def test_an_interrupt_in_the_middle_of_arguments_leaves_an_unsent_call(serve):
    gate = asyncio.Event()
    api = await serve(
        held(gate, ItemAdded(0, "function_call", "c1", "look_up"), ArgumentsDelta(0, '{"wid')), say("next")
    )
    talk = await api.open()
    await talk.send("first", tools=[TOOL])
    await talk.stream.until("response.function_call_arguments.delta")
    await talk.interrupt()
    items = await talk.items()
    assert [item["type"] for item in items] == ["message", "function_call", "message"]
    assert items[1]["status"] == "incomplete"
    body = {"type": "function_call_output", "data": {"call_id": "c1", "output": "x"}}
    await talk.refused(body, status=404, code="unknown_call", param="data.call_id")
    await talk.turn("next")
    assert [item["type"] for item in heard(api.model, 1)] == ["message"] * 3


async def test_an_interrupt_of_the_second_model_call_keeps_the_first_round(serve):
    gate = asyncio.Event()
    api = await serve(
        call("look_up", LOOK, "c1"), held(gate, ItemAdded(0, "message"), TextDelta(0, "par")), say("next")
    )
    talk = await api.open()
    await talk.park()
    await talk.result("c1", "blue")
    await talk.stream.until("response.output_text.delta")
    await talk.interrupt()
    assert types(await talk.stream.until_status("idle")).count("response.cancelled") == 1
    assert (await talk.result("c1", "blue"))["duplicate"] is True
    await talk.turn("next")
    sent = heard(api.model, 2)
    assert sent[2] == {"type": "function_call_output", "call_id": "c1", "output": "blue"}
    assert sent[3] == {"type": "message", "role": "assistant", "content": "par"}


async def test_many_interrupts_at_once_end_one_turn_once(serve):
    api = await serve(call("look_up", LOOK, "c1"))
    talk = await api.open()
    await talk.park()
    answers = await asyncio.gather(*(talk.interrupt() for _ in range(5)))
    assert sorted(answer["interrupted"] for answer in answers) == [False] * 4 + [True]
    assert types(await talk.stream.until_status("idle")).count("response.cancelled") == 1
    check_marker(await talk.items())


async def test_a_result_and_an_interrupt_at_once_agree_on_who_was_first(serve):
    rounds = 20
    api = await serve(*[step for n in range(rounds) for step in (call("look_up", LOOK, f"c{n}"), say("done"))])
    for n in range(rounds):
        talk = await api.open()
        api.model.steps.clear()
        api.model.steps.extend([call("look_up", LOOK, "c1"), say("done")])
        await talk.park()
        body = {"type": "function_call_output", "data": {"call_id": "c1", "output": "r"}}
        posts = [api.ask("POST", f"{talk.path}/events", json=body), talk.interrupt()]
        answers = await asyncio.gather(*(posts if n % 2 else posts[::-1]))
        result = answers[0 if n % 2 else 1]
        output = next(item for item in await talk.items() if item["type"] == "function_call_output")
        if result.status == 202:
            assert output["output"] == "r" and output["origin"] == "client"
        else:
            assert result.body["error"]["closed_by"] == "interrupt" and output["origin"] == "harness"


async def test_a_turn_at_its_bound_of_model_calls_ends_incomplete_and_announces_nothing(serve):
    api = await serve(call("look_up", LOOK, "c1"), call("look_up", LOOK, "c2"), say("next"))
    talk = await api.open(agent={"max_model_calls": 2, "tools": [TOOL]})
    await talk.park(tools=None)
    await talk.result("c1")
    frames = await talk.stream.until_status("idle")
    assert types(frames)[-3:] == ["response.output_item.done", "response.incomplete", "session.status idle"]
    assert frames[-3].data["item"]["status"] == "incomplete"
    assert frames[-2].data["response"]["incomplete_details"] == {"reason": "max_model_calls"}
    body = {"type": "function_call_output", "data": {"call_id": "c2", "output": "x"}}
    await talk.refused(body, status=404, code="unknown_call", param="data.call_id")
    await talk.turn("next")
    assert [item.get("call_id") for item in heard(api.model, 2)] == [None, "c1", "c1", None]


async def test_the_text_of_a_cut_answer_is_sent_to_the_model_again(serve):
    api = await serve(say("half an ans") + Step((Ended("max_output_tokens"),)), say("next"))
    talk = await api.open()
    frames = await talk.turn("first")
    assert frames[-3].data["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (await talk.items())[1]["status"] == "incomplete"
    await talk.turn("next")
    assert [item["content"] for item in heard(api.model, 1)] == ["first", "half an ans", "next"]
