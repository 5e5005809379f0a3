"""
Call ids and the pieces of streamed calls, from a model server's stream to its next request and back.
"""

from typing import Any

import pytest

from agent_harness.testing.strict import Dialect
from tests.cases.rig import DIALECTS, Case, calling, chat_stream, raw_calls, responses_stream

both = pytest.mark.parametrize("dialect", DIALECTS)
ANSWER = {"text": "done"}


async def answer(case: Case) -> list[str]:
    """
    Answer the calls that are open, each by the id under which it was announced; these ids.
    """
    call_ids = [action["call_id"] for action in await case.waiting()]
    for call_id in reversed(call_ids):
        await case.result(call_id, f"of {call_id}")
    return call_ids


@both
async def test_ids_that_come_again_get_fresh_ones_that_work_everywhere(play: Any, dialect: Dialect) -> None:
    """
    B032: in the next round and in the next turn; the fresh id is the same in every later request.
    """
    case = await play(dialect, *[calling("t:0", "t:1")] * 2, ANSWER, calling("t:0", "t:1"), ANSWER)
    await case.send()
    seen = [*await answer(case), *await answer(case)]
    assert await case.rests() == "idle"
    await case.send()
    seen += await answer(case)
    assert await case.rests() == "idle"
    assert seen[:2] == ["t:0", "t:1"]
    assert len(set(seen)) == 6
    requests = await case.requests()
    assert [request.status for request in requests] == [200] * 5
    for request in requests:
        calls = [call_id for call_id, *_ in request.of("call")]
        assert calls == seen[: len(calls)]
        assert request.of("output") == [(call_id, f"of {call_id}") for call_id in calls]
    assert len(requests[-1].of("call")) == 6


@both
@pytest.mark.parametrize("given", [(), (None,), ("",)], ids=["missing", "null", "empty"])
async def test_a_call_without_an_id_gets_one_that_works_everywhere(play: Any, dialect: Dialect, given: Any) -> None:
    """
    B035: the same id in the stream, in the snapshot, for the result and in every later request.
    """
    case = await play(dialect, raw_calls(dialect, ("look", "{}", *given)), ANSWER, {"text": "again"})
    await case.send()
    (call_id,) = await answer(case)
    assert call_id
    await case.rests()
    assert (await case.says())["status"] == "completed"
    told = [frame.data["item"] for frame in case.stream.frames if frame.data.get("item", {}).get("call_id")]
    assert {item["call_id"] for item in told} == {call_id}
    for request in (await case.requests())[1:]:
        assert request.status == 200
        assert (request.of("call"), request.of("output")) == ([(call_id, "look", "{}")], [(call_id, f"of {call_id}")])


@both
async def test_long_ids_with_one_beginning_become_short_ones_that_stay_apart(play: Any, dialect: Dialect) -> None:
    """
    B039: 94 characters, of which the first 64 are the same; one of 64 is kept.
    """
    long = ["x" * 64 + "a" * 30, "x" * 64 + "b" * 30, "y" * 64]
    case = await play(dialect, calling(*long), ANSWER, {"text": "again"})
    await case.send()
    call_ids = await answer(case)
    await case.rests()
    assert (await case.says())["status"] == "completed"
    assert len(set(call_ids)) == 3
    assert max(map(len, call_ids)) == 64
    assert call_ids[2] == long[2]
    assert not set(call_ids[:2]) & {each[:64] for each in long}
    for request in (await case.requests())[1:]:
        assert request.status == 200
        assert request.of("output") == [(call_id, f"of {call_id}") for call_id in call_ids]


async def test_the_id_that_was_announced_wins_over_the_one_in_the_final_event(play: Any) -> None:
    """
    B038.
    """
    item = {"type": "function_call", "id": "fc_1", "call_id": "A", "name": "look", "arguments": "{}"}
    raw = responses_stream(item)
    raw[-1] = raw[-1].replace('"A"', '"B"')
    case = await play("responses", {"raw": raw}, ANSWER)
    await case.send()
    assert await answer(case) == ["A"]
    assert await case.rests() == "idle"
    request = (await case.requests())[1]
    assert (request.status, request.of("call")) == (200, [("A", "look", "{}")])
    assert request.of("output") == [("A", "of A")]


async def test_an_item_id_of_null_is_not_sent_back(play: Any) -> None:
    """
    B089.
    """
    item = {"type": "function_call", "id": None, "call_id": "A", "name": "look", "arguments": "{}"}
    case = await play("responses", {"raw": responses_stream(item)}, ANSWER)
    await case.send()
    await answer(case)
    assert await case.rests() == "idle"
    request = (await case.requests())[1]
    assert request.status == 200
    assert all("id" not in item for item in request.body["input"])


