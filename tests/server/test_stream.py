"""
``GET …/stream``: the first frame, numbers, replay, gaps, re-announced calls, until=idle, the end.
"""

import asyncio

import pytest

from agent_harness.errors import ModelError
from agent_harness.llm.base import ItemAdded, ItemDone, TextDelta
from agent_harness.llm.scripted import Step, call, say
from tests.support import DONE, TOOL, types

LOOK = '{"widget_id": 1}'
STATUS = ["type", "seq", "at", "status", "response_id", "required_actions", "queued", "last_error"]


def held(gate) -> Step:
    return Step((ItemAdded(0, "message"), TextDelta(0, "par"), gate, TextDelta(0, "tial"), ItemDone(0)))


async def test_the_first_frame_comes_at_once_and_holds_status_and_retry(serve):
    api = await serve()
    talk = await api.open()
    stream = await talk.follow()
    frame = await stream.next()
    assert frame.raw.startswith(b"event: session.status\nretry: 1000\ndata: {")
    assert frame.id is None and frame.seq == 0 and list(frame.data) == STATUS
    assert (frame.data["status"], frame.data["response_id"], frame.data["last_error"]) == ("idle", None, None)
    assert (frame.data["required_actions"], frame.data["queued"]) == ([], [])
    headers = stream.response.headers
    assert "gzip" not in headers.get("Content-Encoding", "") and "no-cache" in headers.get("Cache-Control", "")


async def test_retry_stands_in_the_first_frame_only(serve):
    api = await serve(say("hi"), say("ho"))
    talk = await api.open()
    await talk.turn()
    stream = await talk.follow(after=0)
    await talk.send()
    await stream.until("response.completed")
    frames = await stream.until("response.completed")
    assert bytes(stream.raw).count(b"retry:") == 1 and frames[-1].event == "response.completed"


async def test_numbers_have_no_holes_and_id_equals_seq_for_every_numbered_event(serve):
    api = await serve(
        call("look_up", LOOK, "c1"), say("done", " and", " done"), say("two"), ModelError("x", code="rate_limited")
    )
    talk = await api.open()
    await talk.park()
    await talk.send("two")
    await talk.result("c1")
    await talk.stream.until_status("idle")
    await api.ask("PATCH", talk.path, json={"metadata": {"a": "b"}})
    await talk.send("three")
    await talk.stream.until_status("failed")
    await api.ask("DELETE", talk.path)
    await talk.stream.rest()
    numbered = talk.stream.frames[1:-1]
    assert [frame.id for frame in numbered] == list(range(1, len(numbered) + 1))
    assert talk.stream.frames[-1].data == DONE


async def test_whoever_posts_after_reading_the_first_frame_misses_nothing(serve):
    api = await serve(say("hi"))
    talk = await api.open()
    stream = await talk.follow()
    opening = await stream.next()
    await talk.send()
    frames = await stream.until_status("idle")
    assert frames[0].id == opening.seq + 1 and frames[0].event == "session.item"


async def test_the_last_event_id_replays_each_later_event_once_and_then_goes_on_live(serve):
    """B112."""
    api = await serve(say("one", " two"), say("live"))
    talk = await api.open()
    await talk.send()
    await talk.stream.until_status("idle")
    all_frames = talk.stream.frames[1:]
    for number in range(len(all_frames) + 1):
        for options in ({"last_id": number}, {"after": number}, {"last_id": number, "after": "nonsense"}):
            stream = await talk.follow(**options, until="idle")
            frames = await stream.rest()
            assert frames[0].id is None and frames[0].event == "session.status" and frames[-1].data == DONE
            assert frames[0].seq == len(all_frames)
            assert [(frame.id, frame.data) for frame in frames[1:-1]] == [
                (frame.id, frame.data) for frame in all_frames[number:]
            ]
    stream = await talk.follow(last_id=len(all_frames) - 2)
    await talk.send("again")
    frames = await stream.until_status("idle")
    frames += await stream.until_status("idle")
    assert [frame.id for frame in frames if frame.id] == list(range(len(all_frames) - 1, frames[-1].id + 1))


