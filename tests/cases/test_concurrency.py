"""
Messages that come while a turn runs.
"""

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from agent_harness.testing.strict import Dialect
from tests.cases.rig import DIALECTS, begun, calling
from tests.sockets import dial, post, receive, reset, see_gone, written
from tests.support import WAIT_S, user

both = pytest.mark.parametrize("dialect", DIALECTS)


@both
async def test_of_two_messages_at_once_the_second_sees_the_first_ones_whole_turn(play: Any, dialect: Dialect) -> None:
    """
    B131: with a slow upstream; whichever came first, the other runs after it.
    """
    case = await play(dialect, {"text": "one", "block": True}, {"text": "two"})
    first, second = await asyncio.gather(case.send("A"), case.send("B"))
    assert sorted([first["queued"], second["queued"]]) == [False, True]
    await case.parked(1)
    assert len(await case.requests()) == 1
    await case.release()
    assert await case.rests() == "idle"
    texts = await case.texts()
    assert [role for role, _ in texts] == ["user", "assistant", "user", "assistant"]
    assert [text for role, text in texts if role == "assistant"] == ["one", "two"]
    last = (await case.requests())[-1]
    assert (last.status, last.said) == (200, texts[:3])


@both
async def test_a_message_can_be_refused_while_a_turn_runs(play: Any, dialect: Dialect) -> None:
    """
    B131, B123: ``delivery`` reject, the other answer that a client may choose.
    """
    case = await play(dialect, calling("c1"), {"text": "one"})
    await case.send("A")
    await case.waiting()
    await case.refused(user("B", delivery="reject"), status=409, code="turn_in_progress")
    await case.result("c1")
    assert await case.rests() == "idle"
    assert [text for _, text in await case.texts()] == ["A", "one"]


@both
@pytest.mark.parametrize("delivery", ["queue", "steer"])
async def test_a_message_never_comes_between_a_call_and_its_output(play: Any, dialect: Dialect, delivery: str) -> None:
    """
    B132, B123: with ``queue`` it is the next turn's, with ``steer`` it enters the next request, behind the outputs. The
    answer says for which calls it waits.
    """
    case = await play(dialect, calling("c1", "c2"), {"text": "one"}, {"text": "two"})
    await case.send("go")
    await case.waiting()
    sent = await case.send("joke?", delivery=delivery)
    assert [action["call_id"] for action in sent["waiting_for"]] == ["c1", "c2"]
    await case.result("c1")
    await case.result("c2")
    assert await case.rests() == "idle"
    requests = await case.requests()
    assert [request.status for request in requests] == [200] * (3 if delivery == "queue" else 2)
    said = [entry[0] for entry in requests[1].said]
    assert said == ["user", "call", "call", "output", "output", *(["user"] if delivery == "steer" else [])]
    assert requests[-1].said[-1] == ("user", "joke?")


@both
async def test_a_waiting_message_whose_client_leaves_holds_up_nobody(play: Any, dialect: Dialect) -> None:
    """
    B134: it was accepted, so it runs, and the next one after it.
    """
    case = await play(dialect, {"text": "one", "block": True}, {"text": "two"}, {"text": "three"})
    await case.send("first")
    await case.parked(1)
    async with aiohttp.ClientSession() as other:
        url = case.api.client.make_url(f"{case.path}/events?stream=true")
        async with other.post(url, json=user("second")) as stream:
            assert stream.status == 200
            await stream.content.readuntil(b"\n\n")
            stream.close()
    await case.send("third")
    await case.release()
    assert await case.rests() == "idle"
    assert [text for _, text in await case.texts()] == ["first", "one", "second", "two", "third", "three"]
    assert [request.status for request in await case.requests()] == [200] * 3


@both
async def test_a_message_whose_client_leaves_before_its_answer_is_taken_and_runs(play: Any, dialect: Dialect) -> None:
    """
    B134: a plain POST, whole, behind a turn that runs; it waits in its place like others.
    """
    taken, left = asyncio.Event(), asyncio.Event()

    @web.middleware
    async def hold_back(request: web.Request, handler: Any) -> web.StreamResponse:
        answer: web.StreamResponse = await handler(request)
        if "x-leaves" in request.headers:
            taken.set()
            await left.wait()
        return answer

    case = await play(dialect, {"text": "one", "block": True}, {"text": "two"}, {"text": "three"}, middleware=hold_back)
    await case.send("first")
    await case.parked(1)
    leaving = await post(case.api.client.port, f"{case.path}/events", user("second"), "X-Leaves: yes")
    port = leaving.getsockname()[1]
    async with asyncio.timeout(WAIT_S):
        await taken.wait()
    reset(leaving)
    await see_gone(case.api.client.server, port)
    left.set()
    await case.send("third")
    await case.release()
    assert await case.rests() == "idle"
    assert [text for _, text in await case.texts()] == ["first", "one", "second", "two", "third", "three"]
    assert [request.status for request in await case.requests()] == [200] * 3


