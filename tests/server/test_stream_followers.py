"""
Many followers, slow ones, and those that leave and come back.
"""

import asyncio
import logging

import pytest
from yarl import URL

from agent_harness.llm.base import Ended, ItemAdded, ItemDone, TextDelta
from agent_harness.llm.scripted import ScriptedModel, Step, call, say
from agent_harness.server import HARNESS
from tests.sockets import get, post, receive, reset
from tests.support import DONE, TOOL, WAIT_S, Stream, Talk, types, user

LOOK = '{"widget_id": 1}'


def errors(caplog):
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


def feed(talk: Talk):
    return talk.api.client.app[HARNESS].get(talk.id).feed


async def test_two_followers_get_the_identical_events(serve):
    """B120."""
    api = await serve(call("look_up", LOOK, "c1"), say("one", "two"))
    talk = await api.open()
    others = [await talk.follow() for _ in range(3)]
    for other in others:
        await other.next()
    await talk.park()
    await talk.result("c1")
    await talk.stream.until_status("idle")
    for other in others:
        await other.until_status("idle")
        assert [frame.raw for frame in other.frames[1:]] == [frame.raw for frame in talk.stream.frames[1:]]


async def test_a_follower_that_drops_after_each_frame_and_comes_back_sees_each_event_exactly_once(serve):
    """B112."""
    api = await serve(say("one ", "two") + call("look_up", LOOK, "c1"), say("done"))
    talk = await api.open()
    await talk.park()
    seen: list[int] = []
    last = 0
    answered = False
    while True:
        stream = await talk.follow(last_id=last)
        await stream.next()
        frame = await stream.next()
        assert frame is not None and frame.id is not None
        stream.close()
        seen.append(frame.id)
        last = frame.id
        if frame.event == "session.status" and frame.data["status"] == "waiting" and not answered:
            answered = True
            await talk.result("c1")
        if frame.event == "session.status" and frame.data["status"] == "idle":
            break
    assert seen == list(range(1, last + 1))
    await talk.stream.until_status("idle")
    assert last == talk.stream.frames[-1].id


async def test_events_that_come_during_a_replay_are_neither_lost_nor_doubled(serve):
    """B112, many times under load."""
    pieces = [TextDelta(0, f"{n} ") for n in range(150)]
    api = await serve(Step((ItemAdded(0, "message"), *pieces, ItemDone(0))))
    talk = await api.open()
    streams: list[tuple[int, Stream]] = []

    async def attach(number: int) -> None:
        streams.append((number, await talk.follow(last_id=number, until="idle")))

    await talk.send()
    await talk.stream.until("response.created")
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(attach(n % 3) for n in range(100)))
    await talk.stream.until_status("idle")
    newest = talk.stream.frames[-1].id
    for number, stream in streams:
        frames = await stream.rest()
        ids = [frame.id for frame in frames if frame.id]
        assert ids == list(range(number + 1, newest + 1)) and frames[-1].data == DONE


@pytest.mark.parametrize("order", ["stream first", "message first"])
async def test_the_end_of_a_turn_is_seen_by_whoever_attaches_while_it_is_posted(serve, order):
    """B122."""
    rounds = 60
    api = await serve(*[say("hi")] * rounds)

    async def follow(talk: Talk) -> list[str]:
        stream = await talk.follow()
        first = await stream.next()
        if first.data["status"] == "idle" and first.seq > 0:
            snapshot = await talk.snapshot()
            stream.close()
            assert snapshot["seq"] == first.seq and len(snapshot["items"]) == 2
            return ["response.completed"]
        frames = await stream.until("response.completed")
        assert [frame.id for frame in frames] == list(range(first.seq + 1, frames[-1].id + 1))
        stream.close()
        return types(frames)

    for _ in range(rounds):
        talk = Talk(api, (await api.create())["id"])
        both = [follow(talk), talk.send()]
        if order == "message first":
            both.reverse()
        async with asyncio.timeout(WAIT_S):
            answers = await asyncio.gather(*both)
        seen = next(answer for answer in answers if isinstance(answer, list))
        assert seen[-1] == "response.completed"


