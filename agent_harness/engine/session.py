"""
A session: one agent, one transcript, one feed, at most one running turn.

Only the methods here, and those of its turns in `session_turns`, change the transcript. Each change is one step without
an await: the transcript changes, a turn that waits is woken, events are numbered and published (`Session.keep`).
Handlers and the turn call the same methods.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import attrs

from agent_harness.engine.answer import preview_body
from agent_harness.engine.notes import LATE_CALL
from agent_harness.engine.observer import SessionEnd
from agent_harness.engine.replies import Accepted, Interrupted, Sent
from agent_harness.engine.running import ToolLike, run_message
from agent_harness.engine.session_turns import SessionTurns, has_passed
from agent_harness.errors import Conflict, InvalidRequest, RateLimited, Unavailable
from agent_harness.protocol import events as said
from agent_harness.protocol.commands import Delivery, InputPart, Interrupt, OutputData, SendMessage, UpdateSession
from agent_harness.protocol.items import FunctionCallOutput, InputText, Message, make_id
from agent_harness.protocol.offers import check_offer, check_offers
from agent_harness.protocol.results import find_repeated
from agent_harness.protocol.transcript import Waiting
from agent_harness.protocol.turns import Turn

__all__ = ["Session"]

WHICHEVER_RUNS = Interrupt()

INTERRUPT_WAIT_S = 5.0
"""How long an interrupt waits for a model's stream to let go, in seconds."""


