"""
Results of calls: one at a time and in batches.
"""

import asyncio
import json

import aiohttp
import pytest

from agent_harness.llm.base import Ended
from agent_harness.llm.scripted import Step, call, say
from tests.support import TOOL, heard, types

LOOK = '{"widget_id": 1}'


def calls(*ids: str) -> Step:
    step = Step(())
    for call_id in ids:
        step += call("look_up", LOOK, call_id)
    return step


def output(call_id: str, value="ok", **extra) -> dict:
    return {"type": "function_call_output", "data": {"call_id": call_id, "output": value, **extra}}


def outputs(model, index: int) -> list[tuple[str, str]]:
    return [(item["call_id"], item["output"]) for item in heard(model, index) if item["type"] == "function_call_output"]


async def parked(serve, *ids: str, then=(), **limits):
    api = await serve(calls(*ids), *(then or (say("done"),)), **limits)
    talk = await api.open()
    await talk.park()
    return talk


async def done(talk) -> list[tuple[str, str]]:
    await talk.stream.until_status("idle")
    return outputs(talk.api.model, 1)


async def test_a_result_is_taken_and_reaches_the_model_byte_for_byte(serve):
    talk = await parked(serve, "c1")
    seq = (await talk.snapshot())["seq"]
    text = ' {"a": 1,\t"b":  "é\u2028🙂"}\r\n\n\x1b[0m '
    answer = await talk.result("c1", text)
    assert list(answer) == ["accepted", "duplicate", "item_id", "call_id", "seq"]
    assert (answer["accepted"], answer["duplicate"], answer["call_id"], answer["seq"]) == (True, False, "c1", seq)
    assert await done(talk) == [("c1", text)]
    item = next(item for item in await talk.items() if item["id"] == answer["item_id"])
    assert (item["output"], item["is_error"], item["origin"], item["status"]) == (text, False, "client", "completed")


async def test_a_result_closes_its_call_in_the_snapshot_at_once(serve):
    """B029: each result is told right away; the others stay open."""
    talk = await parked(serve, "c1", "c2", "c3")
    answer = await talk.result("c3", "three")
    snapshot = await talk.snapshot()
    assert [action["call_id"] for action in snapshot["required_actions"]] == ["c1", "c2"]
    assert snapshot["status"] == "waiting" and snapshot["seq"] == answer["seq"] + 2
    frames = [await talk.stream.next(), await talk.stream.next()]
    assert types(frames) == ["response.output_item.done"] * 2
    assert (frames[0].data["item"]["call_id"], frames[0].data["item"]["status"]) == ("c3", "completed")
    assert (frames[1].data["item"]["call_id"], frames[1].data["item"]["output"]) == ("c3", "three")
    assert len(talk.api.model.requests) == 1


async def test_the_model_is_called_once_when_the_last_open_call_is_closed(serve):
    """B020, B021, B027: no timer, no placeholder; the last result alone starts the next call."""
    talk = await parked(serve, "c1", "c2", "c3")
    for call_id in ("c1", "c2"):
        await talk.result(call_id, f"out {call_id}")
        assert len(talk.api.model.requests) == 1
        assert "harness" not in [item.get("origin") for item in await talk.items()]
    await talk.result("c3", "out c3")
    assert await done(talk) == [("c1", "out c1"), ("c2", "out c2"), ("c3", "out c3")]
    assert len(talk.api.model.requests) == 2


async def test_outputs_reach_the_model_in_call_order_whatever_order_they_came_in(serve):
    """B023."""
    talk = await parked(serve, "c1", "c2", "c3", then=(calls("d1"), say("done")))
    for call_id in ("c3", "c1", "c2"):
        await talk.result(call_id, f"out {call_id}")
    await talk.stream.until_status("waiting")
    await talk.result("d1", "out d1")
    expected = [("c1", "out c1"), ("c2", "out c2"), ("c3", "out c3")]
    assert await done(talk) == expected and outputs(talk.api.model, 2) == [*expected, ("d1", "out d1")]
    assert heard(talk.api.model, 2)[: len(heard(talk.api.model, 1))] == heard(talk.api.model, 1)