async def test_the_snapshot_and_its_seq_agree_with_the_stream(serve):
    """B122: whoever reads a snapshot and follows from its seq misses and repeats nothing."""
    gate = asyncio.Event()
    api = await serve(Step((ItemAdded(0, "message"), TextDelta(0, "par"), gate, TextDelta(0, "tial"), ItemDone(0))))
    talk = await api.open()
    await talk.send()
    await talk.stream.until("response.output_text.delta")
    snapshot = await talk.snapshot()
    text = snapshot["items"][1]["content"][0]["text"]
    stream = await talk.follow(after=snapshot["seq"], until="idle")
    gate.set()
    frames = await stream.rest()
    text += "".join(frame.data["delta"] for frame in frames if frame.event == "response.output_text.delta")
    assert text == "partial"


async def test_a_follower_that_falls_behind_is_told_and_cut_and_resumes_by_number(serve, caplog):
    pieces = [TextDelta(0, "x" * 40_000) for _ in range(500)]
    gate = asyncio.Event()
    step = Step((ItemAdded(0, "message"), gate, *pieces, ItemDone(0)))
    api = await serve(step, say("next"), replay_events=50, backlog_events=50)
    talk = Talk(api, (await api.create())["id"])
    slow = await talk.follow()
    await slow.next()
    fast = await talk.follow(until="idle")
    await talk.send()
    gate.set()
    done = (await fast.rest())[-2]
    assert types([done]) == ["session.status idle"]
    frames = await slow.rest()
    assert frames[-1].event == "session.lagged" and frames[-1].id is None
    assert DONE not in types(frames)
    ids = [frame.id for frame in frames if frame.id]
    assert ids == list(range(1, len(ids) + 1)) and ids[-1] < done.id
    again = await (await talk.follow(last_id=ids[-1], until="idle")).rest()
    assert types(again)[1] == "session.gap" and again[1].data["first_seq"] == done.id - 49
    assert [frame.id for frame in again if frame.id] == list(range(done.id - 49, done.id + 1))
    await talk.turn()
    assert not errors(caplog)


async def test_a_number_below_the_newest_is_a_gap_when_nothing_is_kept(serve):
    api = await serve(say("one"), say("two"))
    talk = await api.open()
    await talk.turn()
    await talk.stream.until_status("idle")
    seq = (await talk.snapshot())["seq"]
    feed(talk).forget()
    frames = await (await talk.follow(after=seq - 1, until="idle")).rest()
    assert types(frames) == ["session.status idle", "session.gap", DONE]
    assert (frames[1].data["first_seq"], frames[1].seq) == (None, seq)
    assert types(await (await talk.follow(after=seq, until="idle")).rest()) == ["session.status idle", DONE]
    await talk.turn()
    assert (await talk.stream.until_status("idle"))[0].id == seq + 1


async def test_a_follower_that_leaves_cancels_nothing_and_logs_nothing(serve, caplog):
    """B119: RST between two events, before the answer begins, and before the end."""
    gate = asyncio.Event()
    step = Step((ItemAdded(0, "message"), TextDelta(0, "par"), gate, TextDelta(0, "tial"), ItemDone(0)))
    api = await serve(step, ping_s=0.02)
    talk = await api.open()
    await talk.send()
    await talk.stream.until("response.output_text.delta")
    middle = await get(talk.api.client.port, f"{talk.path}/stream?after=0")
    await receive(middle, b"output_text.delta")
    before = await get(talk.api.client.port, f"{talk.path}/stream")
    posting = await post(talk.api.client.port, f"{talk.path}/events?stream=true", user("and", delivery="steer"))
    await receive(posting, b"session.status")
    assert feed(talk).followers >= 3
    for sock in (before, middle, posting):
        reset(sock)
    api.model.steps.append(say("more"))
    gate.set()
    frames = await talk.stream.until_status("idle")
    assert types(frames)[-2:] == ["response.completed", "session.status idle"]
    async with asyncio.timeout(WAIT_S):
        while feed(talk).followers > 1:
            talk.stream.raw += await talk.stream.response.content.readany()
    ending = await get(talk.api.client.port, f"{talk.path}/stream")
    await receive(ending, b"session.status")
    reset(ending)
    assert (await api.ask("DELETE", talk.path)).status == 200
    assert not errors(caplog)


