"""
The harness: all sessions of one process, and the models they call.
"""

import asyncio
import logging
import time
import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import Context
from typing import Any

from agent_harness.config import Limits, check_node
from agent_harness.engine.journal import Journal
from agent_harness.engine.observer import Observer
from agent_harness.engine.restoring import make_session
from agent_harness.engine.session import Session
from agent_harness.engine.sharing import SharedAgents
from agent_harness.engine.watch import Watch
from agent_harness.errors import ModelError, NotFound, RateLimited, Unavailable
from agent_harness.llm.base import Model
from agent_harness.protocol.agents import Agent
from agent_harness.protocol.commands import CreateSession, ForkSession
from agent_harness.protocol.items import make_id
from agent_harness.protocol.requests import read_create
from agent_harness.protocol.seeding import copy_items, seed_transcript
from agent_harness.store.base import DropAnswer, PutAnswer, Store

__all__ = ["Harness"]

SWEEP_S = 60.0
"""How often idle sessions are looked through for events that need not be kept, in seconds."""

CLOSE_WAIT_S = 5.0
"""How long `Harness.aclose` waits for model streams to let go, in seconds."""


class Harness:
    """
    Sessions by id. Belongs to the event loop it is first used on; close it with ``await aclose()`` or ``async with``.

    Args:
        models: by provider name.
        default_provider: the provider of agents that name none.
        agents: by the name that clients give as ``agent_id``.
        limits: bounds.
        observers: who is told of sessions, turns and calls; more can be appended to ``watch.observers``.
        store: where sessions are written down; None for none. What it holds is taken up by `restore`, which
            ``async with`` calls.
        node: stands in the ids of sessions made here (``sess_NODE_…``), for a router in front of several processes.
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        *,
        default_provider: str = "default",
        limits: Limits | None = None,
        agents: Mapping[str, Agent] | None = None,
        observers: Iterable[Observer] = (),
        store: Store | None = None,
        node: str | None = None,
    ) -> None:
        # A program that sets up no logging hears nothing: without this, Python itself would print warnings.
        logger = logging.getLogger("agent_harness")
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
        self.watch = Watch(observers)
        self.models = dict(models)
        self.default_provider = default_provider
        self.limits = limits or Limits()
        self.agents = dict(agents or {})
        self._id_prefix = "sess" if node is None else f"sess_{check_node(node)}"
        self._shared = SharedAgents()
        self.closed = self.draining = False
        self.journal = None if store is None else Journal(store, self._give_up)
        self.answers: list[PutAnswer] = []
        self.parked = asyncio.Event()
        self._restoring: asyncio.Task[None] | None = None
        self._sessions: dict[str, Session] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> "Harness":
        await self.restore()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if not self.closed and self._sessions:
            warnings.warn(f"{self!r} was never closed; await its aclose().", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return f"<Harness sessions={len(self._sessions)} turns={len(self._tasks)}>"

    # What is written down.

    async def restore(self) -> None:
        """
        Take up what the store holds; once, before anything else. Nothing without a store.

        Raises:
            ConfigError: the store cannot be used.
        """
        if self.journal is None:
            return
        if self._restoring is None:
            self._restoring = asyncio.get_running_loop().create_task(self._restore(self.journal))
        await self._restoring

    async def _restore(self, journal: Journal) -> None:
        try:
            sessions, answers = await journal.load()
            made = [make_session(self, stored, self._shared.find(stored.agent.agent)) for stored in sessions]
            for session, told in made:
                self._sessions[session.id] = session
                self.watch.session_opened(session, restored=True)
                session.resume(told)
        except BaseException:
            await self.aclose()
            raise
        for answer in answers:
            if not answer.session_id or answer.session_id in self._sessions:
                self.answers.append(answer)
            else:
                journal.add([DropAnswer(answer.session_id, answer.name)])
        if self._sessions:
            self._start_sweeping()

    async def committed(self) -> None:
        """
        Return when everything that was kept so far is written down; at once without a store.

        Raises:
            InternalError: it cannot be written.
        """
        if self.journal is not None:
            await self.journal.committed()

    def _give_up(self) -> None:
        """
        The store failed: what is in memory is ahead of it now, and nothing more may come of that.
        """
        self.draining = True
        for session in self.sessions():
            session.suspend()
            session.feed.abandon()

    # What sessions need of it.

    def find_model(self, provider: str) -> Model:
        """
        The model of *provider*.

        Raises:
            ModelError: there is none (``provider_not_found``).
        """
        model = self.models.get(provider)
        if model is None:
            known = ", ".join(self.models) or "none"
            raise ModelError(f"There is no provider {provider!r}; this server has: {known}.", code="provider_not_found")
        return model

    def spawn(
        self, coroutine: Coroutine[Any, Any, None], left: Callable[[asyncio.Task[None]], None]
    ) -> asyncio.Task[None]:
        """
        Run a turn in a task that the harness holds on to; *left* is called when it is over.
        """

        def let_go(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            left(task)

        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(let_go)
        return task

    # Sessions.

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def running_turns(self) -> int:
        """
        How many turns run or are parked.
        """
        return len(self._tasks)

    def sessions(self) -> list[Session]:
        """
        All sessions, oldest first.
        """
        return list(self._sessions.values())

    async def create_session(
        self,
        agent: Mapping[str, Any] | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        items: Sequence[Mapping[str, Any]] = (),
    ) -> Session:
        """
        Make a session in process; *agent* and *items* have the wire's shapes.

        Raises:
            RequestError: as for ``POST /v1/sessions``.
        """
        body = {"agent": agent, "metadata": metadata, "items": list(items)}
        return self.create(read_create(body, int(time.time())))

    def create(self, command: CreateSession) -> Session:
        """
        Make a session.

        Raises:
            NotFound: there is no agent of that name.
            RateLimited: there are too many sessions.
            Unavailable: the harness is closed.
        """
        self._check_open()
        agent = self._shared.find(command.agent) if command.agent_id is None else self.find_agent(command.agent_id)
        if len(command.items) > self.limits.items:
            raise RateLimited(
                f"A session holds at most {self.limits.items:,} items.", code="session_full", param="items"
            )
        self._check_room()
        transcript = seed_transcript(command.items, int(time.time()))
        return self._add(Session(self, agent, dict(command.metadata), transcript, make_id(self._id_prefix)))

    def find_agent(self, agent_id: str) -> Agent:
        """
        The agent that the settings name so.

        Raises:
            NotFound: there is none.
        """
        agent = self.agents.get(agent_id)
        if agent is None:
            known = ", ".join(self.agents) or "none"
            message = f"This server has no agent {agent_id[:80]!r}; it has: {known}."
            raise NotFound(message, code="unknown_agent", param="agent_id")
        return agent

    def get(self, session_id: str) -> Session:
        """
        The session with that id.

        Raises:
            NotFound: there is none.
        """
        session = self._sessions.get(session_id)
        if session is None:
            if self.closed and self.journal is not None:
                raise Unavailable("The server is shutting down; its sessions go on when it is started again.")
            raise NotFound("There is no such session; it may have been deleted.", code="unknown_session")
        return session

    def fork(self, source: Session, command: ForkSession) -> Session:
        """
        A new idle session with the settled items of *source*; the source is untouched.

        Raises:
            NotFound: no settled item has that id.
            RateLimited: there are too many sessions.
            Unavailable: the harness is closed.
        """
        self._check_open()
        try:
            items = copy_items(source.transcript, command.up_to_item_id)
        except KeyError:
            message = "No settled item of this session has that id."
            raise NotFound(message, code="unknown_item", param="up_to_item_id") from None
        self._check_room()
        transcript = seed_transcript(items, int(time.time()))
        return self._add(Session(self, source.agent, dict(source.metadata), transcript, make_id(self._id_prefix)))

    async def delete(self, session: Session) -> None:
        """
        End a session and forget it.
        """
        self._sessions.pop(session.id, None)
        await session.delete()

    async def drain(self) -> None:
        """
        Take no new sessions, messages and forks, and give the turns that run ``grace_s`` seconds to end. Results and
        interrupts are still taken. Followed by `aclose`, which interrupts what is left. With a store, turns that wait
        for results are not waited for, and queued messages stay queued.
        """
        self.draining = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.limits.grace_s
        while (tasks := self._working()) and (left := deadline - loop.time()) > 0:
            self.parked.clear()
            parked = loop.create_task(self.parked.wait())
            await asyncio.wait({*tasks, parked}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            parked.cancel()

    def _working(self) -> set[asyncio.Task[None]]:
        if self.journal is None:
            return set(self._tasks)
        return {task for session in self.sessions() if (task := session.working) is not None}

    async def aclose(self) -> None:
        """
        End every session; idempotent. Turns end as interrupted, followers get the end of their stream. With a store,
        nothing ends but the streams.
        """
        self.closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        sessions = self.sessions()
        for session in sessions:
            session.stop() if self.journal is None else session.suspend()
        self._sessions.clear()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=CLOSE_WAIT_S)
        if self.journal is not None:
            await self.journal.aclose()
            for session in sessions:
                session.feed.close()
        for model in self.models.values():
            close = getattr(model, "aclose", None)
            if close is not None:
                await close()

    def _check_open(self) -> None:
        if self.journal is not None and (self._restoring is None or not self._restoring.done()):
            raise RuntimeError("a harness with a store is opened with `async with`, or by restore()")
        if self.closed or self.draining:
            raise Unavailable("The server is shutting down; try another, or again later.", code="shutting_down")

    def _check_room(self) -> None:
        if len(self._sessions) >= self.limits.sessions:
            raise RateLimited(
                f"There are {len(self._sessions)} sessions, the most this server holds. Delete some first.",
                code="too_many_sessions",
            )

    def _add(self, session: Session) -> Session:
        self._sessions[session.id] = session
        self.watch.session_opened(session)
        if self.journal is not None:
            self.journal.begin(session)
        self._start_sweeping()
        return session

    def _start_sweeping(self) -> None:
        if self._sweeper is None:
            # In a context of its own: what it logs belongs to no request.
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep, context=Context())

    def _sweep(self) -> None:
        """
        Forget the events of sessions that have been idle for a while, and sessions that have been for long. One timer
        for all sessions, none while there are none.
        """
        now = time.time()
        for session in self.sessions():
            if session.response_id is None and session.updated_at <= now - self.limits.session_idle_s:
                self._sessions.pop(session.id)
                session.retire("idle")
            elif session.response_id is None and session.updated_at <= now - self.limits.replay_idle_s:
                session.forget()
        self._sweeper = None
        if self._sessions:
            self._start_sweeping()
