"""
The replay of a feed: whatever is kept and let go of in whatever order, what is read is what was given.
"""

import gc
from typing import Any

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent_harness.engine.feed import Feed
from agent_harness.engine.replay import Replay
from agent_harness.protocol import events as said
from agent_harness.protocol.sizes import event_size

IDS = st.sampled_from(("a", "b"))
SMALL = st.integers(0, 1)
WORDS = st.sampled_from(("", "x", "yz", "\u00e9"))
EVENTS: st.SearchStrategy[Any] = st.one_of(
    st.builds(said.TextDelta, IDS, IDS, SMALL, SMALL, WORDS),
    st.builds(said.RefusalDelta, IDS, IDS, SMALL, SMALL, WORDS),
    st.builds(said.SummaryDelta, IDS, IDS, SMALL, SMALL, WORDS),
    st.builds(said.ArgumentsDelta, IDS, IDS, SMALL, WORDS),
    st.builds(said.TextDone, IDS, IDS, SMALL, SMALL, WORDS),
)
STEPS = st.one_of(EVENTS, st.tuples(st.sampled_from(("newest", "oldest")), st.integers(0, 6)))


@given(st.lists(STEPS, max_size=40))
def test_it_gives_back_what_it_was_given(steps: list[Any]) -> None:
    replay, model = Replay(), list[tuple[Any, float]]()
    for at, step in enumerate(steps):
        match step:
            case ("newest", count):
                start = max(0, len(model) - count)
                assert replay.take_newest(len(model) - start) == model[start:]
                del model[start:]
            case ("oldest", count):
                replay.drop_oldest(min(count, len(model)))
                del model[:count]
            case event:
                replay.append(event, at / 3)
                model.append((event, at / 3))
        assert list(replay) == model and len(replay) == len(model)
        assert [replay.size_at(index) for index in range(len(replay))] == [event_size(event) for event, _ in model]


PIECES = (
    said.TextDelta("resp_1", "msg_1", 0, 0, "x"),
    said.RefusalDelta("resp_1", "msg_1", 0, 0, "x"),
    said.SummaryDelta("resp_1", "rs_1", 0, 0, "x"),
    said.ArgumentsDelta("resp_1", "fc_1", 0, "x"),
)


@pytest.mark.parametrize("piece", PIECES, ids=lambda piece: type(piece).__name__)
def test_of_a_run_of_pieces_only_the_first_is_an_object(piece: said.Piece) -> None:
    """
    The collector of cycles goes through what is kept of every session: a thousand pieces must not be a thousand
    objects to it.
    """
    replay = Replay()
    gc.collect()
    before = len(gc.get_objects())
    for number in range(1_000):
        replay.append(attrs.evolve(piece, delta=f"word {number}"), number)
    assert len(gc.get_objects()) - before < 10
    assert [event.delta for event, _ in replay][-1] == "word 999"


READERS = st.integers(0, 2)
MOVES = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 4)),
    st.tuples(st.just("follow"), READERS, st.none() | st.integers(0, 30)),
    st.tuples(st.just("read"), READERS),
    st.tuples(st.just("read"), READERS),
    st.tuples(st.just("leave"), READERS),
    st.tuples(st.just("release"), st.integers(1, 9)),
    st.tuples(st.just("forget")),
)


@example(True, [("publish", 1), ("follow", 0, None), ("publish", 2), ("read", 0), ("release", 3), ("read", 0)])
@settings(max_examples=400)
@given(st.booleans(), st.lists(MOVES, max_size=60))
def test_whoever_follows_and_leaves_each_reader_hears_every_event_once_and_in_order(
    held: bool, moves: list[tuple[Any, ...]]
) -> None:
    """
    Events wander between the fresh and the replay as readers come, read and go; none of it may be seen.
    """
    feed = Feed(5, backlog=8)
    feed.held = held
    readers: dict[int, Reader] = {}
    for move in moves:
        match move:
            case ("publish", count):
                for _ in range(count):
                    feed.publish(piece_of(feed.seq + 1), float(feed.seq + 1))
            case ("follow", place, after):
                if place in readers:
                    readers.pop(place).follower.close()
                readers[place] = Reader(feed, None if after is None else min(after, feed.seq))
            case ("read", place) if place in readers:
                readers[place].read(feed)
            case ("leave", place) if place in readers:
                readers.pop(place).follower.close()
            case ("release", count) if held:
                feed.release(min(feed.seq, feed.released + count))
            case ("forget",):
                feed.forget()
        kept = [(published.seq, published.event, published.at) for published in feed.kept()]
        assert kept == [(seq, piece_of(seq), float(seq)) for seq in range(feed.seq - len(feed) + 1, feed.seq + 1)]


class Reader:
    """
    A follower and the numbers it was given: all from the one after *after*, or after the newest at its beginning.
    """

    def __init__(self, feed: Feed, after: int | None) -> None:
        # Of what is not kept any more a gap tells.
        oldest = feed.seq - len(feed)
        self.next = 1 + (feed.seq if after is None else max(after, oldest))
        self.follower = feed.follow(PIECES[0], [], None if after is None else str(after))

    def read(self, feed: Feed) -> None:
        """
        Read all that is there, and look at it.
        """
        while batch := self.follower.ready():
            for published in batch:
                if published.numbered:
                    assert published.seq == self.next <= feed.released
                    assert (published.event, published.at) == (piece_of(self.next), float(self.next))
                    assert b"id: %d\n" % self.next in published.frame
                    self.next += 1
        assert self.follower.lagged or self.next > feed.released
        if batch is None:
            self.follower.call_at_news(lambda: None)


def piece_of(seq: int) -> said.Event:
    """
    What event number *seq* of the test is: runs of pieces, with something else between them.
    """
    if seq % 5 == 0:
        return said.TextDone("resp_1", "msg_1", 0, 0, str(seq))
    return said.TextDelta("resp_1", f"msg_{seq // 10}", 0, 0, str(seq))
