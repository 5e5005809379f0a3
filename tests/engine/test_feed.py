"""
The feed by itself: numbers, replay, gaps, lagging followers, the end.
"""

import asyncio
import tracemalloc

import pytest

from agent_harness.engine.feed import Feed
from agent_harness.engine.follower import Follower, Published
from agent_harness.protocol import events as said
from agent_harness.protocol.items import FunctionCall
from tests.engine.rig import ticks

OPENING = said.SessionStatus(status="idle", response_id=None)
CALL = FunctionCall(id="fc_1", call_id="c1", name="look", arguments="{}", status="action_required", created_at=0)
AGAIN = said.OutputItemDone("resp_1", 0, CALL, replayed=True)


def publish(feed: Feed, *texts: str) -> None:
    for text in texts:
        feed.publish(said.TextDelta("resp_1", "msg_1", 0, 0, text))


def texts(taken: list[Published]) -> list[str]:
    return [published.event.delta for published in taken if isinstance(published.event, said.TextDelta)]


def kinds(taken: list[Published]) -> list[str]:
    return [published.event.type for published in taken]


async def drain(follower: Follower) -> list[Published]:
    """
    All that a follower can read now; to its end if it has one.
    """
    taken: list[Published] = []
    while True:
        waiter = asyncio.ensure_future(follower.take())
        await ticks(3)
        if not waiter.done():
            waiter.cancel()
            return taken
        if not waiter.result():
            return taken
        taken += waiter.result()


async def test_the_first_frame_replay_and_subscription_are_one_step() -> None:
    """
    What is published between two reads is seen once, whether it came before the first read or after.
    """
    feed = Feed(100)
    publish(feed, "a")
    follower = feed.follow(OPENING, [])
    publish(feed, "b")
    taken = await drain(follower)
    assert kinds(taken)[0] == "session.status"
    assert [published.numbered for published in taken] == [False, True]
    assert [published.seq for published in taken] == [1, 2]
    publish(feed, "c", "d")
    assert texts(await drain(follower)) == ["c", "d"]


async def test_open_calls_are_told_again_only_to_a_follower_without_a_number() -> None:
    feed = Feed(100)
    publish(feed, "a")
    fresh = await drain(feed.follow(OPENING, [AGAIN]))
    assert kinds(fresh) == ["session.status", "response.output_item.done"]
    assert all(not published.numbered and published.seq == 1 for published in fresh)
    assert b'"replayed":true' in fresh[1].frame
    assert not any(line.startswith(b"id:") for published in fresh for line in published.frame.splitlines())
    back = await drain(feed.follow(OPENING, [AGAIN], "1"))
    assert kinds(back) == ["session.status"]


@pytest.mark.parametrize("number", range(6))
async def test_a_follower_resumes_after_every_number_and_sees_each_later_event_once(number: int) -> None:
    feed = Feed(100)
    publish(feed, "1", "2", "3", "4", "5")
    follower = feed.follow(OPENING, [], str(number))
    publish(feed, "6")
    taken = await drain(follower)
    assert [published.seq for published in taken if published.numbered] == list(range(number + 1, 7))
    assert "session.gap" not in kinds(taken)
    publish(feed, "7")
    assert texts(await drain(follower)) == ["7"]


@pytest.mark.parametrize(
    "after", ["6", "99999999999999999999", "x", "", "-1", "+1", " 1", "1.0", "1e0", "²", "٣", "0x1"]
)
async def test_a_number_that_is_none_or_above_the_newest_gets_a_gap_and_all_that_is_kept(after: str) -> None:
    feed = Feed(3)
    publish(feed, "1", "2", "3", "4", "5")
    taken = await drain(feed.follow(OPENING, [], after))
    assert kinds(taken)[:2] == ["session.status", "session.gap"]
    gap, given = taken[1], 6 if after == "6" else after
    assert isinstance(gap.event, said.SessionGap)
    assert (gap.event.after, gap.event.first_seq, gap.numbered, gap.seq) == (given, 3, False, 5)
    assert texts(taken) == ["3", "4", "5"]


async def test_a_number_whose_next_event_is_gone_gets_a_gap_and_the_oldest_kept_does_not() -> None:
    feed = Feed(3)
    publish(feed, "1", "2", "3", "4", "5")
    assert "session.gap" in kinds(await drain(feed.follow(OPENING, [], "1")))
    assert "session.gap" in kinds(await drain(feed.follow(OPENING, [], "0")))
    taken = await drain(feed.follow(OPENING, [], "2"))
    assert (kinds(taken)[1:], texts(taken)) == (["response.output_text.delta"] * 3, ["3", "4", "5"])


