"""
The transcript: items and turn records, the rules by which they change, and the step that follows from them.

Everything a session is can be read off here: open calls are the calls with status ``action_required``, the queue is the
messages that wait. Each method makes one change and returns the events that tell of it, in wire order; it knows no
clock, no loop and no follower. `agent_harness.engine.session.Session` is the only caller.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Literal

import attrs

from agent_harness.protocol import events as said
from agent_harness.protocol.blocks import Block, Blocks, build_blocks
from agent_harness.protocol.changed import changed
from agent_harness.protocol.drafts import Draft
from agent_harness.protocol.items import FunctionCall, FunctionCallOutput, Item, Message, Usage
from agent_harness.protocol.sizes import ITEM_SIZE, item_size
from agent_harness.protocol.tools import Tool, ToolChoice
from agent_harness.protocol.turns import IncompleteReason, LastError, RequiredAction, Turn

__all__ = ["Call", "ClosedBy", "Step", "Transcript", "Waiting"]

ClosedBy = Literal["client", "interrupt", "deadline", "harness"]


class Step(Enum):
    """
    What comes next.
    """

    IDLE = "idle"
    CALL_MODEL = "call_model"
    AWAIT_RESULTS = "await_results"


@attrs.define(eq=False)
class Call:
    """
    What the transcript knows of a call beside its item: where it stands, and how it was closed.
    """

    position: int
    output_index: int = 0
    closed_by: ClosedBy | None = None
    expires_at: float | None = None


@attrs.define(eq=False)
class Waiting:
    """
    A message that waits for its turn (or, steered, for the running turn's next model call).
    """

    message: Message
    steer: bool
    tools: tuple[Tool, ...] | None
    tool_choice: ToolChoice | None


@attrs.define(eq=False)
class Transcript:
    """
    See the module. ``current`` is the running turn's id; ``tools`` and ``tool_choice`` are what its message brought;
    ``size`` is about how many bytes the items take; ``answered`` is how many of the running turn's model calls have
    their answer.
    """

    turns: dict[str, Turn] = attrs.field(factory=dict)
    waiting: dict[str, Waiting] = attrs.field(factory=dict)
    current: str | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    open_calls: list[str] = attrs.field(factory=list)
    calls: dict[str, Call] = attrs.field(factory=dict)
    outputs: dict[str, FunctionCallOutput] = attrs.field(factory=dict)
    drafts: dict[int, Draft] = attrs.field(factory=dict)
    size: int = 0
    answered: int = 0
    _entries: list[Item | Draft] = attrs.field(factory=list, alias="entries")
    next_index: int = 0
    _closed_blocks: list[Block] = attrs.field(factory=list)
    _open_block_start: int = 0

    # What can be read off it.

    @property
    def step(self) -> Step:
        """
        What comes next.
        """
        if self.current is None:
            return Step.IDLE
        return Step.AWAIT_RESULTS if self.open_calls else Step.CALL_MODEL

    @property
    def running(self) -> Turn:
        """
        The record of the running turn; there must be one.
        """
        assert self.current is not None
        return self.turns[self.current]

    def items(self) -> list[Item]:
        """
        All items in wire order: drafts as they stand, waiting messages last.
        """
        shown = [entry.item() if isinstance(entry, Draft) else entry for entry in self._entries]
        return [*shown, *(waiting.message for waiting in self.waiting.values())]

    def settled(self) -> list[Item]:
        """
        The items that are neither queued nor in progress.
        """
        return [entry for entry in self._entries if not isinstance(entry, Draft)]

    @property
    def entered(self) -> int:
        """
        How many items there are, waiting messages not included.
        """
        return len(self._entries)

    def entry(self, position: int) -> tuple[Item, Call]:
        """
        The item at *position* as it stands, and what is known of it beside (of a call: its own, else a new one).
        """
        entry = self._entries[position]
        if isinstance(entry, Draft):
            return entry.item(), self.calls.get(entry.call_id) or Call(position, entry.output_index)
        return entry, self.calls[entry.call_id] if isinstance(entry, FunctionCall) else Call(position)

    def find_entry(self, item: Item) -> int:
        """
        The position of *item*; fast for calls and for what stands near the end.
        """
        if isinstance(item, FunctionCall):
            return self.calls[item.call_id].position
        position = len(self._entries) - 1
        while self._entries[position].id != item.id:
            position -= 1
        return position

    def call_item(self, call_id: str) -> FunctionCall:
        """
        The item of a known call, as it stands.
        """
        entry = self._entries[self.calls[call_id].position]
        item = entry.item() if isinstance(entry, Draft) else entry
        assert isinstance(item, FunctionCall)
        return item

    def was_announced(self, call_id: str) -> bool:
        """
        Whether a client could ever hear of the call as its own, or learn how it was closed.
        """
        return call_id in self.outputs or call_id in self.open_calls

    def required_actions(self) -> tuple[RequiredAction, ...]:
        """
        The open calls, in call order.
        """
        return tuple([self._required_action(call_id) for call_id in self.open_calls])

    def steered(self) -> list[Waiting]:
        """
        The waiting messages that belong to the running turn.
        """
        return [waiting for waiting in self.waiting.values() if waiting.steer]

    def blocks(self) -> tuple[Blocks, int]:
        """
        What the next model request is made of, and how many of its first blocks will never change.

        Costs what came since the last call.
        """
        tail, start = build_blocks(self._entries, self.outputs, self._open_block_start)
        if len(tail) > 1:
            self._closed_blocks.extend(tail[:-1])
            self._open_block_start = start
        closed = len(self._closed_blocks)
        return Blocks(self._closed_blocks, closed, tail[-1:]), closed

    def forget_blocks(self) -> None:
        """
        Keep no blocks: the next call of `blocks` makes all of them again.
        """
        if self._closed_blocks:
            self._closed_blocks = []
            self._open_block_start = 0

    def reaches(self, items: int, size: int) -> bool:
        """
        Whether there are as many *items*, waiting messages included, or as many bytes in them.
        """
        return self.size >= size or len(self._entries) + len(self.waiting) >= items

    # Messages and turns.

    def open_turn(
        self, turn: Turn, message: Message, tools: tuple[Tool, ...], tool_choice: ToolChoice | None
    ) -> list[said.Event]:
        """
        Begin *turn* with *message*; no other may run.
        """
        assert self.current is None
        self.turns[turn.id] = turn
        self.current, self.tools, self.tool_choice, self.next_index, self.answered = turn.id, tools, tool_choice, 0, 0
        self._append(message)
        return [said.SessionItem(message)]

    def wait(self, waiting: Waiting, turn: Turn | None) -> list[said.Event]:
        """
        Let a message wait: for its own *turn*, or (None) for the running one's next model call.
        """
        if turn is not None:
            self.turns[turn.id] = turn
        self.waiting[waiting.message.id] = waiting
        return [said.SessionItem(waiting.message)]

    def next_waiting(self) -> Waiting | None:
        """
        The message whose turn comes next.
        """
        for waiting in self.waiting.values():
            if not waiting.steer:
                return waiting
        return None

    def open_next_turn(self, model: str | None) -> list[said.Event]:
        """
        Begin the turn of the message that waited longest; there must be one.
        """
        waiting = self.next_waiting()
        assert waiting is not None and waiting.message.response_id is not None
        del self.waiting[waiting.message.id]
        turn = changed(self.turns[waiting.message.response_id], status="in_progress", model=model)
        message = changed(waiting.message, status="completed")
        return self.open_turn(turn, message, waiting.tools or (), waiting.tool_choice)

    def enter_steered(self) -> list[said.Event]:
        """
        Let the steered messages in.
        """
        told: list[said.Event] = []
        for waiting in self.steered():
            del self.waiting[waiting.message.id]
            told += self.add_message(changed(waiting.message, status="completed"))
            if waiting.tools is not None:
                self.tools = waiting.tools
            if waiting.tool_choice is not None:
                self.tool_choice = waiting.tool_choice
        return told

    def drop_waiting(self, now: int) -> list[said.Event]:
        """
        Drop every waiting message; a turn that never began ends ``cancelled``.
        """
        told: list[said.Event] = []
        for waiting in self.waiting.values():
            told.append(said.SessionItem(changed(waiting.message, status="cancelled")))
            if not waiting.steer and waiting.message.response_id is not None:
                turn = self.turns[waiting.message.response_id]
                self.turns[turn.id] = changed(turn, status="cancelled", completed_at=now)
                told.append(said.ResponseCancelled(self.turns[turn.id]))
        self.waiting.clear()
        return told

    def add_message(self, message: Message) -> list[said.Event]:
        """
        Add a message that the model did not write.
        """
        self._append(message)
        return [said.SessionItem(message)]

    def count_call(self, model: str | None) -> None:
        """
        Note that the running turn calls the model (once more).
        """
        turn = self.running
        self.turns[turn.id] = changed(turn, model=model, model_calls=turn.model_calls + 1)

    def add_usage(self, usage: Usage) -> None:
        """
        Add one answer's tokens to the running turn's.
        """
        turn = self.running
        self.turns[turn.id] = changed(turn, usage=usage if turn.usage is None else turn.usage + usage)

    def end_turn(
        self,
        status: Literal["completed", "failed", "cancelled", "incomplete"],
        now: int,
        *,
        error: LastError | None = None,
        reason: IncompleteReason | None = None,
    ) -> list[said.Event]:
        """
        End the running turn; nothing of it may be in progress or open.
        """
        assert not self.open_calls and not self.drafts
        turn = changed(self.running, status=status, error=error, incomplete_reason=reason, completed_at=now)
        self.turns[turn.id] = turn
        self.current, self.tools, self.tool_choice = None, (), None
        return [_TERMINAL[status](turn)]

    # The model's answer.

    def begin_item(self, index: int, draft: Draft) -> list[said.Event]:
        """
        Begin an item of the answer; *index* is its place in it, ``draft.output_index`` is set here.
        """
        assert self.current is not None
        if index in self.drafts:
            raise ValueError(f"the answer has an item {index} already")
        draft.output_index = self._take_index()
        self.drafts[index] = draft
        if draft.type == "function_call":
            self.calls[draft.call_id] = Call(len(self._entries), draft.output_index)
        self._entries.append(draft)
        self.size += ITEM_SIZE
        return [said.OutputItemAdded(self.current, draft.output_index, draft.item())]

    def cut_answer(self) -> list[said.Event]:
        """
        End the answer's items ``incomplete``: it was cut, and no call of it is announced.
        """
        return self._settle_answer({draft.id: "incomplete" for draft in self.drafts.values()})

    def end_answer(
        self, expires: Mapping[str, float | None], refused: Mapping[str, FunctionCallOutput]
    ) -> list[said.Event]:
        """
        End the answer's items: calls in *expires* (call_id to deadline, Unix seconds) are announced, those in *refused*
        closed by the output given, other calls end ``incomplete``; everything else is complete.
        """
        self.answered = self.running.model_calls
        statuses: dict[str, str] = {}
        for draft in self.drafts.values():
            statuses[draft.id] = "completed"
            if draft.type == "function_call":
                announced = "action_required" if draft.call_id in expires else "incomplete"
                statuses[draft.id] = "failed" if draft.call_id in refused else announced
        for call_id, expires_at in expires.items():
            self.calls[call_id].expires_at = expires_at
            self.open_calls.append(call_id)
        return self._settle_answer(statuses, refused)

    def _settle_answer(
        self, statuses: Mapping[str, str], refused: Mapping[str, FunctionCallOutput] | None = None
    ) -> list[said.Event]:
        told: list[said.Event] = []
        ordered = sorted(self.drafts.values(), key=lambda draft: draft.output_index)
        self.drafts = {}
        for draft in ordered:
            position = self._find_draft(draft)
            self._entries[position] = item = draft.item(statuses[draft.id])
            told.append(said.OutputItemDone(draft.response_id, draft.output_index, item))
            if refused and draft.call_id in refused:
                told.append(self._add_output(refused[draft.call_id], "harness"))
        return told

    def _find_draft(self, draft: Draft) -> int:
        position = len(self._entries) - 1
        while self._entries[position] is not draft:
            position -= 1
        return position

    # Results.

    def close_call(
        self, output: FunctionCallOutput, status: Literal["completed", "failed", "incomplete"], closed_by: ClosedBy
    ) -> list[said.Event]:
        """
        Close an open call with its *output*: its last status, directly before the output.
        """
        self.open_calls.remove(output.call_id)
        call = self.calls[output.call_id]
        item = changed(self.call_item(output.call_id), status=status)
        self._entries[call.position] = item
        assert self.current is not None
        done = said.OutputItemDone(self.current, call.output_index, item)
        return [done, self._add_output(output, closed_by)]

    def _add_output(self, output: FunctionCallOutput, closed_by: ClosedBy) -> said.Event:
        self.calls[output.call_id].closed_by = closed_by
        self.outputs[output.call_id] = output
        self._append(output)
        assert self.current is not None
        return said.OutputItemDone(self.current, self._take_index(), output)

    def _append(self, item: Item) -> None:
        self._entries.append(item)
        self.size += item_size(item)

    def _take_index(self) -> int:
        index = self.next_index
        self.next_index += 1
        return index

    def _required_action(self, call_id: str) -> RequiredAction:
        item = self.call_item(call_id)
        return RequiredAction(
            response_id=item.response_id or "",
            call_id=call_id,
            name=item.name,
            arguments=item.arguments,
            expires_at=self.calls[call_id].expires_at,
        )


_TERMINAL = {
    "completed": said.ResponseCompleted,
    "failed": said.ResponseFailed,
    "cancelled": said.ResponseCancelled,
    "incomplete": said.ResponseIncomplete,
}
