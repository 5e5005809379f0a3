"""
Calls that are not as they should be: unknown names, broken arguments, ids that are missing, long or used before.
"""

from typing import Any

import orjson
import pytest

from agent_harness.errors import Conflict, NotFound
from agent_harness.llm.base import Ended
from agent_harness.llm.scripted import Step, call, say
from agent_harness.protocol import events as said
from agent_harness.protocol.items import FunctionCall
from tests.engine.rig import Rig, open_rig

BROKEN = ['{"value": ', '"text"', '{"a":NaN}', '{"a":Infinity}', '{"a":1e999}', "{'a': 1}", '{"a" 1}', '"[1]"']
CALL_TYPES = ("function_call", "function_call_output")


def calls(rig: Rig, number: int = -1) -> list[FunctionCall]:
    """
    The calls in one request.
    """
    return [item for block in rig.requests[number].blocks for item in block.items if isinstance(item, FunctionCall)]


def outputs(rig: Rig, number: int = -1) -> list[str]:
    """
    The outputs in one request, as the model reads them.
    """
    return [text.partition("=")[2] for text in rig.sent(number) if text.startswith("output:")]


def items(rig: Rig, *types: str) -> list[Any]:
    """
    The snapshot's items of the types given.
    """
    return [item for item in rig.snapshot["items"] if item["type"] in types]


# What the harness answers itself.


async def test_a_call_of_an_unknown_tool_is_answered_by_the_harness() -> None:
    """
    B147: never announced, an error output that names what there is, counted against the bound.
    """
    async with open_rig([call("get_date", "{}", "c1"), say("fine")]) as rig:
        sent = rig.send()
        assert await rig.settled() == "idle"
        (text,) = outputs(rig)
        assert text.startswith("Error: ")
        assert "look" in text
        assert "find" in text
        asked, answer = items(rig, *CALL_TYPES)
        assert (asked["status"], answer["origin"], answer["is_error"]) == ("failed", "harness", True)
        assert "waiting" not in [event.status for event in rig.all(said.SessionStatus)]
        assert rig.session.transcript.turns[sent.response_id].model_calls == 2
        with pytest.raises(Conflict) as refused:
            rig.result("c1")
        assert (refused.value.code, refused.value.extra["closed_by"]) == ("call_closed", "harness")


async def test_calls_that_can_be_run_wait_beside_those_that_cannot() -> None:
    """
    B147, B023: told in call order in one step, and sent in call order.
    """
    three = call("nope", "{}", "c1") + call("look", "{}", "c2") + call("find", "{", "c3")
    async with open_rig([three, say("fine")]) as rig:
        rig.send()
        await rig.waiting()
        assert rig.open == ["c2"]
        done = [event.item for event in rig.all(said.OutputItemDone)]
        assert [(item.type, item.call_id, item.status) for item in done] == [
            ("function_call", "c1", "failed"),
            ("function_call_output", "c1", "completed"),
            ("function_call", "c2", "action_required"),
            ("function_call", "c3", "failed"),
            ("function_call_output", "c3", "completed"),
        ]
        rig.result("c2", "mine")
        await rig.settled()
        assert [text.partition("=")[0] for text in rig.sent() if text.startswith("output:")] == [
            "output:c1",
            "output:c2",
            "output:c3",
        ]


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "näme", "a\0b", "look\n", "look.x", "\ud800", "🛠"])
async def test_a_name_that_no_request_may_carry_is_answered_and_sent_in_a_form_that_passes(name: str) -> None:
    """
    B147: the call stays in the past for good, so its name must pass for good.
    """
    async with open_rig([call(name, "{}", "c1"), say("fine"), say("still")]) as rig:
        rig.send()
        assert await rig.settled() == "idle"
        assert outputs(rig)[0].startswith("Error: ")
        rig.send()
        assert await rig.settled() == "idle"


@pytest.mark.parametrize(
    "raw", [*["3", "true", "null2", "-", "{}{}", "[1,2]", "nope"], *BROKEN, "\0", "[" * 2000, '{"a":' * 2000, "\ud800"]
)
async def test_arguments_that_are_no_object_are_answered_by_the_harness_and_sent_as_an_object(raw: str) -> None:
    """
    B054, B059: not sent to the client; an error output that tells the problem; the raw text stays readable.
    """
    async with open_rig([call("look", raw, "c1"), say("fine")]) as rig:
        rig.send()
        assert await rig.settled() == "idle"
        assert rig.open == []
        assert isinstance(orjson.loads(calls(rig)[0].arguments), dict)
        assert outputs(rig)[0].startswith("Error: ")
        assert "JSON object" in outputs(rig)[0]
        assert "waiting" not in [event.status for event in rig.all(said.SessionStatus)]


async def test_the_raw_text_of_broken_arguments_stays_where_the_model_can_read_it() -> None:
    """
    B054: quoted in what is sent.
    """
    async with open_rig([call("look", '{"value": ', "c1"), say("fine")]) as rig:
        rig.send()
        await rig.settled()
        assert '{"value": ' in orjson.loads(calls(rig)[0].arguments).values()


