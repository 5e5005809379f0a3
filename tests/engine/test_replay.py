"""
The replay of a feed: whatever is kept and let go of in whatever order, what is read is what was given.
"""

import gc
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_harness.engine.feed import Feed, Follower, Published
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
    st.tuples(st.just("follow"), READERS, st.integers(0, 30)),
    st.tuples(st.just("read"), READERS),
    st.tuples(st.just("leave"), READERS),
    st.tuples(st.just("release"), st.integers(1, 9)),
    st.tuples(st.just("forget")),
)


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
    readers: dict[int, tuple[Follower, list[Published]]] = {}
    for move in moves:
        match move:
            case ("publish", count):
                for _ in range(count):
                    feed.publish(piece_of(feed.seq + 1), float(feed.seq + 1))
            case ("follow", place, after):
                if place in readers:
                    readers.pop(place)[0].close()
                readers[place] = feed.follow(PIECES[0], [], str(min(after, feed.seq))), []
            case ("read", place) if place in readers:
                follower, seen = readers[place]
                while batch := follower.ready():
                    seen += batch
                if batch is None:
                    follower.call_at_news(lambda: None)
                check(feed, seen, ended=follower.lagged)
            case ("leave", place) if place in readers:
                readers.pop(place)[0].close()
            case ("release", count) if held:
                feed.release(min(feed.seq, feed.released + count))
            case ("forget",):
                feed.forget()
        kept = [(published.seq, published.event, published.at) for published in feed.kept()]
        assert kept == [(seq, piece_of(seq), float(seq)) for seq in range(feed.seq - len(feed) + 1, feed.seq + 1)]


def piece_of(seq: int) -> said.Event:
    """
    What event number *seq* of the test is: runs of pieces, with something else between them.
    """
    if seq % 5 == 0:
        return said.TextDone("resp_1", "msg_1", 0, 0, str(seq))
    return said.TextDelta("resp_1", f"msg_{seq // 10}", 0, 0, str(seq))


def check(feed: Feed, seen: list[Published], *, ended: bool) -> None:
    numbered = [published for published in seen if published.numbered]
    assert [(published.event, published.at) for published in numbered] == [
        (piece_of(published.seq), float(published.seq)) for published in numbered
    ]
    numbers = [published.seq for published in numbered]
    if numbers:
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert numbers[-1] <= feed.released
        assert ended or numbers[-1] == feed.released
    frames = [published.frame for published in numbered]
    assert all(b"id: %d\n" % seq in frame for seq, frame in zip(numbers, frames, strict=True))
