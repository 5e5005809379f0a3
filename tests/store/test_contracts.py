"""
Every store keeps every contract, and the checks notice one that does not.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_harness.store.base import Change, Store
from agent_harness.store.memory import MemoryStore
from agent_harness.store.sqlite import SqliteStore
from agent_harness.testing.store_contracts import STORE_CONTRACTS, StoreContract, check_store

Make = Callable[[], Store]


def memory(tmp_path: Path) -> Make:
    store = MemoryStore()
    return lambda: store


def sqlite(tmp_path: Path) -> Make:
    count = len(list(tmp_path.iterdir()))
    return lambda: SqliteStore(tmp_path / f"state-{count}")


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
    numbers = [line.split(":")[0] for line in str(broken.value).splitlines() if line.startswith("contract")]
    assert numbers == ["contract 3", "contract 4", "contract 5"]
