"""
Every store keeps every contract, and the checks notice one that does not.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from agent_harness.store.base import Change, PutAgent, Store
from agent_harness.store.memory import MemoryStore
from agent_harness.store.sqlite import SqliteStore
from agent_harness.testing.store_contracts import STORE_CONTRACTS, StoreContract, check_store

Make = Callable[[], Store]


def memory(tmp_path: Path) -> Make:
    store = MemoryStore()
    return lambda: store


def sqlite(tmp_path: Path) -> Make:
    path = Path(mkdtemp(dir=tmp_path)) / "state"
    return lambda: SqliteStore(path)


@pytest.mark.parametrize("contract", STORE_CONTRACTS, ids=lambda contract: f"{contract.number}-{contract.sentence}")
@pytest.mark.parametrize("kind", [memory, sqlite])
def test_a_store_keeps_the_contract(kind: Any, contract: StoreContract, tmp_path: Path) -> None:
    contract(kind(tmp_path))


def test_all_contracts_can_be_checked_at_once(tmp_path: Path) -> None:
    check_store(lambda: sqlite(tmp_path))
    check_store(lambda: memory(tmp_path))


def test_a_store_that_forgets_is_named_with_the_contracts_it_breaks() -> None:
    class Forgetful(MemoryStore):
        def _apply(self, change: Change) -> None:
            if type(change).__name__ not in ("PutTurn", "DropSession"):
                super()._apply(change)

    def make() -> Make:
        store = Forgetful()
        return lambda: store

    with pytest.raises(AssertionError) as broken:
        check_store(make)
    assert numbers(broken.value) == ["contract 3", "contract 4", "contract 5"]


def test_a_store_that_keeps_half_a_list_is_named_with_the_contract_it_breaks() -> None:
    class Half(MemoryStore):
        def _apply(self, change: Change) -> None:
            if isinstance(change, PutAgent):
                dict(change.agent.metadata)
            super()._apply(change)

    def make() -> Make:
        store = Half()
        return lambda: store

    with pytest.raises(AssertionError) as broken:
        check_store(make)
    assert numbers(broken.value) == ["contract 1"]


def numbers(broken: AssertionError) -> list[str]:
    return [line.split(":")[0] for line in str(broken).splitlines() if line.startswith("contract")]