async def test_after_forgetting_only_a_number_below_the_newest_gets_a_gap() -> None:
    feed = Feed(10)
    publish(feed, "1", "2")
    feed.forget()
    assert len(feed) == 0
    lost = await drain(feed.follow(OPENING, [], "1"))
    assert isinstance(lost[1].event, said.SessionGap)
    assert lost[1].event.first_seq is None
    assert kinds(await drain(feed.follow(OPENING, [], "2"))) == ["session.status"]
    publish(feed, "3")
    assert feed.first_seq == 3
    assert texts(await drain(feed.follow(OPENING, [], "2"))) == ["3"]


async def test_the_beginning_of_an_empty_feed_has_no_gap() -> None:
    feed = Feed(10)
    assert kinds(await drain(feed.follow(OPENING, [], "0"))) == ["session.status"]
    assert kinds(await drain(feed.follow(OPENING, [], "1"))) == ["session.status", "session.gap"]


async def test_a_follower_that_falls_behind_is_told_and_cut_and_resumes_by_number() -> None:
    feed = Feed(3)
    slow = feed.follow(OPENING, [])
    fast = feed.follow(OPENING, [])
    cut: list[str] = []
    slow.on_cut = lambda: cut.append("slow")
    await drain(slow)
    seen: list[Published] = []
    for text in "12345":
        publish(feed, text)
        seen += await drain(fast)
    assert texts(seen) == list("12345"), "a slow follower does not slow another"
    assert (slow.lagged, fast.lagged, cut, feed.followers) == (True, False, ["slow"], 1)
    last = await drain(slow)
    assert kinds(last) == ["session.lagged"]
    assert not last[0].numbered
    assert await slow.take() == []
    assert texts(await drain(feed.follow(OPENING, [], "2"))) == ["3", "4", "5"]


async def test_a_follower_that_has_read_everything_kept_is_not_cut_by_forgetting() -> None:
    feed = Feed(10)
    publish(feed, "1")
    reader, sleeper = feed.follow(OPENING, [], "0"), feed.follow(OPENING, [])
    await drain(reader)
    publish(feed, "2")
    await drain(reader)
    feed.forget()
    assert (reader.lagged, sleeper.lagged) == (False, True)
    publish(feed, "3")
    assert texts(await drain(reader)) == ["3"]


async def test_a_burst_longer_than_what_is_kept_does_not_cut_a_follower_that_replays_up_to_its_edge() -> None:
    """
    A follower that has read up to N is there as long as N+1 is kept, not one event longer.
    """
    feed = Feed(3)
    follower = feed.follow(OPENING, [])
    await drain(follower)
    publish(feed, "1", "2", "3")
    assert not follower.lagged
    assert texts(await drain(follower)) == ["1", "2", "3"]
    publish(feed, "4", "5", "6", "7")
    assert follower.lagged


async def test_closing_ends_followers_after_what_is_there_and_wakes_those_that_wait() -> None:
    feed = Feed(10)
    waiting, behind = feed.follow(OPENING, []), feed.follow(OPENING, [])
    await drain(waiting)
    end = asyncio.ensure_future(waiting.take())
    await ticks(2)
    publish(feed, "last")
    feed.close()
    async with asyncio.timeout(5):
        assert texts(await end) == ["last"]
        assert await waiting.take() == []
    assert texts(await drain(behind)) == ["last"]
    assert await behind.take() == []


async def test_a_follower_that_leaves_is_forgotten_and_can_leave_twice() -> None:
    feed = Feed(10)
    follower, other = feed.follow(OPENING, []), feed.follow(OPENING, [])
    await drain(follower)
    end = asyncio.ensure_future(follower.take())
    await ticks(2)
    follower.close()
    follower.close()
    async with asyncio.timeout(5):
        assert await end == []
    assert feed.followers == 1
    publish(feed, "1")
    assert texts(await drain(follower)) == []
    assert texts(await drain(other)) == ["1"]