def piece(args: str | None = None, name: str | None = None, **fields: Any) -> dict[str, Any]:
    """
    A delta with one piece of a call; what is None is left out of its function.
    """
    function = {key: value for key, value in (("name", name), ("arguments", args)) if value is not None}
    return {"tool_calls": [{**fields, "function": function}]}


PIECES: dict[str, tuple[list[dict[str, Any]], list[tuple[str | None, str, str]]]] = {
    "B036: the second has no id": (
        [
            piece("", "look", index=0, id="a"),
            piece("", "find", index=1, id=None),
            piece("{}", index=0),
            piece('{"q":1}', index=1),
        ],
        [("a", "look", "{}"), (None, "find", '{"q":1}')],
    ),
    "B041: no index": (
        [piece("{}", "look", id="a"), piece("{}", "find", id="b", index=None)],
        [("a", "look", "{}"), ("b", "find", "{}")],
    ),
    "B042: arguments before the name": (
        [piece('{"q":', id="a"), piece("1}", "look", id="a")],
        [("a", "look", '{"q":1}')],
    ),
    "B043: one index, two ids": (
        [piece('{"q":1}', "look", index=0, id="a"), piece('{"q":2}', "look", index=0, id="b")],
        [("a", "look", '{"q":1}'), ("b", "look", '{"q":2}')],
    ),
    "B046: the name in each piece": (
        [piece(part, "look", index=0, id="a") for part in ("", '{"q":', "1}")],
        [("a", "look", '{"q":1}')],
    ),
    "B047: the name in two pieces": (
        [piece(None, "lo", index=0, id="a"), piece(None, "ok", index=0), piece("{}", "", index=0)],
        [("a", "look", "{}")],
    ),
    "B050: index 1 alone": (
        [{"content": "Let me look"}, piece("", "look", index=1, id="a"), piece("{}", index=1)],
        [("a", "look", "{}")],
    ),
    "B052: white space between": (
        [piece("{}", "look", index=0, id="a"), {"content": "\n"}, piece("{}", "find", index=0, id="b")],
        [("a", "look", "{}"), ("b", "find", "{}")],
    ),
}


@pytest.mark.parametrize("name", PIECES)
async def test_calls_in_odd_pieces_are_announced_once_and_answered(play: Any, name: str) -> None:
    """
    B036, B041, B042, B043, B046, B047, B050, B052: what is announced is what the next request holds.
    """
    deltas, wanted = PIECES[name]
    case = await play("chat", {"raw": chat_stream(*deltas)}, ANSWER)
    await case.send()
    actions = await case.waiting()
    assert [(action["name"], action["arguments"]) for action in actions] == [call[1:] for call in wanted]
    assert all(call_id in (None, action["call_id"]) for action, (call_id, *_) in zip(actions, wanted, strict=True))
    added = [frame.data["item"] for frame in case.stream.frames if frame.event == "response.output_item.added"]
    assert [item["name"] for item in added if item["type"] == "function_call"] == [call[1] for call in wanted]
    assert len([item for item in added if item["type"] == "message"]) == ("content" in deltas[0])
    for action in actions:
        await case.result(action["call_id"], action["name"])
    assert await case.rests() == "idle"
    request = (await case.requests())[1]
    assert request.status == 200
    assert request.of("call") == [(action["call_id"], *call[1:]) for action, call in zip(actions, wanted, strict=True)]
    assert request.of("output") == [(action["call_id"], action["name"]) for action in actions]


@pytest.mark.parametrize(
    "delta",
    [{"tool_calls": [{"index": 0, "id": "", "type": "function"}]}, {"tool_calls": []}],
    ids=["B037 a ghost", "B051 none"],
)
async def test_a_text_beside_no_real_call_ends_the_turn(play: Any, delta: dict[str, Any]) -> None:
    """
    B037, B051: the message goes back without calls, and nothing is answered.
    """
    case = await play("chat", {"raw": chat_stream({"content": "All done", **delta}, delta, finish="stop")}, ANSWER)
    sent = await case.send("go")
    assert await case.rests() == "idle"
    assert (await case.record(sent))["status"] == "completed"
    assert (await case.says("next"))["status"] == "completed"
    request = (await case.requests())[1]
    assert (request.status, request.said) == (200, [("user", "go"), ("assistant", "All done"), ("user", "next")])
    assert all("tool_calls" not in message for message in request.body["messages"])