@pytest.mark.parametrize(
    "raw, read",
    [
        ('"{\\"city\\":\\"NY\\"}"', {"city": "NY"}),
        ('{"t":"a\nb\tc"}', {"t": "a\nb\tc"}),
        ("", {}),
        ("  ", {}),
        ("null", {}),
        ('{"a": "\\ud800"}', {"a": "\ufffd"}),
    ],
)
async def test_arguments_that_can_be_read_leniently_reach_client_and_model_as_strict_json(raw: str, read: Any) -> None:
    """
    B057, B058, B059: an object inside a string, raw control characters, nothing at all.
    """
    async with open_rig([call("look", raw, "c1"), say("fine")]) as rig:
        rig.send()
        await rig.waiting()
        announced = rig.snapshot["required_actions"][0]["arguments"]
        assert orjson.loads(announced) == read
        done = rig.all(said.ArgumentsDone)[0].arguments
        assert done == announced
        rig.result("c1")
        await rig.settled()
        assert calls(rig)[0].arguments == announced


@pytest.mark.parametrize(
    "raw", ['{"a":1,"a":2}', '{ "b" : 1e2 }\n', '{"é":"\\u00e9","n":123456789012345678901234567890}']
)
async def test_the_text_of_an_object_reaches_client_and_model_to_the_letter(raw: str) -> None:
    """
    Rule 5, B056's twin: whitespace, double keys and large numbers as the model wrote them.
    """
    async with open_rig([call("look", raw, "c1"), say("fine")]) as rig:
        rig.send()
        await rig.waiting()
        assert rig.snapshot["required_actions"][0]["arguments"] == raw
        rig.result("c1")
        await rig.settled()
        assert calls(rig)[0].arguments == raw


# Call ids.


async def test_a_call_without_an_id_gets_one_that_works_everywhere() -> None:
    """
    B035, B036: two calls without ids stay apart; the same id in event, snapshot, result and request.
    """
    async with open_rig([call("look") + call("find"), say("fine")]) as rig:
        rig.send()
        first, second = await rig.waiting(2)
        assert first
        assert second
        assert first != second
        told = [event.item.call_id for event in rig.all(said.OutputItemAdded)]
        assert told == [first, second]
        rig.batch({"call_id": second, "output": "2"}, {"call_id": first, "output": "1"})
        await rig.settled()
        assert outputs(rig) == ["1", "2"]


async def test_an_id_that_comes_again_gets_a_fresh_one_for_call_and_output() -> None:
    """
    B032: within one answer, across rounds and across turns; the client's result by the fresh id works.
    """
    twice = call("look", "{}", "t:0") + call("find", "{}", "t:0")
    async with open_rig([twice, call("look", "{}", "t:0"), say("fine"), call("look", "{}", "t:0"), say("end")]) as rig:
        rig.send()
        seen = list(await rig.waiting(2))
        for call_id in list(rig.open):
            rig.result(call_id)
        await rig.until(lambda: rig.open and rig.open[0] not in seen)
        seen += rig.open
        rig.result(seen[2], "next round")
        await rig.settled()
        rig.send()
        seen += await rig.waiting()
        rig.result(seen[3], "next turn")
        await rig.settled()
        assert len(set(seen)) == 4
        assert seen[0] == "t:0"
        assert [asked.call_id for asked in calls(rig)] == seen


async def test_an_id_of_a_call_that_was_never_announced_is_not_given_to_another() -> None:
    """
    B032: a cut answer's call keeps its id to itself, so that a result can mean only one call.
    """
    cut = Step((*call("look", "{}", "c1").parts, Ended("max_output_tokens")))
    async with open_rig([cut, call("look", "{}", "c1"), say("fine")]) as rig:
        rig.send()
        await rig.settled()
        rig.send()
        (call_id,) = await rig.waiting()
        assert call_id != "c1"
        with pytest.raises(NotFound):
            rig.result("c1")
        rig.result(call_id)
        await rig.settled()


@pytest.mark.parametrize("given", ["x" * 65, "y" * 94, "é" * 65])
async def test_an_id_that_is_too_long_gets_a_short_one_and_two_with_one_beginning_stay_apart(given: str) -> None:
    """
    B039: at most 64 characters upstream, still distinct.
    """
    async with open_rig([call("look", "{}", given + "1") + call("find", "{}", given + "2"), say("fine")]) as rig:
        rig.send()
        first, second = await rig.waiting(2)
        assert first != second
        assert max(len(first), len(second)) <= 64
        rig.result(second, "2")
        rig.result(first, "1")
        await rig.settled()
        assert outputs(rig) == ["1", "2"]


@pytest.mark.parametrize("given", ["z" * 64, "a", "call:1/2 é", "呼び出し", "🛠", " "])
async def test_an_id_of_one_to_64_characters_is_kept_as_it_is(given: str) -> None:
    """
    B039: wire.md, "`call_id` is the model's where it has 1–64 characters and is new in this session".
    """
    async with open_rig([call("look", "{}", given), say("fine")]) as rig:
        rig.send()
        assert await rig.waiting() == [given]
        rig.result(given, "mine")
        await rig.settled()
        assert outputs(rig) == ["mine"]
