"""
A store in one SQLite file: a write-ahead log, synchronised to the disk at each commit, held by one process.
"""

import os
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

from agent_harness.errors import ConfigError
from agent_harness.store.base import Change, PutAnswer, StoredSession
from agent_harness.store.rows import SCHEMA, read_answers, read_sessions, write_changes

__all__ = ["APPLICATION_ID", "SCHEMA_VERSION", "SqliteStore"]

APPLICATION_ID = 0x41484E53
"""Marks the file as one of ours ("AHNS"), in SQLite's own header."""

SCHEMA_VERSION = 1
"""Counts up with each change of the tables."""

BUSY_S = 0.5
"""How long to wait for another process to let go of the file, in seconds."""


class SqliteStore:
    """
    The store in the file at *path*, made if it does not exist, readable by its owner only.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._connection: sqlite3.Connection | None = None

    def __repr__(self) -> str:
        return f"<SqliteStore {self.path}>"

    def load(self) -> Iterable[StoredSession]:
        """
        Open the file and read its sessions.

        Raises:
            ConfigError: it cannot be opened, is another program's or a newer version's, or another process has it.
        """
        connection = self._open()
        try:
            _prepare(connection, self.path)
            sessions = list(read_sessions(connection))
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.Error):
                raise ConfigError(_explain(self.path, error)) from error
            if isinstance(error, ValueError | TypeError | KeyError | AssertionError):
                raise ConfigError(f"The state file {self.path} holds something that cannot be read.") from error
            raise
        self._connection = connection
        return sessions

    def load_answers(self) -> Iterable[PutAnswer]:
        """
        The answers to requests with an idempotency key, oldest first.
        """
        return list(read_answers(self._opened()))

    def apply(self, changes: Sequence[Change]) -> None:
        """
        Commit *changes*.

        Raises:
            sqlite3.Error: they could not be written; none of them was.
        """
        connection = self._opened()
        connection.execute("BEGIN IMMEDIATE")
        try:
            write_changes(connection, changes)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """
        Fold the log into the file and let go of it; harmless if it is not open.
        """
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _open(self) -> sqlite3.Connection:
        try:
            # Made here, so that nobody else may ever read what people said.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            # One thread at a time uses it, not always the same.
            return sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        except OSError as error:
            raise ConfigError(f"The state file {self.path} cannot be opened: {error.strerror}.") from error

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise RuntimeError("the store is not open; load() comes first")
        return self._connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """
    Take the file for this process alone, see whose it is, and make the tables if it is new.
    """
    # Set before the file is first touched: then the lock is held until the connection is closed, by nobody after that.
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if owner != APPLICATION_ID and (owner or tables):
        raise ConfigError(f"The file {path} belongs to another program; name another one for the state.")
    if version > SCHEMA_VERSION:
        raise ConfigError(
            f"The state file {path} was written by a newer version (format {version}; this one knows {SCHEMA_VERSION})."
        )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    # A write takes the lock even where nothing has to be made.
    connection.execute("BEGIN IMMEDIATE")
    if not tables:
        for statement in SCHEMA.strip().split(";\n"):
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


def _explain(path: Path, error: sqlite3.Error) -> str:
    # The lower byte is the kind of the error, what is above it the variety.
    kind = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"The state file {path} is in use by another process; stop that one, or name another file."
    if kind == sqlite3.SQLITE_NOTADB:
        return f"The file {path} is no state file; name another one for the state."
    return f"The state file {path} cannot be used: {error}."
