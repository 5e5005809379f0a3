"""
The file of the SQLite store: whose it is, who may read it, and what is said of one that cannot be used.
"""

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from agent_harness.config import Settings
from agent_harness.errors import ConfigError
from agent_harness.settings_file import read_settings_file
from agent_harness.store.base import PutHead, Reserve
from agent_harness.store.sqlite import SCHEMA_VERSION, SqliteStore
from agent_harness.testing.store_samples import HEAD, session
from agent_harness.wiring import open_harness


def made(path: Path) -> Path:
    store = SqliteStore(path)
    store.load()
    store.apply(session("sess_a"))
    store.close()
    return path


def refusal(path: Path) -> str:
    store = SqliteStore(path)
    with pytest.raises(ConfigError) as refused:
        store.load()
    store.close()
    assert str(path) in str(refused.value)
    return str(refused.value)


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_the_file_is_its_owners_only(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state")
    store.load()
    store.apply(session("sess_a"))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    store.close()
    assert set(modes.values()) == {0o600}, modes


def test_two_processes_cannot_use_one_file(tmp_path: Path) -> None:
    path = made(tmp_path / "state")
    first = SqliteStore(path)
    first.load()
    assert "in use by another process" in refusal(path)
    first.close()
    second = SqliteStore(path)
    assert [held.id for held in second.load()] == ["sess_a"]
    second.close()


def test_a_new_file_is_taken_at_once(tmp_path: Path) -> None:
    first = SqliteStore(tmp_path / "state")
    first.load()
    assert "in use by another process" in refusal(tmp_path / "state")
    first.close()


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("My notes. " * 1000)
    assert "no state file" in refusal(path)
    assert path.read_text() == "My notes. " * 1000


def test_the_database_of_another_program_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE sessions (id)")
    other.commit()
    other.close()
    before = path.read_bytes()
    assert "another program" in refusal(path)
    assert path.read_bytes() == before


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path / "state")
    newer = sqlite3.connect(path)
    newer.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    newer.close()
    assert "newer version" in refusal(path)


def test_a_file_that_holds_rubbish_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path / "state")
    broken = sqlite3.connect(path)
    broken.execute("UPDATE sessions SET head = x'00ff'")
    broken.commit()
    broken.close()
    assert "cannot be read" in refusal(path)


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    assert "cannot be opened" in refusal(tmp_path / "missing" / "state")


def test_what_was_committed_is_there_after_a_process_that_never_closed(tmp_path: Path) -> None:
    path = made(tmp_path / "state")
    store = SqliteStore(path)
    store.load()
    store.apply([Reserve("sess_a", 77)])
    for name in ("state", "state-wal"):
        (tmp_path / f"copy-{name}").write_bytes((tmp_path / name).read_bytes())
    store.close()
    copied = SqliteStore(tmp_path / "copy-state")
    assert [held.reserved for held in copied.load()] == [77]
    copied.close()


def test_a_list_that_fails_in_the_middle_leaves_the_store_usable(tmp_path: Path) -> None:
    store = SqliteStore(made(tmp_path / "state"))
    store.load()
    with pytest.raises(ValueError, match="attrs"):
        store.apply([Reserve("sess_a", 5), PutHead("sess_a", None)])  # type: ignore[arg-type]
    store.apply([PutHead("sess_a", HEAD)])
    store.close()
    again = SqliteStore(tmp_path / "state")
    assert [held.reserved for held in again.load()] == [0]
    again.close()


async def test_settings_name_the_file_and_a_harness_that_cannot_open_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(f'[server]\nstate = "{tmp_path / "state"}"\n')
    settings = read_settings_file(tmp_path / "settings.toml")
    assert settings.state == str(tmp_path / "state") and Settings().state is None
    async with open_harness(settings) as harness:
        await harness.create_session()
        with pytest.raises(ConfigError, match="in use"):
            async with open_harness(settings):
                pass
    async with open_harness(settings) as harness:
        assert len(harness.sessions()) == 1