async def test_the_same_result_again_is_a_duplicate_without_a_second_effect(serve):
    """B141."""
    talk = await parked(serve, "c1", "c2")
    first = await talk.result("c1", "A\0B")
    before = await talk.raw()
    again = await talk.result("c1", "A\ufffdB")
    assert again == first | {"duplicate": True, "seq": again["seq"]} and await talk.raw() == before
    assert (await talk.result("c1", "A\0B"))["duplicate"] is True
    await talk.result("c2")
    assert await done(talk) == [("c1", "A\ufffdB"), ("c2", "ok")]
    assert (await talk.result("c1", "A\0B"))["duplicate"] is True
    assert (await talk.snapshot())["status"] == "idle" and len(talk.api.model.requests) == 2


async def test_a_different_result_is_a_conflict_and_the_first_stands(serve):
    """B026, B141."""
    talk = await parked(serve, "c1", "c2")
    await talk.result("c1", "A")
    for body in (output("c1", "other"), output("c1", "A", is_error=True), output("c1", None),
                 output("c1", [{"type": "input_text", "text": "A"}])):  # fmt: skip
        error = await talk.refused(body, status=409, code="call_already_answered", param="data.call_id")
        assert "closed_by" not in error
    await talk.result("c2", "B")
    assert await done(talk) == [("c1", "A"), ("c2", "B")]


async def test_of_many_results_at_once_the_first_wins(serve):
    """B141, concurrently."""
    talk = await parked(serve, "c1")
    answers = await asyncio.gather(
        *(talk.api.ask("POST", f"{talk.path}/events", json=output("c1", value)) for value in "ABAB")
    )
    taken = [answer for answer in answers if answer.status == 202]
    assert [answer.body["duplicate"] for answer in taken].count(False) == 1
    assert {answer.status for answer in answers} == {202, 409} and len(taken) == 2
    ((_, value),) = await done(talk)
    assert value in ("A", "B") and len(talk.api.model.requests) == 2


async def test_an_error_result_fails_its_call_and_its_siblings_stay_open(serve):
    """B030, B071."""
    talk = await parked(serve, "c1", "c2")
    await talk.result("c1", "boom", is_error=True)
    assert [action["call_id"] for action in (await talk.snapshot())["required_actions"]] == ["c2"]
    await talk.result("c2", "ok")
    assert await done(talk) == [("c1", "Error: boom"), ("c2", "ok")]
    statuses = {item["call_id"]: item["status"] for item in await talk.items() if item["type"] == "function_call"}
    assert statuses == {"c1": "failed", "c2": "completed"}
    (block,) = [block for block in talk.api.model.requests[1].blocks if block.outputs]
    assert [sent.is_error for sent in block.outputs] == [True, False]


async def test_an_empty_error_result_is_an_answer(serve):
    """B071."""
    talk = await parked(serve, "c1")
    await talk.result("c1", "", is_error=True)
    assert await done(talk) == [("c1", "Error: ")]
    assert talk.api.model.requests[1].blocks[-1].outputs[0].is_error is True


async def test_an_error_result_of_parts_begins_with_a_part_of_its_own(serve):
    talk = await parked(serve, "c1")
    parts = [{"type": "input_text", "text": "boom"}, {"type": "input_image", "image_url": "https://example.com/a.png"}]
    await talk.result("c1", parts, is_error=True)
    assert await done(talk) == [("c1", "Error: boom")]
    kept = next(item for item in await talk.items() if item["type"] == "function_call_output")
    assert (kept["output"], kept["is_error"]) == (parts, True)


async def test_null_is_the_empty_text_and_repeats_as_such(serve):
    """B072."""
    talk = await parked(serve, "c1", then=(calls("c2"), say("done")))
    await talk.result("c1", None)
    await talk.stream.until_status("waiting")
    assert (await talk.result("c1", ""))["duplicate"] is True
    assert (await talk.result("c1", None))["duplicate"] is True
    await talk.result("c2", "real")
    await done(talk)
    assert outputs(talk.api.model, 2) == [("c1", ""), ("c2", "real")]


async def test_parts_are_kept_as_parts(serve):
    """B061, up to the adapter."""
    talk = await parked(serve, "c1")
    parts = [
        {"type": "input_text", "text": "t\0"},
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
        {"type": "input_file", "file_id": "file_1"},
    ]
    await talk.result("c1", parts)
    assert (await talk.result("c1", parts))["duplicate"] is True
    await done(talk)
    kept = next(item for item in await talk.items() if item["type"] == "function_call_output")["output"]
    assert kept == [{"type": "input_text", "text": "t\ufffd"}, *parts[1:]]
    sent = talk.api.model.requests[1].blocks[-1].outputs[0].output
    assert [part.type for part in sent] == ["input_text", "input_image", "input_file"]