async def test_a_follower_that_leaves_in_silence_is_gone_within_a_ping(serve, caplog):
    """B119."""
    api = await serve(ping_s=0.02)
    talk = await api.open()
    others = [await get(talk.api.client.port, f"{talk.path}/stream") for _ in range(5)]
    for sock in others:
        await receive(sock, b"session.status")
        reset(sock)
    async with asyncio.timeout(WAIT_S):
        while feed(talk).followers > 1:
            await talk.stream.response.content.readany()
    assert not errors(caplog)


async def test_a_call_can_be_answered_after_its_follower_left(serve):
    """B111."""
    api = await serve(call("look_up", LOOK, "c1"), say("done"))
    talk = await api.open()
    await talk.park()
    talk.stream.close()
    fresh = await talk.follow()
    frames = [await fresh.next(), await fresh.next()]
    assert frames[1].data["item"]["call_id"] == "c1" and frames[1].data["item"]["arguments"] == LOOK
    await talk.result("c1", "blue")
    await fresh.until_status("idle")


async def test_a_client_that_gives_up_a_streamed_message_does_not_cancel_its_turn(serve):
    gate = asyncio.Event()
    api = await serve(
        Step((ItemAdded(0, "message"), TextDelta(0, "par"), gate, TextDelta(0, "tial"), ItemDone(0))), say("two")
    )
    talk = await api.open()
    first = await talk.send_streamed("first", tools=[TOOL])
    await first.until("response.output_text.delta")
    second = await talk.send_streamed("second")
    await second.next()
    first.close()
    second.close()
    gate.set()
    frames = await talk.stream.until_status("idle")
    assert types(frames).count("response.completed") == 2


async def test_a_follower_that_reads_nothing_does_not_hold_up_delete_or_the_servers_end(serve, caplog, monkeypatch):
    monkeypatch.setattr("agent_harness.server.event_stream.LAST_WORD_S", 0.05)
    api = await serve(say("x" * 9_000_000, "y" * 9_000_000))
    talk = Talk(api, (await api.create())["id"])
    deaf = [await get(talk.api.client.port, f"{talk.path}/stream") for _ in range(2)]
    for sock in deaf:
        await receive(sock, b"session.status")
    await talk.turn()
    stays = await api.open()
    async with asyncio.timeout(WAIT_S):
        assert (await api.ask("DELETE", talk.path)).status == 200
    async with asyncio.timeout(WAIT_S):
        await api.client.server.close()
    assert types(await stays.stream.rest()) == [DONE]
    for sock in deaf:
        sock.close()
    assert not errors(caplog)


async def test_a_reader_at_full_speed_gets_all_of_an_answer_that_comes_in_one_piece(serve):
    """
    A model server may send thousands of deltas at once; who reads as fast as they are written is not behind.
    """

    class Burst(ScriptedModel):
        async def stream(self, request):
            for part in say(*["0123456789"] * 9_000).parts:
                yield part
            yield Ended()

    api = await serve(models={"default": Burst()})
    talk = await api.open()
    body = b'{"type":"message","data":{"content":"hi"}}'
    headers = {"Content-Type": "application/json"}
    async with api.client.post(f"{talk.path}/events?stream=true", data=body, headers=headers) as response:
        told = types(await Stream(response).rest())
    assert told.count("response.output_text.delta") == 9_000
    assert told[-3:] == ["response.completed", "session.status idle", "[DONE]"]


async def test_a_body_that_does_not_come_in_time_is_refused(serve):
    api = await serve(body_s=0.05)

    async def never():
        yield b"{"
        await asyncio.Event().wait()

    path, headers = URL("/v1/sessions"), {"Content-Type": "application/json"}
    async with asyncio.timeout(WAIT_S), api.client.post(path, data=never(), headers=headers) as response:
        answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "k"}])
async def test_a_message_whose_stream_would_be_one_too_many_is_refused_whole(serve, headers):
    api = await serve(say("hello"), followers=1)
    talk = await api.open()
    path = f"/v1/sessions/{talk.id}"
    before = await (await api.client.get(path)).json()
    for _ in range(2):
        refused = await api.client.post(f"{path}/events?stream=true", json=user("hi"), headers=headers)
        assert refused.status == 429
        assert (await refused.json())["error"]["code"] == "too_many_followers"
        assert await (await api.client.get(path)).json() == before
    taken = await api.client.post(f"{path}/events", json=user("hi"))
    assert taken.status == 202, "without a stream it is taken"
    await talk.stream.until_status("idle")
