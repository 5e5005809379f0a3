"""
What a store must keep, as checks that anybody's can be held to: the sentences of `agent_harness.store.base`, same
numbers.

Whoever wants a store checked writes one function, ``make()``: a store of a place that is empty at the first call, and
of the same place at each later one. The one before is closed by then, or was left as it is, like a process that died.

::

    def test_my_store_keeps_every_contract(tmp_path):
        check_store(lambda: MyStore(tmp_path / "state"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from agent_harness.protocol.stored import Head
from agent_harness.store.base import (
    Change,
    DropAnswer,
    DropSession,
    DropWaiting,
    PutAgent,
    PutHead,
    PutItem,
    PutOffer,
    PutTurn,
    PutWaiting,
    Reserve,
    Store,
    StoredSession,
)
from agent_harness.testing import store_samples as samples

__all__ = ["STORE_CONTRACTS", "StoreContract", "check_store"]

Make = Callable[[], Store]


@attrs.frozen
class StoreContract:
    """
    One contract: call it with ``make``, for an empty place. It raises AssertionError with its number and sentence.
    """

    number: int
    sentence: str
    check: Callable[[Make], None] = attrs.field(repr=False)

    def __call__(self, make: Make) -> None:
        try:
            self.check(make)
        except Exception as error:
            raise AssertionError(f"contract {self.number}: {self.sentence} But {str(error) or repr(error)}") from error


def check_store(make: Callable[[], Make]) -> None:
    """
    Hold a store to every contract; ``make()`` gives what the contracts take, for a new empty place.

    Raises:
        AssertionError: naming each contract that it breaks, one a line.
    """
    broken: list[str] = []
    for contract in STORE_CONTRACTS:
        try:
            contract(make())
        except AssertionError as error:
            broken.append(str(error))
    if broken:
        # Not by assert: pytest, which rewrites those of plugins, would indent the lines.
        raise AssertionError("\n".join(broken))


def _check_atomic(make: Make) -> None:
    store = make()
    store.load()
    store.apply(samples.session("sess_a"))
    changed = attrs.evolve(samples.AGENT, metadata=samples.Unreadable())
    try:
        store.apply([PutHead("sess_a", Head(updated_at=99)), PutAgent("sess_a", changed), *samples.session("sess_b")])
    except Exception:
        kept, head = ["sess_a"], samples.HEAD
    else:
        # It keeps the values themselves, and never read this one.
        kept, head = ["sess_a", "sess_b"], Head(updated_at=99)
    held = _reopen(store, make)
    assert list(held) == kept, f"a list that {'failed' if len(kept) == 1 else 'was kept'} left {list(held)}"
    assert held["sess_a"].head == head, f"of a list the head is {held['sess_a'].head}"


def _check_order(make: Make) -> None:
    store = make()
    store.load()
    store.apply(samples.session("sess_a"))
    first, second = Head(updated_at=2, current="resp_1"), Head(updated_at=3)
    store.apply([PutHead("sess_a", first), PutHead("sess_a", second)])
    store.apply([Reserve("sess_a", 1000)])
    store.apply([Reserve("sess_a", 2000), PutItem("sess_a", 0, samples.ITEMS[1])])
    held = _reopen(store, make)["sess_a"]
    assert held.head == second and held.reserved == 2000, f"what was put last is not there: {held.head}"
    assert held.items[0] == samples.ITEMS[1], "an item was not replaced"


def _check_values(make: Make) -> None:
    store = make()
    store.load()
    store.apply(samples.session("sess_a"))
    store.apply([PutItem("sess_a", position, item) for position, item in enumerate(samples.ITEMS)])
    store.apply([PutTurn("sess_a", turn) for turn in samples.TURNS])
    store.apply([PutWaiting("sess_a", waiting) for waiting in samples.WAITING])
    store.apply([PutOffer("sess_a", samples.OFFER), Reserve("sess_a", 5)])
    held = _reopen(store, make)["sess_a"]
    assert (held.agent, held.head, held.offer, held.reserved) == (samples.AGENT, samples.HEAD, samples.OFFER, 5)
    _same(held.items, samples.ITEMS)
    _same(held.turns, samples.TURNS)
    _same([attrs.astuple(kept) for kept in held.waiting], [attrs.astuple(given) for given in samples.WAITING])


def _check_places(make: Make) -> None:
    store = make()
    store.load()
    store.apply(samples.session("sess_b"))
    store.apply(samples.session("sess_a"))
    for position in (2, 0, 1):
        store.apply([PutItem("sess_a", position, samples.ITEMS[position])])
    for turn in (*samples.TURNS, samples.TURNS[0]):
        store.apply([PutTurn("sess_a", turn)])
    for waiting in samples.WAITING:
        store.apply([PutWaiting("sess_a", waiting)])
    store.apply([DropWaiting("sess_a", samples.WAITING[0].message.id)])
    sessions = _reopen(store, make)
    assert list(sessions) == ["sess_b", "sess_a"], f"sessions came as {list(sessions)}"
    held = sessions["sess_a"]
    _same(held.items, samples.ITEMS[:3])
    _same(held.turns, samples.TURNS)
    _same([kept.message for kept in held.waiting], [given.message for given in samples.WAITING[1:]])


def _check_dropping(make: Make) -> None:
    store = make()
    store.load()
    for name in ("sess_a", "sess_b"):
        store.apply(samples.session(name))
        store.apply([PutItem(name, 0, samples.ITEMS[0]), samples.answer(name, "k1"), samples.answer(name, "k2")])
    store.apply([samples.answer("", "k1"), DropSession("sess_a"), DropAnswer("sess_b", samples.answer("", "k2").name)])
    store.close()
    store = make()
    held = {session.id: session for session in store.load()}
    answers = list(store.load_answers())
    store.close()
    assert list(held) == ["sess_b"] and held["sess_b"].items == [samples.ITEMS[0]], f"there is {list(held)}"
    _same(answers, [samples.answer("sess_b", "k1"), samples.answer("", "k1")])


def _check_death(make: Make) -> None:
    store = make()
    store.load()
    changes: list[Change] = samples.session("sess_a")
    store.apply(changes)
    changes.clear()
    store.apply([])
    held = _reopen(store, make)
    assert held["sess_a"].agent == samples.AGENT, "what was put is not what it was"


def _check_closing(make: Make) -> None:
    store = make()
    assert list(store.load()) == [], "an empty place has sessions"
    store.apply(samples.session("sess_a"))
    store.close()
    store.close()
    assert list(_reopen(store, make)) == ["sess_a"]


def _check_agents(make: Make) -> None:
    store = make()
    store.load()
    store.apply(samples.session("sess_a"))
    changed = attrs.evolve(samples.AGENT, metadata={})
    store.apply([PutAgent("sess_a", changed)])
    assert _reopen(store, make)["sess_a"].agent == changed, "a changed agent is not there"


def _reopen(store: Store, make: Make) -> dict[str, StoredSession]:
    store.close()
    again = make()
    try:
        return {session.id: session for session in again.load()}
    finally:
        again.close()


def _same(kept: Iterable[object], given: Iterable[object]) -> None:
    kept, given = list(kept), list(given)
    for mine, theirs in zip(kept, given, strict=False):
        assert mine == theirs, f"{mine} came back for {theirs}"
    assert len(kept) == len(given), f"{len(kept)} came back of {len(given)}"


STORE_CONTRACTS = tuple(
    StoreContract(number, sentence, check)
    for number, sentence, check in (
        (1, "All changes of a list are kept, or none.", _check_atomic),
        (2, "A change with the key of an earlier one replaces it, in the order of the calls.", _check_order),
        (3, "Every session comes back, its parts equal to what was put.", _check_values),
        (3, "A changed agent replaces the first.", _check_agents),
        (4, "Sessions, turns and waiting messages come back in the order of their first put.", _check_places),
        (5, "A dropped session takes everything of its own with it, and nothing of another.", _check_dropping),
        (6, "Values are kept as they were when they were put.", _check_death),
        (9, "Closing keeps everything, and may be done twice.", _check_closing),
    )
)
"""All contracts in order of their numbers."""