async def test_nul_is_replaced_and_other_controls_are_kept(serve):
    """B068."""
    talk = await parked(serve, "c1")
    await talk.result("c1", "a\0b\x1b[31mred\t\n")
    assert await done(talk) == [("c1", "a\ufffdb\x1b[31mred\t\n")]


@pytest.mark.parametrize("text", ['"\\ud800"', '"a\\udfffb"', '"\\ud83d"', '[{"type":"input_text","text":"\\ud800"}]'])
async def test_a_lone_surrogate_is_refused_and_the_call_stays_open(serve, text):
    talk = await parked(serve, "c1")
    before = await talk.raw()
    body = f'{{"type":"function_call_output","data":{{"call_id":"c1","output":{text}}}}}'
    answer = await talk.api.ask("POST", f"{talk.path}/events", data=body, headers={"Content-Type": "application/json"})
    assert answer.status == 400 and answer.body["error"]["type"] == "invalid_request_error"
    assert await talk.raw() == before
    await talk.result("c1", "\U0001f642")
    assert await done(talk) == [("c1", "\U0001f642")]


async def test_a_large_output_is_taken_and_one_over_the_limit_leaves_the_call_open(serve):
    """B066."""
    talk = await parked(serve, "c1", "c2")
    large = "x" * 1_572_864
    await talk.result("c1", large)
    error = await talk.refused(
        output("c2", "x" * 10_000_001), status=413, code="request_too_large", param="data.output"
    )
    assert "10,000,000" in error["message"]
    await talk.result("c2", "y" * 10_000_000)
    (_, first), (_, second) = await done(talk)
    assert first == large and second == "y" * 10_000_000


async def test_a_result_nobody_waits_for_is_not_found_and_names_the_open_calls(serve):
    """B140."""
    talk = await parked(serve, "c1")
    idle = await talk.api.open()
    error = await talk.refused(output("nope"), status=404, code="unknown_call", param="data.call_id")
    assert "c1" in error["message"]
    await idle.refused(output("c1"), status=404, code="unknown_call", param="data.call_id")
    path = "/v1/sessions/sess_none/events"
    await talk.api.refused("POST", path, json=output("c1"), status=404, code="unknown_session")
    await talk.result("c1")
    assert await done(talk) == [("c1", "ok")]


async def test_a_call_that_still_stands_in_the_models_answer_is_unknown_until_it_is_announced(serve):
    """B138."""
    gate = asyncio.Event()
    api = await serve(calls("c1") + Step((gate,)), say("done"))
    talk = await api.open()
    await talk.send(tools=[TOOL])
    await talk.stream.until("response.function_call_arguments.done")
    assert (await talk.items())[-1]["status"] == "in_progress"
    await talk.refused(output("c1"), status=404, code="unknown_call", param="data.call_id")
    gate.set()
    frames = await talk.stream.until_status("waiting")
    assert frames[-2].data["item"]["status"] == "action_required"
    await talk.result("c1")
    assert await done(talk) == [("c1", "ok")]


async def test_a_result_posted_the_instant_its_call_is_read_is_never_lost(serve):
    """B138: no delay, many times."""
    rounds = 60
    api = await serve(*[calls("a", "b") if n == 0 else calls(f"a{n}", f"b{n}") for n in range(rounds)], say("done"))
    talk = await api.open(agent={"max_model_calls": rounds + 1})
    await talk.send(tools=[TOOL])
    for _ in range(rounds):
        for _ in range(2):
            (*_, frame) = await talk.stream.until(
                lambda frame: frame.data.get("item", {}).get("status") == "action_required"
            )
            await talk.result(frame.data["item"]["call_id"], "now")
    await talk.stream.until_status("idle")
    assert len(api.model.requests) == rounds + 1
    assert len(outputs(api.model, -1)) == 2 * rounds