@pytest.mark.parametrize(
    "value",
    [
        "999999",
        "-1",
        "abc",
        "",
        "1e3",
        "1.0",
        "+1",
        "0x1",
        "sess_1:3",
        "٣",
        "1 2",
        "1" * 18,
        "9" * 30,
        "1,2",
        "null",
        "NaN",
    ],
)
@pytest.mark.parametrize("where", ["Last-Event-ID", "after"])
async def test_an_odd_number_is_a_gap_followed_by_all_that_is_kept(serve, value, where):
    """B114."""
    api = await serve(say("hi"))
    talk = await api.open()
    await talk.turn()
    seq = (await talk.snapshot())["seq"]
    if where == "after":
        stream = await talk.follow(after=value, until="idle")
    else:
        stream = await talk.follow(last_id=value.encode().decode("utf-8", "surrogateescape"), until="idle")
    frames = await stream.rest()
    assert types(frames)[:2] == ["session.status idle", "session.gap"] and types(frames)[-1] == DONE
    gap = frames[1]
    assert gap.id is None and list(gap.data) == ["type", "seq", "after", "first_seq"]
    assert gap.data["first_seq"] == 1 and gap.seq == seq
    assert str(gap.data["after"]) == value
    assert [frame.id for frame in frames[2:-1]] == list(range(1, seq + 1))


@pytest.mark.parametrize("size", [100, 5_000, 10_000])
async def test_a_very_long_number_is_a_gap_too(serve, size):
    """B114: a 10 kB string."""
    api = await serve(say("hi"))
    talk = await api.open()
    await talk.turn()
    for options in ({"last_id": "x" * size}, {"after": "x" * size}, {"last_id": "7" * size}):
        frames = await (await talk.follow(**options, until="idle")).rest()
        assert types(frames)[1] == "session.gap" and frames[2].id == 1


async def test_a_number_whose_next_event_is_no_longer_kept_is_a_gap(serve):
    api = await serve(say("hi"), replay_events=4)
    talk = await api.open()
    await talk.turn()
    seq = (await talk.snapshot())["seq"]
    for number in range(seq + 1):
        frames = await (await talk.follow(after=number, until="idle")).rest()
        ids = [frame.id for frame in frames if frame.id]
        if number >= seq - 4:
            assert "session.gap" not in types(frames) and ids == list(range(number + 1, seq + 1))
        else:
            assert types(frames)[1] == "session.gap" and ids == list(range(seq - 3, seq + 1))
            assert frames[1].data["first_seq"] == seq - 3


async def test_a_number_of_another_session_shows_only_this_sessions_events(serve):
    """B115."""
    api = await serve(say("secret of a"), say("more of a"), say("b"))
    first, second = await api.open(), await api.open()
    await first.turn()
    await first.turn()
    await second.turn()
    number = (await first.snapshot())["seq"]
    frames = await (await second.follow(last_id=number, until="idle")).rest()
    assert types(frames)[1] == "session.gap"
    text = b"".join(frame.raw for frame in frames)
    assert b"of a" not in text and first.id.encode() not in text
    small = await (await second.follow(last_id=2, until="idle")).rest()
    assert next(frame.id for frame in small if frame.id) == 3 and "session.gap" not in types(small)


async def test_open_calls_are_announced_again_to_a_follower_without_a_number(serve):
    """B111."""
    api = await serve(
        call("look_up", LOOK, "c1") + call("look_up", '{"widget_id": 2}', "c2") + call("look_up", LOOK, "c3"),
        say("done"),
    )
    talk = await api.open()
    await talk.park()
    talk.stream.close()
    await talk.result("c2")
    seq = (await talk.snapshot())["seq"]
    stream = await talk.follow()
    frames = [await stream.next() for _ in range(3)]
    assert types(frames) == ["session.status waiting", "response.output_item.done", "response.output_item.done"]
    assert [action["call_id"] for action in frames[0].data["required_actions"]] == ["c1", "c3"]
    calls = [item for item in await talk.items() if item.get("status") == "action_required"]
    for frame, item in zip(frames[1:], calls, strict=True):
        assert frame.id is None and frame.seq == seq and frame.data["replayed"] is True
        assert frame.data["item"] == item and item["arguments"] == LOOK
        assert frame.data["response_id"] == item["response_id"]
    for frame in frames[1:]:
        await talk.result(frame.data["item"]["call_id"])
    live = await stream.until_status("idle")
    assert [frame.id for frame in live] == list(range(seq + 1, live[-1].id + 1))
    assert not any("replayed" in frame.data for frame in live)


async def test_a_re_announced_call_has_the_output_index_it_was_announced_with(serve):
    api = await serve(say("wait") + call("look_up", LOOK, "c1"), say("done"))
    talk = await api.open()
    await talk.park()
    first = next(frame for frame in talk.stream.frames if frame.data.get("item", {}).get("status") == "action_required")
    stream = await talk.follow()
    again = (await stream.until("response.output_item.done"))[-1]
    assert again.data["output_index"] == first.data["output_index"] == 1
    assert again.data["item"] == first.data["item"]