@both
@pytest.mark.parametrize("warm", [False, True], ids=["first turn", "later turn"])
async def test_an_interrupt_sent_in_one_write_with_its_message_cancels_the_turn(
    play: Any, dialect: Dialect, warm: bool
) -> None:
    """
    B126: on one connection, the answer to neither waited for. The model is not asked; where a connection to it is open
    it may be, and the request is dropped. The next turn is not cancelled.
    """
    case = await play(dialect, {"text": "before"})
    if warm:
        await case.says("first")
    await case.script({"text": "no", "block": True})
    before = len(await case.requests())
    target = f"{case.path}/events"
    both_at_once = b"".join(
        written("POST", target, json.dumps(body).encode()) for body in (user("go"), {"type": "interrupt"})
    )
    client = await dial(case.api.client.port, both_at_once)
    got = await receive(client, b'"interrupted":')
    client.close()
    assert got.count(b"HTTP/1.1 202 ") == 2 and b'"interrupted":true' in got
    await case.stream.until("response.cancelled")
    assert await case.rests() == "idle"
    await case.upstreams(0)
    asked = [request.status for request in (await case.requests())[before:]]
    assert asked in ([[], [None]] if warm else [[]])
    await case.script({"text": "fine"})
    assert (await case.says("next"))["status"] == "completed"
    last = (await case.requests())[-1]
    told = [text for (text,) in last.of("user")][-3:]
    assert last.status == 200 and (told[0], told[2]) == ("go", "next") and "interrupted" in told[1]


@both
@pytest.mark.parametrize("clears", [False, True], ids=["queue stays", "queue is cleared"])
async def test_an_interrupt_loses_no_waiting_message_unless_it_says_which(
    play: Any, dialect: Dialect, clears: bool
) -> None:
    """
    B128: they run next, in order; with ``clear_queue`` the answer and the events list them, and none is sent.
    """
    entries = [{"text": "no", "block": True}, {"text": "two"}, {"text": "three"}, {"text": "four"}]
    case = await play(dialect, *entries)
    await case.send("first")
    await case.parked(1)
    waiting = [await case.send("second"), await case.send("third")]
    ids = [sent["item_id"] for sent in waiting]
    answer = await case.interrupt(clear_queue=clears)
    assert (answer["interrupted"], answer["dropped"]) == (True, ids if clears else [])
    assert await case.rests() == "idle"
    gone = [frame.data["item"] for frame in case.stream.frames if frame.event == "session.item"]
    assert [item["id"] for item in gone if item["status"] == "cancelled"] == (ids if clears else [])
    ends = [(await case.record(sent))["status"] for sent in waiting]
    assert ends == (["cancelled"] * 2 if clears else ["completed"] * 2)
    assert (await case.says("fourth"))["status"] == "completed"
    last = (await case.requests())[-1]
    told = [text for (text,) in last.of("user") if "interrupted" not in text]
    assert told == (["first", "fourth"] if clears else ["first", "second", "third", "fourth"])
    assert [request.status for request in (await case.requests())[1:]] == [200] * (1 if clears else 3)


@both
async def test_messages_sent_during_a_turn_run_in_their_order(play: Any, dialect: Dialect) -> None:
    """
    B135: waiting ones, and steered ones among them.
    """
    case = await play(dialect, {"text": "a", "block": begun(dialect)}, *[{"text": text} for text in "bcd"])
    await case.send("A")
    await case.parked(1)
    for text, delivery in (("B", "queue"), ("S1", "steer"), ("C", "queue"), ("S2", "steer")):
        await case.send(text, delivery=delivery)
    await case.release()
    assert await case.rests() == "idle"
    assert [text for role, text in await case.texts() if role == "user"] == ["A", "S1", "S2", "B", "C"]
    requests = await case.requests()
    assert [request.of("user")[-1] for request in requests] == [("A",), ("S2",), ("B",), ("C",)]
    assert [request.status for request in requests] == [200] * 4


CANCELS = ["before the first byte", "in the text", "in the arguments", "calls open", "one answered", "second request"]


@both
@pytest.mark.parametrize("when", CANCELS)
async def test_an_interrupt_at_any_moment_leaves_a_past_that_can_be_sent(
    play: Any, dialect: Dialect, when: str
) -> None:
    """
    B130, B001, B002, B013: half a call vanishes, an announced one is closed with words about the interrupt, a result
    that came is kept, and the model is told; a second message works too.
    """
    frames = {
        "before the first byte": True,
        "in the text": begun(dialect),
        "in the arguments": {"responses": 10, "chat": 5}[dialect],
    }
    first = calling("c1", "c2", text="I will push", arguments='{"a": 1}', block=frames.get(when))
    case = await play(dialect, first, {"text": "no", "block": True})
    await case.send("go")
    if when in frames:
        await case.parked(1)
    else:
        await case.waiting()
        if when != "calls open":
            await case.result("c1", "A")
        if when == "second request":
            await case.result("c2", "B")
            await case.parked(1)
    assert (await case.interrupt())["interrupted"] is True
    assert await case.rests() == "idle"
    await case.upstreams(0)
    await case.script({"text": "fine"}, {"text": "still"})
    assert (await case.says("next"))["status"] == "completed"
    assert (await case.says("third"))["status"] == "completed"
    requests = (await case.requests())[-2:]
    assert [request.status for request in requests] == [200, 200]
    outputs = dict(requests[0].of("output"))
    assert list(outputs) == ([] if when in frames else ["c1", "c2"])
    if outputs:
        assert (outputs["c1"] == "A") is (when != "calls open")
        assert (outputs["c2"] == "B") is (when == "second request")
        assert all("interrupted" in text for text in outputs.values() if text not in ("A", "B"))
    told = [text for (text,) in requests[0].of("user")]
    assert told[0] == "go" and "interrupted" in told[1] and told[2] == "next" and len(told) == 3
    assert [text for role, text in await case.texts() if role == "assistant" and "interrupted" in text] == []
