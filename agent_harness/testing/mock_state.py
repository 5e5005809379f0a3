"""
What the mock model server holds: queues of scripted answers, sessions, captured requests, counts, the gate.

asyncio only, and only for the gate.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import attrs

from agent_harness.testing.mock_entry import Entry, read_entry, read_last_user_text
from agent_harness.testing.strict import Dialect, SessionMemory, StrictOptions

__all__ = ["Captured", "Gate", "MockState", "Stats"]


@attrs.define
class Captured:
    """
    A model request as it came; `body` is parsed JSON, or text where it is none.

    `status` is what it was answered, null while it is parked or when its client left before an answer; `key` is the
    queue that it took, null when its body was no JSON.
    """

    path: str
    headers: dict[str, str]
    body: Any
    status: int | None = None
    key: str | None = None


@attrs.define
class Stats:
    """
    Counts since the last reset: requests by path, those being answered now (parked ones too), clients that left first.
    """

    requests: Counter[str] = attrs.field(factory=Counter)
    open: int = 0
    disconnects: int = 0


@attrs.define
class Queue:
    """
    The answers that wait under one key. `match` stands in the last user text of the requests that they are for.
    """

    match: str | None = None
    entries: deque[Entry] = attrs.field(factory=deque)
    options: StrictOptions = attrs.field(factory=StrictOptions)


@attrs.define(eq=False)
class Parked:
    """
    A request that waits at the gate. `is_gone` says that its client left; `is_cut` that the server drops it.
    """

    is_gone: Callable[[], bool]
    opened: asyncio.Event = attrs.field(factory=asyncio.Event)
    is_cut: bool = False


@attrs.define
class Gate:
    """
    Where requests park, in order of arrival.
    """

    parked: list[Parked] = attrs.field(factory=list)

    def count(self) -> int:
        """
        Count the parked requests whose clients are still there.
        """
        return sum(not parked.is_gone() for parked in self.parked)

    def release(self, count: int | None) -> int:
        """
        Let the first `count` requests go on (None: all); those whose clients left do not count.

        :returns: how many were released.
        """
        waiting = [parked for parked in self.parked if not parked.is_gone() and not parked.opened.is_set()]
        chosen = waiting if count is None else waiting[:count]
        for parked in chosen:
            self.parked.remove(parked)
            parked.opened.set()
        return len(chosen)

    def cut(self) -> None:
        """
        Drop every parked request: its connection will be aborted.
        """
        for parked in self.parked:
            parked.is_cut = True
            parked.opened.set()
        self.parked.clear()


@attrs.define
class MockState:
    """
    Everything that `/mock/reset` clears.
    """

    queues: dict[str, Queue] = attrs.field(factory=dict)
    fallback: Entry | None = None
    sessions: dict[str, SessionMemory] = attrs.field(factory=dict)
    captured: list[Captured] = attrs.field(factory=list)
    stats: Stats = attrs.field(factory=Stats)
    gate: Gate = attrs.field(factory=Gate)
    is_closing: bool = False

    def reset(self) -> None:
        """
        Forget queues, their options, the fallback, sessions, captured requests and counts; drop parked requests.
        """
        self.gate.cut()
        self.queues.clear()
        self.sessions.clear()
        self.captured.clear()
        self.fallback = None
        self.stats = Stats()

    def configure(self, body: dict[str, Any]) -> tuple[str, int]:
        """
        Set up one queue from the body of `/mock/configure`; nothing changes when it is refused.

        `responses` and `match` replace what the key had; `strict` stays as it was when it is left out.

        :returns: the key and how many answers now wait under it.
        :raises ValueError: naming the path of the wrong value.
        """
        for name in set(body) - {"key", "match", "responses", "strict"}:
            raise ValueError(f"{name}: unknown key; known are key, match, responses, strict")
        key, match, responses = body.get("key", "default"), body.get("match"), body.get("responses")
        if not isinstance(key, str):
            raise ValueError("key: expected a string")
        if match is not None and (not isinstance(match, str) or not match):
            raise ValueError("match: expected a string that is not empty")
        if responses is not None and not isinstance(responses, list):
            raise ValueError("responses: expected a list")
        entries = [read_entry(entry, f"responses[{index}]") for index, entry in enumerate(responses or ())]
        options = read_options(body["strict"]) if body.get("strict") is not None else None
        queue = self.queues.setdefault(key, Queue())
        if responses is not None:
            queue.match, queue.entries = match, deque(entries)
        if options is not None:
            queue.options = options
        return key, len(queue.entries)

    def choose(self, dialect: Dialect, body: dict[str, Any]) -> str:
        """
        Give the key of the queue that a request takes: by its last user text, else by its model, else "default".
        """
        text = read_last_user_text(dialect, body)
        for key, queue in self.queues.items():
            if queue.match is not None and queue.match in text:
                return key
        model = body.get("model")
        return model if isinstance(model, str) and model in self.queues else "default"

    def read_strictness(self, key: str) -> StrictOptions:
        """
        Give the options of the queue under `key`; the strict defaults when there is none.
        """
        return self.queues[key].options if key in self.queues else StrictOptions()

    def take(self, key: str) -> Entry | None:
        """
        Take the next answer under `key`; the fallback when none is left; None without one.
        """
        queue = self.queues.get(key)
        return queue.entries.popleft() if queue is not None and queue.entries else self.fallback

    def find_session(self, session_id: str | None) -> SessionMemory:
        """
        Give what is remembered of a session; requests that name none have no past.
        """
        return SessionMemory() if session_id is None else self.sessions.setdefault(session_id, SessionMemory())


def read_options(value: Any) -> StrictOptions:
    """
    Read `strict` of `/mock/configure`: true, false, or an object of options.

    :raises ValueError: for an unknown option or one that is no boolean.
    """
    if isinstance(value, bool):
        return StrictOptions(enabled=value)
    if not isinstance(value, dict):
        raise ValueError("strict: expected a boolean or an object")
    known = [field.name for field in attrs.fields(StrictOptions)]
    for name, held in value.items():
        if name not in known:
            raise ValueError(f"strict.{name}: unknown option; known are {', '.join(known)}")
        if not isinstance(held, bool):
            raise ValueError(f"strict.{name}: expected a boolean")
    return StrictOptions(**value)