async def test_a_call_of_a_cut_answer_is_unknown(serve):
    api = await serve(calls("c1") + Step((Ended("content_filter"),)), say("next"))
    talk = await api.open(agent={"tools": [TOOL]})
    frames = await talk.turn()
    assert "incomplete" in [
        frame.data["item"]["status"] for frame in frames if frame.event == "response.output_item.done"
    ]
    await talk.refused(output("c1"), status=404, code="unknown_call", param="data.call_id")
    await talk.turn()
    assert [item["type"] for item in heard(api.model, 1)] == ["message", "message"]


async def test_a_deadline_closes_the_call_and_a_late_result_is_told_so(serve):
    """B142."""
    api = await serve(calls("c1", "c2"), say("done"))
    talk = await api.open()
    await talk.send(tools=[TOOL | {"timeout_s": 0.05}])
    frames = await talk.stream.until_status("waiting")
    (first, second) = frames[-1].data["required_actions"]
    assert 0 < first["expires_at"] - frames[-1].data["at"] <= 0.06 and second["expires_at"] == first["expires_at"]
    sent = await done(talk)
    assert [call_id for call_id, _ in sent] == ["c1", "c2"]
    items = await talk.items()
    assert [item["status"] for item in items if item["type"] == "function_call"] == ["incomplete"] * 2
    assert {(item["origin"], item["is_error"]) for item in items if item["type"] == "function_call_output"} == {
        ("harness", True)
    }
    for call_id in ("c1", "c2"):
        error = await talk.refused(output(call_id), status=409, code="call_closed", param="data.call_id")
        assert error["closed_by"] == "deadline"


async def test_the_agents_deadline_holds_where_the_tool_names_none(serve):
    api = await serve(calls("c1"), say("done"), calls("c2"))
    talk = await api.open(agent={"tool_timeout_s": 0.05})
    await talk.send(tools=[TOOL])
    await talk.stream.until_status("waiting")
    assert len(await done(talk)) == 1
    assert (await api.ask("PATCH", talk.path, json={"agent": {"tool_timeout_s": 99}})).status == 200
    await talk.park()
    (action,) = (await talk.snapshot())["required_actions"]
    assert set(action) == {"type", "response_id", "call_id", "name", "arguments", "expires_at"}
    assert (action["type"], action["name"], action["arguments"]) == ("function_call", "look_up", LOOK)
    assert action["expires_at"] > (await talk.snapshot())["created_at"] + 90


async def test_a_call_without_deadline_expires_never(serve):
    api = await serve(calls("c1"))
    talk = await api.open(agent={"tool_timeout_s": None})
    await talk.park()
    assert (await talk.snapshot())["required_actions"][0]["expires_at"] is None


@pytest.mark.parametrize(
    "step",
    [
        call("nope", "{}", "c1"),
        call("look_up", "[1]", "c1"),
        call("look_up", '{"a":', "c1"),
        call("a\nevent: x", "{}", "c1"),
    ],
)
async def test_a_call_the_harness_answers_itself_is_closed_by_the_harness(serve, step):
    api = await serve(step, say("sorry"))
    talk = await api.open()
    await talk.send(tools=[TOOL])
    frames = await talk.stream.until_status("idle")
    items = [frame.data["item"] for frame in frames if frame.event == "response.output_item.done"]
    assert [item["status"] for item in items] == ["failed", "completed", "completed"]
    assert items[1]["type"] == "function_call_output" and items[1]["origin"] == "harness" and items[1]["is_error"]
    assert "session.status waiting" not in types(frames)
    assert outputs(api.model, 1)[0][0] == "c1"
    error = await talk.refused(output("c1"), status=409, code="call_closed", param="data.call_id")
    assert error["closed_by"] == "harness"


async def test_a_call_is_found_by_its_id_wherever_it_stands(serve):
    """B144: a queued message, a steered one and a sibling's output stand behind it."""
    talk = await parked(serve, "c1", "c2", then=(say("done"), say("queued")))
    await talk.send("queued")
    await talk.send("steered", delivery="steer")
    await talk.result("c2")
    await talk.result("c1")
    assert await done(talk) == [("c1", "ok"), ("c2", "ok")]


async def test_a_result_may_come_over_another_connection(serve):
    """B145."""
    talk = await parked(serve, "c1")
    url = talk.api.client.make_url(f"{talk.path}/events")
    async with aiohttp.ClientSession() as other:
        async with other.post(
            url, data=json.dumps(output("c1")), headers={"Content-Type": "application/json"}
        ) as answer:
            assert answer.status == 202
    assert await done(talk) == [("c1", "ok")]
