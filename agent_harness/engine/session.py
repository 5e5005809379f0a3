"""
A session: one agent, one transcript, one feed, at most one running turn.

Only the methods here change the transcript. Each change is one step without an await: the transcript changes, futures
open or resolve, events are numbered and published (`Session.keep`). Handlers and the turn call the same methods.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, Protocol

import attrs

from agent_harness.engine.answers import FAILED_CALL, INTERRUPTED_CALL, LATE_CALL, harness_output, interrupt_marker, refusal_text
from agent_harness.engine.feed import Feed, Follower
from agent_harness.engine.pending import Pending
from agent_harness.engine.turn import TurnOver, run_turn
from agent_harness.errors import Conflict, InvalidRequest, ModelError, NotFound, RateLimited
from agent_harness.llm import base
from agent_harness.protocol import events as said
from agent_harness.protocol.agents import Agent
from agent_harness.protocol.blocks import Block
from agent_harness.protocol.answers import finish_draft, grow_draft
from agent_harness.protocol.commands import Interrupt, OutputData, SendMessage, UpdateSession
from agent_harness.protocol.drafts import Draft
from agent_harness.protocol.items import FunctionCall, FunctionCallOutput, InputText, Message, Provenance, Usage, make_id
from agent_harness.protocol.pages import Snapshot
from agent_harness.protocol.tools import NamedChoice, Tool, ToolChoice, clean_call_id, clean_name, clean_text, merge_tools
from agent_harness.protocol.transcript import ClosedBy, Step, Transcript, Waiting
from agent_harness.protocol.turns import LastError, RequiredAction, Turn

__all__ = ["Accepted", "Interrupted", "Sent", "Session", "SessionHost"]

log = logging.getLogger(__name__)

Status = Literal["idle", "running", "waiting", "failed"]

INTERRUPT_WAIT_S = 5.0
"""How long an interrupt waits for a model's stream to let go, in seconds."""


class SessionHost(Protocol):
    """
    What a session needs of the harness around it.
    """

    queued_messages: int
    replay_events: int
    default_provider: str

    def find_model(self, provider: str) -> base.Model:
        """
        The model of a provider; raises ModelError (``provider_not_found``).
        """

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """
        Run a turn in a task of its own.
        """


@attrs.frozen(kw_only=True)
class Sent:
    """
    The answer to a message; ``waiting_for`` only when it is queued.
    """

    queued: bool
    item_id: str
    response_id: str
    seq: int
    waiting_for: tuple[RequiredAction, ...] | None = None


@attrs.frozen(kw_only=True)
class Accepted:
    """
    The answer to a result.
    """

    accepted: bool = True
    duplicate: bool
    item_id: str
    call_id: str
    seq: int


@attrs.frozen(kw_only=True)
class Interrupted:
    """
    The answer to an interrupt; ``dropped`` are the item ids of messages that no longer wait.
    """

    interrupted: bool
    response_id: str | None
    dropped: tuple[str, ...]
    seq: int


