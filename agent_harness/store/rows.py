"""
Changes as the rows of four tables: what SQLite keeps, apart from how it is opened.
"""

import sqlite3
from collections.abc import Iterator, Sequence

import orjson

from agent_harness.protocol import stored
from agent_harness.store.base import (
    Change,
    DropAnswer,
    DropSession,
    DropWaiting,
    PutAgent,
    PutAnswer,
    PutHead,
    PutItem,
    PutOffer,
    PutTurn,
    PutWaiting,
    Reserve,
    StoredSession,
)

__all__ = ["SCHEMA", "read_answers", "read_sessions", "write_changes"]

SCHEMA = """
CREATE TABLE sessions (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, agent BLOB, head BLOB, offer BLOB,
    reserved INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE items (session_id TEXT, position INTEGER, body BLOB NOT NULL, UNIQUE (session_id, position));
CREATE TABLE turns (
    number INTEGER PRIMARY KEY, session_id TEXT, id TEXT, body BLOB NOT NULL, UNIQUE (session_id, id)
);
CREATE TABLE waiting (
    number INTEGER PRIMARY KEY, session_id TEXT, id TEXT, body BLOB NOT NULL, UNIQUE (session_id, id)
);
CREATE TABLE answers (
    number INTEGER PRIMARY KEY, session_id TEXT, name TEXT, digest BLOB NOT NULL, at REAL NOT NULL,
    status INTEGER NOT NULL, body BLOB NOT NULL, sent TEXT, UNIQUE (session_id, name)
);
"""
"""Texts of ids, bodies as `agent_harness.protocol.stored` writes them. ``number`` is the order of first arrival."""

_UPSERT = {
    "agent": "INSERT INTO sessions (id, agent) VALUES (?, ?) ON CONFLICT DO UPDATE SET agent = excluded.agent",
    "head": "INSERT INTO sessions (id, head) VALUES (?, ?) ON CONFLICT DO UPDATE SET head = excluded.head",
    "offer": "INSERT INTO sessions (id, offer) VALUES (?, ?) ON CONFLICT DO UPDATE SET offer = excluded.offer",
    "reserve": "INSERT INTO sessions (id, reserved) VALUES (?, ?) "
    "ON CONFLICT DO UPDATE SET reserved = excluded.reserved",
    "item": "INSERT INTO items VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET body = excluded.body",
    "turn": "INSERT INTO turns (session_id, id, body) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET body = excluded.body",
    "waiting": "INSERT INTO waiting (session_id, id, body) VALUES (?, ?, ?) "
    "ON CONFLICT DO UPDATE SET body = excluded.body",
    "answer": "INSERT OR REPLACE INTO answers (session_id, name, digest, at, status, body, sent) "
    "VALUES (?, ?, ?, ?, ?, ?, ?)",
}


def write_changes(connection: sqlite3.Connection, changes: Sequence[Change]) -> None:
    """
    Carry out *changes* in the open transaction.
    """
    for change in changes:
        _write(connection, change)


def _write(connection: sqlite3.Connection, change: Change) -> None:
    run, session_id = connection.execute, change.session_id
    match change:
        case PutAgent():
            run(_UPSERT["agent"], (session_id, stored.write_agent(change.agent)))
        case PutHead():
            run(_UPSERT["head"], (session_id, stored.write_head(change.head)))
        case PutOffer():
            run(_UPSERT["offer"], (session_id, stored.write_offer(change.offer)))
        case Reserve():
            run(_UPSERT["reserve"], (session_id, change.up_to))
        case PutItem():
            run(_UPSERT["item"], (session_id, change.position, stored.write_item(change.item)))
        case PutTurn():
            run(_UPSERT["turn"], (session_id, change.turn.id, stored.write_turn(change.turn)))
        case PutWaiting():
            run(_UPSERT["waiting"], (session_id, change.waiting.message.id, stored.write_waiting(change.waiting)))
        case DropWaiting():
            run("DELETE FROM waiting WHERE session_id = ? AND id = ?", (session_id, change.item_id))
        case PutAnswer():
            sent = None if change.sent is None else orjson.dumps(change.sent).decode()
            row = (session_id, _name(change.name), change.digest, change.at, change.status, change.body, sent)
            run(_UPSERT["answer"], row)
        case DropAnswer():
            run("DELETE FROM answers WHERE session_id = ? AND name = ?", (session_id, _name(change.name)))
        case DropSession():
            run("DELETE FROM sessions WHERE id = ?", (session_id,))
            for table in ("items", "turns", "waiting", "answers"):
                run(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))


def _name(name: tuple[str, ...]) -> str:
    return orjson.dumps(name).decode()


def read_sessions(connection: sqlite3.Connection) -> Iterator[StoredSession]:
    """
    Every session, oldest first.
    """
    heads = connection.execute("SELECT id, agent, head, offer, reserved FROM sessions ORDER BY number").fetchall()
    for session_id, agent, head, offer, reserved in heads:
        yield StoredSession(
            id=session_id,
            agent=stored.load_agent(agent),
            head=stored.load_head(head),
            offer=stored.Offer() if offer is None else stored.load_offer(offer),
            reserved=reserved,
            items=[stored.load_item(body) for body in _bodies(connection, "items", "position", session_id)],
            turns=[stored.load_turn(body) for body in _bodies(connection, "turns", "number", session_id)],
            waiting=[stored.load_waiting(body) for body in _bodies(connection, "waiting", "number", session_id)],
        )


def _bodies(connection: sqlite3.Connection, table: str, order: str, session_id: str) -> Iterator[bytes]:
    rows = connection.execute(f"SELECT body FROM {table} WHERE session_id = ? ORDER BY {order}", (session_id,))
    return (body for (body,) in rows)


def read_answers(connection: sqlite3.Connection) -> Iterator[PutAnswer]:
    """
    Every answer, oldest first.
    """
    rows = connection.execute(
        "SELECT session_id, name, digest, at, status, body, sent FROM answers ORDER BY number"
    ).fetchall()
    for session_id, name, digest, at, status, body, sent in rows:
        yield PutAnswer(
            session_id=session_id,
            name=tuple(orjson.loads(name)),
            digest=digest,
            at=at,
            status=status,
            body=body,
            sent=None if sent is None else orjson.loads(sent),
        )