async def test_a_follower_with_a_number_gets_no_call_announced_again(serve):
    api = await serve(call("look_up", LOOK, "c1"), say("done"))
    talk = await api.open()
    await talk.park()
    seq = (await talk.snapshot())["seq"]
    for options in ({"last_id": seq}, {"after": 0}, {"after": "abc"}):
        stream = await talk.follow(**options)
        if options == {"last_id": seq}:
            await stream.next()
            await talk.send("hurry", delivery="steer")
            assert (await stream.next()).id == seq + 1
        else:
            frames = await stream.until(lambda frame: frame.id == seq + 1)
            assert not any("replayed" in frame.data for frame in frames)


async def test_until_idle_without_a_number_ends_at_the_first_rest_after_the_first_frame(serve):
    gate = asyncio.Event()
    api = await serve(say("one"), held(gate), say("three"), ModelError("no", code="provider_auth"), say("more"))
    talk = await api.open()
    stream = await talk.follow(until="idle")
    assert types([await stream.next()]) == ["session.status idle"]
    await talk.send()
    frames = await stream.rest()
    assert types(frames)[-2:] == ["session.status idle", DONE] and types(frames).count("response.completed") == 1
    await talk.send("second")
    await talk.send("third")
    stream = await talk.follow(until="idle")
    gate.set()
    frames = await stream.rest()
    assert types(frames)[0] == "session.status running" and types(frames).count("response.completed") == 2
    assert types(frames)[-2:] == ["session.status idle", DONE]
    stream = await talk.follow(until="idle")
    await talk.send()
    assert types(await stream.rest())[-3:] == ["response.failed", "session.status failed", DONE]
    stream = await talk.follow(until="idle")
    assert types([await stream.next()]) == ["session.status failed"]
    await talk.send()
    assert types(await stream.rest())[-3:] == ["response.completed", "session.status idle", DONE]


async def test_until_idle_with_a_number_goes_past_rests_that_are_replayed(serve):
    gate = asyncio.Event()
    api = await serve(say("one"), say("two"), held(gate))
    talk = await api.open()
    await talk.turn()
    await talk.turn()
    replay = await (await talk.follow(after=0, until="idle")).rest()
    assert types(replay).count("session.status idle") == 3 and types(replay)[-2:] == ["session.status idle", DONE]
    await talk.send()
    stream = await talk.follow(after=0, until="idle")
    await stream.until("response.completed")
    await stream.until("response.completed")
    await stream.until("response.output_text.delta")
    gate.set()
    assert types(await stream.rest())[-3:] == ["response.completed", "session.status idle", DONE]


async def test_until_idle_with_the_newest_number_of_an_idle_session_ends_at_once(serve):
    api = await serve(say("one"))
    talk = await api.open()
    for n in range(2):
        seq = (await talk.snapshot())["seq"]
        frames = await (await talk.follow(after=seq, until="idle")).rest()
        assert types(frames) == ["session.status idle", DONE]
        if n == 0:
            await talk.turn()


async def test_the_end_of_a_turn_does_not_end_the_stream(serve):
    api = await serve(say("one"), say("two"))
    talk = await api.open()
    for _ in range(2):
        await talk.send()
        await talk.stream.until_status("idle")
    assert not talk.stream.response.content.at_eof()


async def test_the_stream_ends_with_done_when_the_server_stops(serve):
    api = await serve(call("look_up", LOOK, "c1"))
    idle, parked = await api.open(), await api.open()
    await parked.send(tools=[TOOL])
    own = await idle.follow(until="idle")
    await own.next()
    await parked.stream.until_status("waiting")
    async with asyncio.timeout(5):
        await api.client.server.close()
    for stream in (idle.stream, own):
        assert types(await stream.rest()) == [DONE]
    assert types(await parked.stream.rest())[-1] == DONE


async def test_a_queue_is_not_started_by_a_server_that_stops(serve):
    api = await serve(call("look_up", LOOK, "c1"), say("never"))
    talk = await api.open()
    await talk.park()
    stream = await talk.send_streamed("queued")
    await stream.next()
    async with asyncio.timeout(5):
        await api.client.server.close()
    assert types(await stream.rest())[-1] == DONE
    assert len(api.model.requests) == 1
