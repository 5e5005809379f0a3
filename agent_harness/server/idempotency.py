"""
``Idempotency-Key``: a POST repeated with the same key and body takes effect once, and gets its first answer again.

Answers are kept per session (for ``POST /v1/sessions``: per application), by caller, path and key. Only 2xx answers are
kept: what was refused changed nothing, and may be asked again.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from weakref import WeakKeyDictionary

import attrs
from aiohttp import web

from agent_harness.engine.harness import Harness
from agent_harness.engine.replies import Sent
from agent_harness.engine.session import Session
from agent_harness.errors import Conflict, InvalidRequest
from agent_harness.server.auth import CALLER
from agent_harness.store.base import DropAnswer, PutAnswer

__all__ = [
    "KEPT_SESSION_ANSWERS",
    "KEPT_SESSIONS",
    "KeptAnswer",
    "KeptAnswers",
    "answer_once",
    "keep_answer",
    "keep_sent",
]

KEPT_SESSION_ANSWERS = 1_000
"""Answers kept for one session."""

KEPT_SESSIONS = 10_000
"""Answers kept to ``POST /v1/sessions``."""

KEPT_S = 24 * 3600.0
"""How long an answer is kept, in seconds."""

KEY_MAX = 255
"""Longest key, in characters."""


@attrs.define(eq=False)
class KeptAnswer:
    """
    What a key stands for. ``done`` is set when the first request has its answer, or failed; ``sent`` is what a streamed
    message was answered, from which its stream can be told again; ``write`` has either written down.
    """

    digest: bytes
    at: float
    write: Callable[["KeptAnswer"], None] | None = None
    done: asyncio.Event = attrs.field(factory=asyncio.Event)
    status: int = 0
    body: bytes = b""
    sent: Sent | None = None


_KEPT = web.RequestKey("kept_answer", KeptAnswer)


class KeptAnswers:
    """
    The answers of one application: its own, and those of its sessions as long as they live. Where sessions are written
    down, answers are too, in the commit that holds what they tell.
    """

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._own: OrderedDict[tuple[str, ...], KeptAnswer] = OrderedDict()
        self._by_session: WeakKeyDictionary[Session, OrderedDict[tuple[str, ...], KeptAnswer]] = WeakKeyDictionary()

    def find(self, session: Session | None) -> tuple[OrderedDict[tuple[str, ...], KeptAnswer], int]:
        """
        Where the answers of *session* (None: of no session) are kept, and how many at most.
        """
        if session is None:
            return self._own, KEPT_SESSIONS
        return self._by_session.setdefault(session, OrderedDict()), KEPT_SESSION_ANSWERS

    def restore(self) -> None:
        """
        Take back what the harness found written down.
        """
        harness = self._harness
        for answer in harness.answers:
            kept, _ = self.find(harness.get(answer.session_id) if answer.session_id else None)
            sent = None if answer.sent is None else Sent(**answer.sent)
            entry = kept[answer.name] = KeptAnswer(answer.digest, answer.at, None, status=answer.status, sent=sent)
            entry.body = answer.body
            entry.done.set()
        harness.answers = []

    def write(self, session: Session | None, name: tuple[str, ...], entry: KeptAnswer) -> None:
        """
        Have an answer written down.
        """
        if self._harness.journal is not None:
            sent = None if entry.sent is None else attrs.asdict(attrs.evolve(entry.sent, waiting_for=None))
            answer = PutAnswer(
                session_id="" if session is None else session.id,
                name=name,
                digest=entry.digest,
                at=entry.at,
                status=entry.status,
                body=entry.body,
                sent=sent,
            )
            self._harness.journal.add([answer])

    def drop_oldest(self, session: Session | None) -> None:
        """
        Forget answers over the bound.
        """
        kept, most = self.find(session)
        while len(kept) > most:
            name, _ = kept.popitem(last=False)
            if self._harness.journal is not None:
                self._harness.journal.add([DropAnswer("" if session is None else session.id, name)])


def keep_answer(request: web.Request, answer: web.StreamResponse) -> None:
    """
    Keep the request's *answer* if it is one that is kept, and none is. Called in the step in which it took effect.
    """
    entry = request.get(_KEPT)
    if entry is None or entry.status or entry.sent is not None or not isinstance(answer, web.Response):
        return
    if 200 <= answer.status < 300 and isinstance(answer.body, bytes):
        entry.status, entry.body = answer.status, answer.body
        if entry.write is not None:
            entry.write(entry)


def keep_sent(request: web.Request, sent: Sent) -> None:
    """
    Keep what a streamed message was answered.
    """
    entry = request.get(_KEPT)
    if entry is not None:
        entry.sent = sent
        if entry.write is not None:
            entry.write(entry)
        entry.done.set()


async def answer_once(
    request: web.Request,
    answers: KeptAnswers,
    session: Session | None,
    body: bytes,
    handle: Callable[[], Awaitable[web.StreamResponse]],
    stream_again: Callable[[Sent], Awaitable[web.StreamResponse]],
) -> web.StreamResponse:
    """
    The answer of *handle*, or the one its first call gave to a request with the same key.

    Raises:
        Conflict: the key came with another body before (``idempotency_conflict``).
        InvalidRequest: the key is empty or too long.
    """
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return await handle()
    if not 0 < len(key) <= KEY_MAX:
        raise InvalidRequest(f"An Idempotency-Key has 1 to {KEY_MAX} characters.", param="Idempotency-Key")
    kept, _ = answers.find(session)
    name, digest = (request.get(CALLER, ""), request.method, request.path_qs, key), hashlib.sha256(body).digest()
    while (entry := kept.get(name)) is not None and time.time() - entry.at < KEPT_S:
        if entry.digest != digest:
            message = "This Idempotency-Key was used with another body; use a new one for a new request."
            raise Conflict(message, code="idempotency_conflict", param="Idempotency-Key")
        if entry.sent is not None:
            return await stream_again(entry.sent)
        if entry.status:
            return _repeat(entry)
        await entry.done.wait()
    entry = KeptAnswer(digest, time.time(), lambda entry: answers.write(session, name, entry))
    kept[name] = request[_KEPT] = entry
    kept.move_to_end(name)
    try:
        answer = await handle()
        keep_answer(request, answer)
        return answer
    finally:
        entry.done.set()
        # It holds the session, which would then be held by its own answers for ever.
        entry.write = None
        if not entry.status and entry.sent is None and kept.get(name) is entry:
            del kept[name]
        answers.drop_oldest(session)


def _repeat(entry: KeptAnswer) -> web.Response:
    return web.Response(
        body=entry.body,
        status=entry.status,
        content_type="application/json",
        headers={"idempotency-replayed": "true"},
    )
