"""
What the checks of contracts hear and ask: a reader that minds the order of deltas, and requests made of what it heard.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import attrs

from agent_harness.llm.base import (
    ArgumentsDelta,
    Delta,
    Ended,
    ItemAdded,
    ItemDone,
    Model,
    RefusalDelta,
    Request,
    Retrying,
    SummaryDelta,
    TextDelta,
)
from agent_harness.protocol.blocks import Block
from agent_harness.protocol.items import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Message,
    OutputText,
    Provenance,
    Reasoning,
    SummaryText,
)
from agent_harness.protocol.tools import Tool

__all__ = ["Heard", "HeardItem", "answer_block", "listen", "make_request", "user_block"]

PROVIDER = "contract"
TOOLS = tuple(Tool(name=name, parameters={"type": "object", "properties": {}}) for name in ("look_up", "find"))


@attrs.define
class HeardItem:
    """
    One item of an answer: how it began, its texts by part, how it ended.
    """

    added: ItemAdded
    parts: dict[int, list[str]] = attrs.field(factory=dict)
    done: ItemDone | None = None

    @property
    def is_call(self) -> bool:
        return self.added.type == "function_call"

    @property
    def text(self) -> str:
        return "".join("".join(self.parts[index]) for index in sorted(self.parts))

    @property
    def arguments(self) -> str:
        if self.done is not None and self.done.arguments is not None:
            return self.done.arguments
        return self.text


@attrs.define
class Heard:
    """
    One answer as it was heard. ``faults`` tells where the order of deltas was wrong; ``error`` is what was raised.
    """

    items: list[HeardItem] = attrs.field(factory=list)
    retries: list[Retrying] = attrs.field(factory=list)
    ended: Ended | None = None
    after_end: list[Delta] = attrs.field(factory=list)
    error: Exception | None = None
    faults: list[str] = attrs.field(factory=list)
    by_index: dict[int, HeardItem] = attrs.field(factory=dict)

    @classmethod
    def of_text(cls, text: str) -> Heard:
        """
        An answer that says *text*.
        """
        heard = cls()
        for delta in (ItemAdded(0, "message"), TextDelta(0, text), ItemDone(0)):
            heard.take(delta)
        return heard

    @classmethod
    def of_call(cls, name: str, arguments: str, call_id: str) -> Heard:
        """
        An answer that makes one call.
        """
        heard = cls()
        for delta in (ItemAdded(0, "function_call", call_id, name), ItemDone(0, arguments=arguments)):
            heard.take(delta)
        return heard

    @property
    def text(self) -> str:
        """
        What its messages say.
        """
        return "".join(item.text for item in self.items if item.added.type == "message")

    @property
    def pieces(self) -> list[str]:
        """
        Every piece of text, of whatever kind.
        """
        told = [piece for item in self.items for part in item.parts.values() for piece in part]
        return [*told, *(item.arguments for item in self.items if item.is_call)]

    def take(self, delta: Delta) -> None:
        """
        Take one delta.
        """
        if self.ended is not None:
            self.after_end.append(delta)
            return
        match delta:
            case Ended():
                self.ended = delta
            case Retrying():
                self.retries.append(delta)
            case ItemAdded():
                if delta.index != len(self.items):
                    self.faults.append(f"item number {len(self.items)} has the index {delta.index}")
                if delta.type == "function_call" and not delta.name:
                    self.faults.append(f"call {delta.index} was added without a name")
                self.by_index[delta.index] = HeardItem(delta)
                self.items.append(self.by_index[delta.index])
            case _:
                self._take_of_item(delta)

    def _take_of_item(self, delta: Any) -> None:
        item = self.by_index.get(delta.index)
        if item is None:
            self.faults.append(f"{delta!r} came before its ItemAdded")
            return
        if item.done is not None:
            self.faults.append(f"{delta!r} came after its ItemDone")
        if isinstance(delta, ItemDone):
            item.done = delta
            return
        kinds = {
            "message": (TextDelta, RefusalDelta),
            "function_call": (ArgumentsDelta,),
            "reasoning": (SummaryDelta,),
        }
        if not isinstance(delta, kinds[item.added.type]):
            self.faults.append(f"{delta!r} is no delta of a {item.added.type}")
        part = getattr(delta, "content_index", getattr(delta, "summary_index", 0))
        item.parts.setdefault(part, []).append(delta.delta)


async def listen(model: Model, request: Request) -> Heard:
    """
    The whole answer to *request*.
    """
    heard = Heard()
    try:
        stream: Any = model.stream(request)
        async with aclosing(stream):
            async for delta in stream:
                heard.take(delta)
    except Exception as error:
        heard.error = error
    return heard


def make_request(
    model: Model, blocks: tuple[Block, ...] | None = None, *, session_id: str = "sess_contract"
) -> Request:
    """
    A request with two tools; without *blocks* with one question.
    """
    blocks = blocks or (user_block("What is there?"),)
    return Request(
        session_id=session_id,
        provider=PROVIDER,
        model=model.default_model or "model",
        blocks=blocks,
        closed=len(blocks) - 1,
        tools=TOOLS,
    )


def user_block(text: str) -> Block:
    """
    A user's message.
    """
    return Block((Message(id="msg_user", role="user", content=(InputText(text),), origin="client", created_at=0),))


def answer_block(model: Model, heard: Heard) -> Block:
    """
    An answer as it is given back, its calls answered. Reasoning that nothing follows is left out, as the harness does.
    """
    items = [_keep(model, item, f"item_{number}") for number, item in enumerate(heard.items)]
    while items and isinstance(items[-1], Reasoning):
        items.pop()
    outputs = [
        FunctionCallOutput(id="fco", call_id=item.call_id, output=f"What {item.call_id} found.", created_at=0)
        for item in items
        if isinstance(item, FunctionCall)
    ]
    return Block(tuple(items), tuple(outputs))


def _keep(model: Model, item: HeardItem, own_id: str) -> Message | FunctionCall | Reasoning:
    hidden = item.done.hidden if item.done is not None else None
    own = Provenance(PROVIDER, model.default_model or "model", hidden) if hidden else None
    if item.added.type == "function_call":
        return FunctionCall(
            id=own_id,
            call_id=item.added.call_id or own_id,
            name=item.added.name,
            arguments=item.arguments,
            status="completed",
            created_at=0,
            provenance=own,
        )
    if item.added.type == "reasoning":
        return Reasoning(id=own_id, summary=(SummaryText(item.text),), status="completed", created_at=0, provenance=own)
    return Message(
        id=own_id, role="assistant", content=(OutputText(item.text),), origin="model", created_at=0, provenance=own
    )
