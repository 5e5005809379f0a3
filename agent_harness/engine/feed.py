"""
The feed of one session: numbers events, keeps the newest, and lets any number of followers read them at their own pace.

A follower has no queue of its own. It holds the number it has read up to and takes what is kept after it; one that
falls behind what is kept is cut. So a slow follower costs nothing, and slows nobody. An event's bytes are made when the
first follower asks for them, and kept until all who follow have read them; then the event goes to the replay, and
who comes back later has the same bytes made of it again.

Where sessions are written down, the feed is *held*: an event gets its number at once, and is released to followers when
what it tells is on the disk. Without that, numbering and release are one.
"""

import sys
import time
from collections.abc import Callable, Iterable

from agent_harness.engine.follower import Follower, Published
from agent_harness.engine.replay import Replay
from agent_harness.protocol.events import Event, OutputItemDone, SessionGap
from agent_harness.protocol.sizes import event_size

__all__ = ["Feed"]


class Feed:
    """
    Args:
        keep: how many of the newest events are kept for followers that come late or back, and up to a 64th more.
        keep_bytes: how many bytes of them, about; the newest event is kept whatever its size.
        backlog: how many are kept while a follower has not read them; one that has more to read is cut.

    ``seq`` is the newest number, ``released`` the newest that followers may hear of; ``held`` says that `release` is
    called for it.
    """

    # _fresh are the newest events, with all that some follower has yet to read behind its first frames; all others are
    # in _replay. _sleeping are the followers that have read everything; events up to number _gone are not kept any
    # more, those up to number _read were read by all.
    __slots__ = (
        "_backlog", "_followers", "_fresh", "_gone", "_keep", "_keep_bytes", "_kept_bytes", "_most", "_read",
        "_replay", "_sleeping", "closed", "held", "lagged", "released", "seq",
    )  # fmt: skip

    def __init__(self, keep: int, keep_bytes: int = sys.maxsize, backlog: int = 0) -> None:
        self.seq = self.released = self._gone = self._read = 0
        self.closed = self.held = False
        self.lagged = 0
        """How many followers were cut because they fell behind."""
        self._keep, self._keep_bytes, self._backlog = keep, keep_bytes, max(keep, backlog)
        # To let go of several at a time takes less than of each.
        self._most = min(keep + keep // 64, self._backlog)
        self._replay = Replay()
        self._fresh: list[Published] = []
        self._kept_bytes = 0
        self._followers: list[Follower] = []
        self._sleeping: list[Follower] = []

    def __len__(self) -> int:
        return self.seq - self._gone

    @property
    def followers(self) -> int:
        """
        How many follow now.
        """
        return len(self._followers)

    @property
    def first_seq(self) -> int | None:
        """
        The oldest number that is kept.
        """
        return self._gone + 1 if self._gone < self.seq else None

    def go_on(self, seq: int) -> None:
        """
        Go on behind number *seq*, of which nothing is kept.
        """
        self.seq = self.released = self._gone = seq

    def publish(self, event: Event, at: float | None = None) -> None:
        """
        Give *event* the next number and let every follower know; *at* is now if None. Takes no step of its own: no
        await, no task.
        """
        self.seq = seq = self.seq + 1
        if at is None:
            at = time.time()
        if self._followers:
            self._fresh.append(Published(seq, event, at))
        else:
            self._replay.append(event, at)
        self._kept_bytes += event_size(event)
        if not self.held:
            self.released = seq
            if self._sleeping:
                self._wake()
            if seq - self._gone > self._most or self._kept_bytes > self._keep_bytes:
                self._trim(seq, seq)

    def release(self, seq: int) -> None:
        """
        Let followers hear of everything up to number *seq*. What comes at once so stays until the next time, however
        much it is: nobody had a chance to read it.
        """
        before, self.released = self.released, seq
        if self._sleeping:
            self._wake()
        if self.seq - self._gone > self._most or self._kept_bytes > self._keep_bytes:
            self._trim(before, before)

    def since(self, seq: int, most: int = sys.maxsize) -> list[Published]:
        """
        The released events after number *seq*, the oldest *most* of them; *seq* is where some follower stands.
        """
        if self.released <= seq:
            return []
        end = len(self._fresh) - (self.seq - self.released)
        start = end - (self.released - seq)
        return self._fresh[start : min(end, start + most)]

    def kept(self) -> list[Published]:
        """
        Everything that is kept, oldest first.
        """
        return [*self._publish_again(self._replay, self._gone + 1), *self._fresh]

    def has_kept(self, wanted: Callable[[Event], bool]) -> bool:
        """
        Whether an event that is kept is *wanted*; of pieces, not all are asked.
        """
        return any(wanted(published.event) for published in self._fresh) or self._replay.has(wanted)

    def forget(self) -> None:
        """
        Keep nothing; followers that have not read all of it are cut. Nothing happens while an event is held.
        """
        if self.released < self.seq or self._gone == self.seq:
            return
        self._gone = self.seq
        self._replay = Replay()
        self._fresh = []
        self._kept_bytes = 0
        self._wake()
        self._cut_late()

    def close(self) -> None:
        """
        End every follower once it has read what is there.
        """
        self.closed = True
        self._wake()
        for follower in self._followers:
            if follower.on_cut is not None:
                follower.on_cut()

    def abandon(self) -> None:
        """
        End every follower where it is: what is held will never be released.
        """
        self.closed = True
        for follower in list(self._followers):
            follower.cut()
            follower.wake()

    def follow(
        self, opening: Event, open_calls: list[OutputItemDone], after: str | None = None, *, seq: int | None = None
    ) -> Follower:
        """
        Attach a follower. First frame, replay and subscription are this one step.

        Args:
            opening: the first, unnumbered event.
            open_calls: told again to a follower that gave no number.
            after: the number the follower has read up to, as it gave it; None for from now on.
            seq: the number the first event bears, from which a reader that got no further may resume; the newest if
                None.
        """
        now = time.time()
        first = [Published(self.seq if seq is None else seq, opening, now, numbered=False)]
        if after is None:
            first += [Published(self.seq, event, now, numbered=False) for event in open_calls]
        else:
            first += self._resume(after, now)
        follower = Follower(self, first, self.seq)
        self._followers.append(follower)
        return follower

    def _resume(self, after: str, now: float) -> list[Published]:
        number = int(after) if after.isascii() and after.isdigit() and len(after) < 19 else None
        if number is not None and self._gone <= number <= self.seq:
            return self._after(number)
        gap = SessionGap(after[:64] if number is None else number, self.first_seq)
        return [Published(self.seq, gap, now, numbered=False), *self._after(self._gone)]

    def _after(self, seq: int) -> list[Published]:
        """
        What is kept after number *seq*, all of it fresh again: who replays it at the same time shares the bytes.
        """
        count = self.seq - seq
        missing = count - len(self._fresh)
        if missing > 0:
            self._fresh[:0] = self._publish_again(self._replay.take_newest(missing), seq + 1)
        return self._fresh[-count:] if count else []

    def _publish_again(self, replay: Iterable[tuple[Event, float]], first: int) -> list[Published]:
        """
        What is in *replay* as followers get it; the oldest of it is number *first*.
        """
        return [Published(seq, event, at) for seq, (event, at) in enumerate(replay, first)]

    def sleep(self, follower: Follower) -> None:
        """
        Note that *follower* has read everything that is released, until it is woken.
        """
        self._sleeping.append(follower)
        if len(self._sleeping) == len(self._followers):
            self._put_away()

    def _put_away(self) -> None:
        """
        All who follow have read what is released: it goes to the replay. Without any, everything does.
        """
        fresh, keep = self._fresh, self._replay.append
        # What was held already when the first of them came is not fresh.
        count = max(0, len(fresh) - (self.seq - self.released)) if self._followers else len(fresh)
        for published in fresh[:count]:
            keep(published.event, published.at)
        del fresh[:count]

    def _wake(self) -> None:
        """
        Let every follower that has read everything look again.
        """
        sleeping, self._sleeping = self._sleeping, []
        for follower in sleeping:
            follower.wake()

    def _trim(self, slowest: int, newest: int) -> None:
        """
        Let go of the oldest events: those over the bounds, and over what is kept for newcomers unless the slowest
        follower has yet to read them; never of one above number *newest*. Who still needed one that went is cut.
        Without followers, *slowest* is what counts as read.
        """
        replay, fresh, size, gone = self._replay, self._fresh, self._kept_bytes, 0
        left, behind = self.seq - self._gone, len(replay)
        while left > 1 and (left > self._keep or size > self._keep_bytes):
            seq = self._gone + gone + 1
            over = left > self._backlog or size > self._keep_bytes
            if seq > newest or not (over or seq <= self._read or self._was_read(seq, slowest)):
                break
            size -= replay.size_at(gone) if gone < behind else event_size(fresh[gone - behind].event)
            gone += 1
            left -= 1
        if gone:
            if behind:
                replay.drop_oldest(min(gone, behind))
            del fresh[: max(0, gone - behind)]
            self._gone += gone
            self._kept_bytes = size
            self._cut_late()

    def _was_read(self, seq: int, default: int) -> bool:
        """
        Whether all have read event number *seq*. Asked only where it is not known already: it stays true.
        """
        self._read = min((follower.read_up_to for follower in self._followers), default=default)
        return seq <= self._read

    def _cut_late(self) -> None:
        """
        Cut the followers that need what is no longer kept.
        """
        if self._gone <= self._read:
            return
        cut = [follower for follower in self._followers if follower.read_up_to < self._gone]
        self.lagged += len(cut)
        for follower in cut:
            follower.cut()

    def detach(self, follower: Follower) -> None:
        """
        Forget a follower; harmless if it is gone.
        """
        if follower in self._followers:
            self._followers.remove(follower)
        self.rouse(follower)
        if len(self._sleeping) == len(self._followers):
            self._put_away()

    def rouse(self, follower: Follower) -> None:
        """
        Note that *follower* does not sleep any more; harmless if it did not.
        """
        if follower in self._sleeping:
            self._sleeping.remove(follower)