async def test_a_cancelled_reader_loses_nothing() -> None:
    """
    A reader that is cancelled while it waits (a ping is due, say) takes up where it was.
    """
    feed = Feed(100)
    follower = feed.follow(OPENING, [])
    await drain(follower)
    seen: list[Published] = []
    for text in "1234":
        reader = asyncio.ensure_future(follower.take())
        await ticks(2)
        publish(feed, text)
        reader.cancel()
        await ticks(2)
        seen += [] if reader.cancelled() else reader.result()
    assert texts([*seen, *await drain(follower)]) == ["1", "2", "3", "4"]


async def test_an_event_is_encoded_once_however_many_follow() -> None:
    """
    Rule 10: all followers get the same bytes object.
    """
    feed = Feed(10)
    followers = [feed.follow(OPENING, []) for _ in range(3)]
    publish(feed, "x")
    frames = [[published.frame for published in await drain(follower)][1] for follower in followers]
    assert all(frame is frames[0] for frame in frames)
    assert b"id: 1\n" in frames[0]
    assert b'"seq":1' in frames[0]


async def test_a_reader_that_drops_after_each_event_in_turn_sees_every_number_once() -> None:
    feed = Feed(1_000)
    seen: list[int] = []
    for text in map(str, range(50)):
        follower = feed.follow(OPENING, [], str(seen[-1] if seen else 0))
        publish(feed, text, text)
        first = next(published for published in await drain(follower) if published.numbered)
        seen.append(first.seq)
        follower.close()
    assert seen == list(range(1, 51))
    assert feed.followers == 0


def with_bytes(feed: Feed) -> list[str]:
    """
    The events that are kept together with their bytes.
    """
    return texts([published for published in feed.kept() if published._frame is not None])


async def read(follower: Follower, frames: list[bytes]) -> None:
    while taken := await follower.take():
        frames += [published.frame for published in taken if published.numbered]


async def test_bytes_are_kept_while_a_follower_has_yet_to_read_them_and_not_longer() -> None:
    """
    Each event is encoded once for all who follow, and memory does not hold it twice afterwards.
    """
    feed = Feed(10)
    ways: list[list[bytes]] = [[], [], []]
    fast, slow = feed.follow(OPENING, []), feed.follow(OPENING, [])
    async with asyncio.timeout(5), asyncio.TaskGroup() as readers:
        readers.create_task(read(fast, ways[0]))
        await ticks(2)
        publish(feed, "1", "2")
        await ticks(2)
        assert len(ways[0]) == 2 and with_bytes(feed) == ["1", "2"]
        readers.create_task(read(slow, ways[1]))
        await ticks(2)
        assert all(one is other for one, other in zip(*ways[:2], strict=True)), "encoded once"
        assert with_bytes(feed) == []
        publish(feed, "3")
        await ticks(2)
        assert with_bytes(feed) == []
        late = feed.follow(OPENING, [], "0")
        readers.create_task(read(late, ways[2]))
        await ticks(2)
        assert with_bytes(feed) == []
        feed.close()
    assert ways[0] == ways[1] == ways[2] and len(ways[0]) == 3, "the same bytes, made again"


async def test_a_reader_that_was_cancelled_is_woken_no_more_and_reads_on() -> None:
    feed = Feed(10)
    follower = feed.follow(OPENING, [])
    await drain(follower)
    for text in "12":
        assert await drain(follower) == []
        publish(feed, text)
        assert texts(await drain(follower)) == [text]
    await ticks(1)
    assert feed._sleeping == []


async def test_a_reader_that_sleeps_twice_counts_once() -> None:
    feed = Feed(10)
    twice, other = feed.follow(OPENING, []), feed.follow(OPENING, [])
    publish(feed, "1", "2")
    while twice.ready():
        pass
    for _ in range(2):
        twice.call_at_news(lambda: None)
    assert texts(await drain(other)) == ["1", "2"]


async def test_what_was_held_before_the_first_follower_came_does_not_hide_what_came_after() -> None:
    feed = Feed(10)
    feed.held = True
    publish(feed, "1")
    follower = feed.follow(OPENING, [])
    publish(feed, "2", "3")
    assert await drain(follower) == []
    feed.release(3)
    assert texts(await drain(follower)) == ["2", "3"]


async def test_a_large_piece_that_is_kept_no_more_takes_no_memory() -> None:
    feed = Feed(10)
    tracemalloc.start()
    try:
        publish(feed, "x" * 1_000_000, *["y"] * 20)
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
    taken = await drain(feed.follow(OPENING, [], "11"))
    assert texts(taken) == ["y"] * 10