class Session:
    """
    Made by `agent_harness.engine.harness.Harness`. All methods belong to the harness's event loop.
    """

    __slots__ = (
        "_cache", "_host", "_offered", "_pending", "_task", "_told", "agent", "created_at", "feed", "id", "last_error",
        "metadata", "transcript", "updated_at", "usage",
    )  # fmt: skip

    def __init__(
        self, host: SessionHost, agent: Agent, metadata: dict[str, str], transcript: Transcript, id: str | None = None
    ) -> None:
        self.id = id or make_id("sess")
        self.agent = agent
        self.metadata = metadata
        self.transcript = transcript
        self.created_at = self.updated_at = int(time.time())
        self.usage: Usage | None = None
        self.last_error: LastError | None = None
        self.feed = Feed(host.replay_events)
        self._host = host
        self._pending = Pending()
        self._task: asyncio.Task[None] | None = None
        self._told: tuple[Status, str | None] = ("idle", None)
        self._offered: dict[str, Tool] = {}
        self._cache = base.RequestCache()

    def __repr__(self) -> str:
        return f"<Session {self.id} {self.status} seq={self.feed.seq}>"

    # What can be seen.

    @property
    def status(self) -> Status:
        """
        ``waiting`` while a call is open, ``running`` while a turn runs or is about to, ``failed`` after one that failed.
        """
        if self.response_id is not None:
            return "waiting" if self.transcript.open_calls else "running"
        return "failed" if self.last_error else "idle"

    @property
    def response_id(self) -> str | None:
        """
        The turn that runs; between two turns the one that comes next.
        """
        if self.transcript.current is not None:
            return self.transcript.current
        coming = self.transcript.next_waiting()
        return coming.message.response_id if coming else None

    def status_event(self, *, item_id: str | None = None, response_id: str | None = None) -> said.SessionStatus:
        """
        The present status as an event; *item_id* and *response_id* are those of a message whose own stream begins.
        """
        return said.SessionStatus(
            status=self.status,
            response_id=response_id or self.response_id,
            required_actions=self.transcript.required_actions(),
            queued=tuple(self.transcript.waiting),
            last_error=self.last_error,
            item_id=item_id,
        )

    def snapshot(self, *, include_items: bool = True) -> Snapshot:
        """
        The session as it is now.
        """
        return Snapshot(
            id=self.id,
            status=self.status,
            created_at=self.created_at,
            updated_at=self.updated_at,
            agent=self.agent,
            metadata=self.metadata,
            response_id=self.response_id,
            required_actions=self.transcript.required_actions(),
            queued=tuple(self.transcript.waiting),
            seq=self.feed.seq,
            usage=self.usage,
            last_error=self.last_error,
            items=tuple(self.transcript.items()) if include_items else None,
        )

    def follow(self, after: str | None = None, *, sent: Sent | None = None) -> Follower:
        """
        Follow the session from event number *after* (as the client gave it), or from now on; with *sent* from before that
        message took effect.
        """
        self._check_open()
        if sent is not None:
            opening = self.status_event(item_id=sent.item_id, response_id=sent.response_id)
            return self.feed.follow(opening, [], str(sent.seq), seq=sent.seq)
        open_calls = [self._announce_again(call_id) for call_id in self.transcript.open_calls]
        return self.feed.follow(self.status_event(), open_calls, after)

    def _announce_again(self, call_id: str) -> said.OutputItemDone:
        item, call = self.transcript.call_item(call_id), self.transcript.calls[call_id]
        return said.OutputItemDone(item.response_id or "", call.output_index, item, replayed=True)

    # The one writer.

    def keep(self, events: Sequence[said.Event]) -> None:
        """
        Finish a change that the transcript has just made: futures, numbers, followers, and the status if it changed.
        """
        self.updated_at = int(time.time())
        ended = False
        for event in events:
            if isinstance(event, said.OutputItemDone) and isinstance(event.item, FunctionCall):
                if event.item.status == "action_required":
                    self._pending.open(event.item.call_id)
                else:
                    self._pending.resolve(event.item.call_id)
            ended = ended or isinstance(event, said.TERMINAL_EVENTS)
        for event in events:
            self.feed.publish(event)
        now = (self.status, self.response_id)
        if ended or now != self._told:
            self._told = now
            self.feed.publish(self.status_event())

    def _check_open(self) -> None:
        if self.feed.closed:
            raise NotFound(f"There is no session {self.id}; it was deleted.", code="unknown_session")

    # Commands.

    def send(self, command: SendMessage) -> Sent:
        """
        Take a message: begin its turn, or let it wait.

        Raises:
            Conflict: delivery is ``reject`` and a turn runs.
            RateLimited: too many messages wait.
            InvalidRequest: tool_choice names a function that is not offered.
            NotFound: the session was deleted.
        """
        self._check_open()
        running = self.transcript.current
        self._check_tool_choice(command)
        if command.delivery == "reject" and running is not None:
            raise Conflict(
                f"Turn {running} is running. Wait for its end, interrupt it, or send with delivery queue or steer.",
                code="turn_in_progress",
            )
        if running is not None and len(self.transcript.waiting) >= self._host.queued_messages:
            raise RateLimited(
                f"{self._host.queued_messages} messages wait already. Send again when a turn has ended.", code="queue_full"
            )
        steer = running is not None and command.delivery == "steer"
        turn_id = running if steer and running else make_id("resp")
        message = self._make_message(command, turn_id, "completed" if running is None else "queued")
        seq = self.feed.seq
        if running is None:
            self._begin(message, command)
            return Sent(queued=False, item_id=message.id, response_id=turn_id, seq=seq)
        turn = None if steer else Turn(id=turn_id, status="queued", created_at=int(time.time()))
        waiting = Waiting(message, steer, command.tools, command.tool_choice)
        self.keep(self.transcript.wait(waiting, turn))
        actions = self.transcript.required_actions()
        return Sent(queued=True, item_id=message.id, response_id=turn_id, seq=seq, waiting_for=actions)

    def submit(self, results: Sequence[OutputData], params: Sequence[str]) -> list[Accepted]:
        """
        Take results: all of them, or none. *params* are their paths in the body, for errors.

        Raises:
            NotFound: no such call was announced.
            Conflict: another result was taken, or the call was closed.
        """
        self._check_open()
        known = [self._check_result(data, param) for data, param in zip(results, params, strict=True)]
        seq, told, answers = self.feed.seq, [], []
        for data, existing in zip(results, known, strict=True):
            output = existing or self._make_output(data)
            if existing is None:
                told += self.transcript.close_call(output, "failed" if data.is_error else "completed", "client")
            answers.append(
                Accepted(duplicate=existing is not None, item_id=output.id, call_id=data.call_id, seq=seq)
            )
        if told:
            self.keep(told)
        return answers

    async def interrupt(self, command: Interrupt) -> Interrupted:
        """
        End the running turn now, and wait until its model stream has let go.

        Raises:
            NotFound: the session was deleted.
        """
        self._check_open()
        turn_id, seq = self.transcript.current, self.feed.seq
        if turn_id is None or command.data.response_id not in (None, turn_id):
            return Interrupted(interrupted=False, response_id=None, dropped=(), seq=seq)
        dropped = tuple(self.transcript.waiting) if command.data.clear_queue else ()
        task = self._task
        self._cancel(clear_queue=command.data.clear_queue)
        if task is not None and task is not asyncio.current_task():
            await asyncio.wait((task,), timeout=INTERRUPT_WAIT_S)
        return Interrupted(interrupted=True, response_id=turn_id, dropped=dropped, seq=seq)

    def update(self, command: UpdateSession) -> None:
        """
        Change the agent and the metadata; in force from the next model call.

        Raises:
            InvalidRequest: the metadata would have more than 16 keys.
            NotFound: the session was deleted.
        """
        self._check_open()
        metadata = self.metadata | dict(command.metadata)
        kept = {key: value for key, value in metadata.items() if value is not None}
        if len(kept) > 16:
            raise InvalidRequest("At most 16 metadata keys are kept.", param="metadata")
        self.agent = attrs.evolve(self.agent, **command.agent)
        self.metadata = kept
        self.keep([said.SessionUpdated(self.agent, self.metadata)])

    async def delete(self) -> None:
        """
        End whatever runs, tell followers, and take no more commands.
        """
        self._check_open()
        task = self._task
        if self.transcript.current is not None:
            self._cancel(clear_queue=True)
        self.keep([said.SessionDeleted(self.id)])
        self.feed.close()
        if task is not None:
            await asyncio.wait((task,), timeout=INTERRUPT_WAIT_S)

    def stop(self) -> asyncio.Task[None] | None:
        """
        End whatever runs because the harness closes; the task that still lets go of its model, if any.
        """
        task = self._task
        if self.transcript.current is not None:
            self._cancel(clear_queue=True)
        self.feed.close()
        return task

    # The turn's side. Each method raises TurnOver when the turn is not the running one.

    def step_of(self, turn_id: str) -> Step:
        """
        What comes next for the turn.
        """
        self._check_turn(turn_id)
        return self.transcript.step

    def begin_model_call(self, turn_id: str) -> tuple[base.Model, base.Request]:
        """
        Let steered messages in, count the call, and build its request.

        Raises:
            ModelError: there is no such provider.
        """
        self._check_turn(turn_id)
        entered = self.transcript.enter_steered()
        if entered:
            self.keep(entered)
        model = self._host.find_model(self._provider)
        self.transcript.count_call(self.agent.model or model.default_model)
        request = self.build_request(first=self.transcript.running.model_calls == 1)
        self._offered = {tool.name: tool for tool in request.tools}
        return model, request

    def build_request(self, *, first: bool) -> base.Request:
        """
        The request that a model call made now would be; *first* of its turn or not.
        """
        blocks, closed = self.transcript.blocks()
        tools = merge_tools(self.agent.tools, self.transcript.tools)
        return base.Request(
            session_id=self.id,
            provider=self._provider,
            model=self.agent.model,
            blocks=blocks,
            closed=closed,
            instructions=self.agent.instructions,
            tools=tools,
            tool_choice=self._tool_choice(tools, first),
            parallel_tool_calls=self.agent.parallel_tool_calls,
            temperature=self.agent.temperature,
            top_p=self.agent.top_p,
            max_output_tokens=self.agent.max_output_tokens,
            reasoning=self.agent.reasoning,
            text=self.agent.text,
            cache=self._cache,
        )

    def preview_body(self) -> bytes:
        """
        The body that the next model call would have: steered messages are in it, open calls have no output yet.

        Raises:
            InvalidRequest: there is no such provider.
        """
        self._check_open()
        try:
            model = self._host.find_model(self._provider)
        except ModelError as error:
            raise InvalidRequest(error.message, param="agent.provider") from None
        turn = self.transcript.running if self.transcript.current else None
        request = self.build_request(first=turn is None or turn.model_calls == 0)
        steered = tuple(Block((waiting.message,)) for waiting in self.transcript.steered())
        return model.body(attrs.evolve(request, blocks=request.blocks + steered, cache=base.RequestCache()))

    def take_delta(self, turn_id: str, delta: base.Delta) -> None:
        """
        Take one delta of the model's answer.
        """
        self._check_turn(turn_id)
        match delta:
            case base.ItemAdded():
                self.keep(self.transcript.begin_item(delta.index, self._make_draft(turn_id, delta)))
            case base.TextDelta():
                self._grow(delta.index, delta.content_index, "text", delta.delta)
            case base.RefusalDelta():
                self._grow(delta.index, delta.content_index, "refusal", delta.delta)
            case base.ArgumentsDelta():
                self._grow(delta.index, 0, "arguments", delta.delta)
            case base.SummaryDelta():
                self._grow(delta.index, delta.summary_index, "summary", delta.delta)
            case base.ItemDone():
                self._finish(delta)
            case base.Retrying():
                self.keep([said.ResponseRetrying(turn_id, delta.attempt, delta.delay_s, clean_text(delta.reason))])
            case _:
                raise TypeError(f"a model yielded {delta!r}, which is no Delta")

    def end_answer(self, turn_id: str, ended: base.Ended) -> None:
        """
        The model's answer has ended: announce its calls, or end the turn.
        """
        self._check_turn(turn_id)
        transcript = self.transcript
        transcript.add_usage(ended.usage)
        self.usage = ended.usage if self.usage is None else self.usage + ended.usage
        if ended.reason != "completed":
            self._end(transcript.cut_answer(), "incomplete", reason=ended.reason)
            return
        for index in [index for index, draft in transcript.drafts.items() if not draft.done]:
            self._finish(base.ItemDone(index))
        calls = [draft for draft in transcript.drafts.values() if draft.type == "function_call"]
        at_bound = transcript.running.model_calls >= self.agent.max_model_calls
        if at_bound and (calls or transcript.steered()):
            self._end(transcript.end_answer({}, {}), "incomplete", reason="max_model_calls")
        elif calls:
            self._announce(calls)
        elif transcript.steered():
            self.keep([*transcript.end_answer({}, {}), *transcript.enter_steered()])
        else:
            self._end(transcript.end_answer({}, {}), "completed")

    def fail(self, turn_id: str, error: ModelError) -> None:
        """
        End the turn ``response.failed``; what its answer held so far stays, incomplete. Nothing if it is over.
        """
        if self.transcript.current == turn_id:
            reason = LastError(error.code, clean_text(error.message))
            self._end([*self.transcript.cut_answer(), *self._close_open("harness", FAILED_CALL)], "failed", error=reason)

    async def wait_for_results(self, turn_id: str) -> None:
        """
        Return when an open call was closed, by whatever; close those whose deadline has passed.
        """
        self._check_turn(turn_id)
        deadlines = [self.transcript.calls[call_id].expires_at for call_id in self.transcript.open_calls]
        earliest = min((deadline for deadline in deadlines if deadline is not None), default=None)
        await self._pending.wait(None if earliest is None else max(0.0, earliest - time.time()))
        self._check_turn(turn_id)
        late = self._close_open("deadline", LATE_CALL, lambda expires_at: expires_at is not None and expires_at <= time.time())
        if late:
            self.keep(late)

    # How it is done.

    @property
    def _provider(self) -> str:
        return self.agent.provider or self._host.default_provider

    def _check_turn(self, turn_id: str) -> None:
        if self.transcript.current != turn_id:
            raise TurnOver(turn_id)

    def _check_tool_choice(self, command: SendMessage) -> None:
        choice = command.tool_choice
        if not isinstance(choice, NamedChoice) and choice != "required":
            return
        offered = [tool.name for tool in merge_tools(self.agent.tools, command.tools or ())]
        if (choice == "required" and not offered) or (isinstance(choice, NamedChoice) and choice.name not in offered):
            names = ", ".join(offered) or "none"
            raise InvalidRequest(f"tool_choice asks for a function that is not offered; offered: {names}.", param="tool_choice")

    def _tool_choice(self, tools: tuple[Tool, ...], first: bool) -> ToolChoice | None:
        """
        The choice for a model call: one that forces a call holds for the *first* of the turn only.
        """
        choice = self.transcript.tool_choice or self.agent.tool_choice
        if choice is None or not tools:
            return None
        if choice in ("auto", "none"):
            return choice
        missing = isinstance(choice, NamedChoice) and all(tool.name != choice.name for tool in tools)
        return choice if first and not missing else "auto"

    def _begin(self, message: Message, command: SendMessage) -> None:
        self.last_error = None
        turn = Turn(
            id=message.response_id or "", status="in_progress", model=self._model_name(), created_at=int(time.time())
        )
        self.keep(self.transcript.open_turn(turn, message, command.tools or (), command.tool_choice))
        self._start_turn()

    def _begin_next(self) -> None:
        if self.transcript.next_waiting() is not None and not self.feed.closed:
            self.last_error = None
            self.keep(self.transcript.open_next_turn(self._model_name()))
            self._start_turn()

    def _start_turn(self) -> None:
        turn = self.transcript.running
        self.keep([said.ResponseCreated(turn)])
        self._task = task = self._host.spawn(run_turn(self, turn.id))
        task.add_done_callback(lambda done: self._turn_left(turn.id, done))

    def _turn_left(self, turn_id: str, task: asyncio.Task[None]) -> None:
        """
        The turn's task is over. If its turn is not (a model cancelled it, say), the turn fails: a session is never stuck.
        """
        if self._task is task:
            self._task = None
        if not task.cancelled() and task.exception() is not None:
            log.error("the task of turn %s died", turn_id, exc_info=task.exception())
        self.fail(turn_id, ModelError("The turn's task was stopped from outside.", code="internal_error"))

    def _cancel(self, *, clear_queue: bool) -> None:
        """
        End the running turn as interrupted, and its task.
        """
        turn_id, now = self.transcript.running.id, int(time.time())
        told = self.transcript.drop_waiting(now) if clear_queue else []
        told += [*self.transcript.cut_answer(), *self._close_open("interrupt", INTERRUPTED_CALL)]
        if self._task is not None:
            self._task.cancel()
        self._end(told, "cancelled", marker=interrupt_marker(turn_id, now))

    def _close_open(
        self, by: ClosedBy, text: str, which: Callable[[float | None], bool] = lambda expires_at: True
    ) -> list[said.Event]:
        told: list[said.Event] = []
        for call_id in list(self.transcript.open_calls):
            if which(self.transcript.calls[call_id].expires_at):
                output = harness_output(call_id, text, self.transcript.current or "", int(time.time()))
                told += self.transcript.close_call(output, "incomplete", by)
        return told

    def _end(
        self,
        told: Sequence[said.Event],
        status: Literal["completed", "failed", "cancelled", "incomplete"],
        *,
        error: LastError | None = None,
        reason: Any = None,
        marker: Message | None = None,
    ) -> None:
        """
        End the running turn in one step with what was *told* before, and begin the next.
        """
        transcript = self.transcript
        rest = [*transcript.enter_steered(), *(transcript.add_message(marker) if marker else ())]
        terminal = transcript.end_turn(status, int(time.time()), error=error, reason=reason)
        self.last_error = error
        self._offered = {}
        self.keep([*told, *rest, *terminal])
        self._begin_next()

    def _announce(self, calls: Sequence[Draft]) -> None:
        now = time.time()
        expires: dict[str, float | None] = {}
        refused: dict[str, FunctionCallOutput] = {}
        for draft in calls:
            text = refusal_text(draft, self._offered)
            if text is not None:
                refused[draft.call_id] = harness_output(draft.call_id, text, draft.response_id, int(now))
                continue
            timeout = self._offered[draft.name].timeout_s or self.agent.tool_timeout_s
            expires[draft.call_id] = None if timeout is None else round(now + timeout, 3)
        self.keep(self.transcript.end_answer(expires, refused))

    def _grow(self, index: int, part: int, kind: str, piece: str) -> None:
        self.keep(grow_draft(self.transcript.drafts[index], part, kind, clean_text(piece)))

    def _finish(self, done: base.ItemDone) -> None:
        hidden = done.hidden
        name = self.transcript.running.model or ""
        provenance = Provenance(self._provider, name, hidden) if hidden else None
        self.keep(
            finish_draft(
                self.transcript.drafts[done.index],
                arguments=done.arguments,
                annotations=done.annotations,
                provenance=provenance,
            )
        )

    def _model_name(self) -> str | None:
        if self.agent.model is not None:
            return self.agent.model
        try:
            return self._host.find_model(self._provider).default_model
        except ModelError:
            return None

    def _make_message(self, command: SendMessage, turn_id: str, status: Literal["completed", "queued"]) -> Message:
        content = command.data.content
        return Message(
            id=make_id("msg"),
            role="user",
            content=(InputText(content),) if isinstance(content, str) else content,
            origin="client",
            status=status,
            response_id=turn_id,
            created_at=int(time.time()),
        )

    def _make_draft(self, turn_id: str, added: base.ItemAdded) -> Draft:
        prefix = {"message": "msg", "function_call": "fc", "reasoning": "rs"}[added.type]
        draft = Draft(
            id=make_id(prefix), type=added.type, response_id=turn_id, output_index=0, created_at=int(time.time())
        )
        if added.type == "function_call":
            draft.call_id = clean_call_id(added.call_id, self.transcript.calls, draft.id)
            draft.raw_name, draft.name = added.name, clean_name(added.name)
        return draft

    def _make_output(self, data: OutputData) -> FunctionCallOutput:
        return FunctionCallOutput(
            id=make_id("fco"),
            call_id=data.call_id,
            output="" if data.output is None else data.output,
            is_error=data.is_error,
            response_id=self.transcript.current,
            created_at=int(time.time()),
        )

    def _check_result(self, data: OutputData, param: str) -> FunctionCallOutput | None:
        """
        The output the call has already, if *data* repeats it; None if the call is open.
        """
        if data.call_id in self.transcript.open_calls:
            return None
        existing = self.transcript.outputs.get(data.call_id)
        if existing is None:
            names = ", ".join(self.transcript.open_calls) or "none"
            raise NotFound(
                f"No call {data.call_id[:80]!r} was announced in this session; open calls: {names}.",
                code="unknown_call",
                param=param,
            )
        closed_by = self.transcript.calls[data.call_id].closed_by
        if closed_by != "client":
            raise Conflict(
                f"Call {data.call_id} was closed by the {closed_by} before this result came; the result was not taken.",
                code="call_closed",
                param=param,
                extra={"closed_by": closed_by},
            )
        if existing.output == ("" if data.output is None else data.output) and existing.is_error == data.is_error:
            return existing
        raise Conflict(
            f"Call {data.call_id} was answered already, by another result; the first one stands.",
            code="call_already_answered",
            param=param,
        )