class Session(SessionTurns):
    """
    Made by `agent_harness.engine.harness.Harness`. All methods belong to the harness's event loop.
    """

    __slots__ = ()

    def send(self, command: SendMessage, *, follow: bool = False) -> Sent:
        """
        Take a message: begin its turn, or let it wait. With *follow* it is taken only if its response can be followed.

        Raises:
            Conflict: delivery is ``reject`` and a turn runs.
            RateLimited: too many messages wait, the session is full, or too many follow it.
            Unavailable: the server is shutting down.
            InvalidRequest: tool_choice asks for a function that is not offered, or the tools are too many.
            NotFound: the session was deleted.
        """
        self.check_open()
        if self.host.draining:
            raise Unavailable("The server is shutting down and takes no messages; results are still taken.")
        running = self.transcript.current
        steer = running is not None and command.delivery == "steer"
        check_offer(self.transcript, self.agent, command, steer=steer)
        if command.delivery == "reject" and running is not None:
            raise Conflict(
                f"Turn {running} is running. Wait for its end, interrupt it, or send with delivery queue or steer.",
                code="turn_in_progress",
            )
        if self.is_full():
            raise RateLimited(
                "This session holds as much as one may. Fork it up to an item, or begin a new one.", code="session_full"
            )
        if running is not None and len(self.transcript.waiting) >= self.host.limits.queued_messages:
            raise RateLimited(
                f"{self.host.limits.queued_messages} messages wait already. Send again when a turn has ended.",
                code="queue_full",
            )
        if follow:
            self.check_followers()
        turn_id = running if steer and running else make_id("resp")
        message = _make_message(command, turn_id, "completed" if running is None else "queued")
        seq = self.feed.seq
        if running is None:
            self._begin(message, command)
            return Sent(queued=False, item_id=message.id, response_id=turn_id, seq=seq)
        turn = None if steer else Turn(id=turn_id, status="queued", created_at=int(time.time()))
        waiting = Waiting(message, steer, command.tools, command.tool_choice)
        if turn is not None:
            self.host.watch.turn_queued(turn.id)
        self.keep(self.transcript.wait(waiting, turn))
        actions = self.transcript.required_actions()
        return Sent(queued=True, item_id=message.id, response_id=turn_id, seq=seq, waiting_for=actions)

    def run(
        self,
        content: str | list[dict[str, Any]],
        *,
        tools: Iterable[ToolLike] = (),
        tool_choice: str | Mapping[str, Any] | None = None,
        delivery: Delivery = "queue",
    ) -> AsyncIterator[said.Event]:
        """
        Send a message and yield its response's events, up to the status that closes it.

        *tools* may hold Python functions: they run in process, several at once, and answer their calls. Calls of plain
        definitions are answered by whoever sees them, with `submit`. Leaving the loop early cancels functions that run,
        but not the turn: that is what `interrupt` is for.

        Raises:
            RequestError: the message was refused; as for `send`, or its shape is wrong.
        """
        return run_message(self, content, tools, tool_choice, delivery)

    def submit(self, call_id: str, output: str | tuple[InputPart, ...] | None, is_error: bool = False) -> Accepted:
        """
        Answer an open call; *output* is what the model reads, None the empty text.

        Raises:
            NotFound, Conflict, RequestTooLarge: as for `submit_all`.
        """
        return self.submit_all([OutputData(call_id=call_id, output=output, is_error=is_error)], ["call_id"])[0]

    def submit_all(self, results: Sequence[OutputData], params: Sequence[str]) -> list[Accepted]:
        """
        Take results: all of them, or none. *params* are their paths in the body, for errors.

        Raises:
            NotFound: no such call was announced.
            Conflict: another result was taken, or the call was closed.
            RequestTooLarge: an output is over its limit.
        """
        self.check_open()
        repeated = find_repeated(self.transcript, results, params)
        seq, told, answers = self.feed.seq, [], []
        for data, existing in zip(results, repeated, strict=True):
            output = existing or _make_output(data, self.transcript.current)
            if existing is None:
                told += self.transcript.close_call(output, "failed" if data.is_error else "completed", "client")
            answers.append(Accepted(duplicate=existing is not None, item_id=output.id, call_id=data.call_id, seq=seq))
        if told:
            self.keep(told)
        return answers

    async def interrupt(
        self, command: Interrupt = WHICHEVER_RUNS, answered: Callable[[Interrupted], None] = lambda answer: None
    ) -> Interrupted:
        """
        End the running turn now, and wait until its model stream has let go; without a *command* whichever runs, and
        waiting messages stay. *answered* is called with the answer in the step that ends the turn.

        Raises:
            NotFound: the session was deleted.
        """
        self.check_open()
        turn_id, seq = self.transcript.current, self.feed.seq
        if turn_id is None or command.data.response_id not in (None, turn_id):
            answer = Interrupted(interrupted=False, response_id=None, dropped=(), seq=seq)
            answered(answer)
            return answer
        dropped = tuple(self.transcript.waiting) if command.data.clear_queue else ()
        task = self._task
        self._cancel(clear_queue=command.data.clear_queue)
        answer = Interrupted(interrupted=True, response_id=turn_id, dropped=dropped, seq=seq)
        answered(answer)
        if task is not None and task is not asyncio.current_task():
            await asyncio.wait((task,), timeout=INTERRUPT_WAIT_S)
        return answer

    def update(self, command: UpdateSession) -> None:
        """
        Change the agent and the metadata; in force from the next model call.

        Raises:
            InvalidRequest: the metadata would have more than 16 keys, or a turn that runs or waits too many tools.
            NotFound: the session was deleted.
        """
        self.check_open()
        if "tools" in command.agent:
            check_offers(self.transcript, command.agent["tools"])
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
        self.check_open()
        task = self._task
        if self.transcript.current is not None:
            self._cancel(clear_queue=True)
        self.retire()
        if task is not None:
            await asyncio.wait((task,), timeout=INTERRUPT_WAIT_S)

    def retire(self, why: SessionEnd = "deleted") -> None:
        """
        Tell followers that the session is gone, and take no more commands; no turn may run.
        """
        self.keep([said.SessionDeleted(self.id)])
        self.feed.close()
        self.host.watch.session_ended(self, why)

    def stop(self) -> asyncio.Task[None] | None:
        """
        End whatever runs because the harness closes; the task that still lets go of its model, if any.
        """
        task = self._task
        if self.transcript.current is not None:
            self._cancel(clear_queue=True)
        self.feed.close()
        self.host.watch.session_ended(self, "closed")
        return task

    def suspend(self) -> None:
        """
        Let go of the running turn without ending it, and take no more commands: it is taken up again where the session
        was written down.
        """
        if not self._suspended:
            self._suspended = True
            self.host.watch.session_ended(self, "closed")
        if self._task is not None:
            self._task.cancel()

    def resume(self, told: Sequence[said.Event]) -> None:
        """
        Take up what was written down: calls that are open can be answered, those whose time is over are closed, the
        turn goes on. *told* are the events of what was cut.
        """
        self._told = (self.status, self.response_id)
        late = self._close_open("deadline", LATE_CALL, has_passed)
        if told or late:
            self.keep([*told, *late])
        if self.transcript.current is not None:
            self.host.watch.turn_began(self.transcript.current)
            self._run_turn()
        else:
            self._begin_next()

    @property
    def working(self) -> asyncio.Task[None] | None:
        """
        The task of a turn that does something now: none waits for results.
        """
        return None if self.transcript.open_calls else self._task

    def preview_body(self) -> bytes:
        """
        The body that the next model call would have.

        Raises:
            InvalidRequest: no request can be made of the agent's provider or model.
            NotFound: the session was deleted.
        """
        self.check_open()
        return preview_body(self)


def _make_message(command: SendMessage, turn_id: str, status: Literal["completed", "queued"]) -> Message:
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


def _make_output(data: OutputData, turn_id: str | None) -> FunctionCallOutput:
    return FunctionCallOutput(
        id=make_id("fco"),
        call_id=data.call_id,
        output="" if data.output is None else data.output,
        is_error=data.is_error,
        response_id=turn_id,
        created_at=int(time.time()),
    )
