"""
The one item list that every model request is made of.

`build_blocks` turns what the transcript keeps into blocks that a strict provider takes, whatever happened before:

- each announced call has exactly one output, behind all items of its answer, outputs in call order (an open call has
  none yet; no request is made while there is one);
- a call that was never announced, an item in progress and a message without content are not in it;
- the text of a cut answer is there as plain text: without what its provider gave, and without that answer's reasoning;
- reasoning that nothing of its answer follows is left out.

A block that another block follows never changes again, so the bytes made of it can be kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import attrs

from agent_harness.protocol.drafts import Draft
from agent_harness.protocol.items import FunctionCall, FunctionCallOutput, Item, Message, Reasoning

__all__ = ["Block", "Blocks", "build_blocks"]


@attrs.frozen(weakref_slot=False)
class Block:
    """
    A user message alone, or one answer of the model: its messages, reasoning and calls in the model's order, then the
    outputs in call order.
    """

    items: tuple[Message | FunctionCall | Reasoning, ...]
    outputs: tuple[FunctionCallOutput, ...] = ()

    @property
    def is_user(self) -> bool:
        """
        Whether this is a user message.
        """
        first = self.items[0]
        return isinstance(first, Message) and first.role == "user"


class Blocks(Sequence[Block]):
    """
    What one request is made of: the first *count* of *closed*, a list that others only append to, then *tail*. A
    session's past is not copied for each request.
    """

    __slots__ = ("_closed", "_count", "_tail")

    def __init__(self, closed: list[Block], count: int, tail: Sequence[Block]) -> None:
        self._closed, self._count, self._tail = closed, count, tuple(tail)

    def __len__(self) -> int:
        return self._count + len(self._tail)

    def __iter__(self) -> Iterator[Block]:
        return chain(islice(self._closed, self._count), self._tail)

    def __getitem__(self, index: Any) -> Any:
        positions = range(len(self))[index]
        return [self._at(position) for position in positions] if isinstance(index, slice) else self._at(positions)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Blocks | tuple | list):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Blocks({list(self)!r})"

    def _at(self, position: int) -> Block:
        return self._closed[position] if position < self._count else self._tail[position - self._count]


def build_blocks(
    entries: Sequence[Item | Draft], outputs: Mapping[str, FunctionCallOutput], start: int = 0
) -> tuple[list[Block], int]:
    """
    The blocks of ``entries[start:]`` and the position in *entries* at which the last one begins.

    *outputs* maps a call_id to its output. Linear in ``len(entries) - start``.
    """
    blocks: list[Block] = []
    last_start = position = start
    while position < len(entries):
        end = _find_end(entries, position)
        block = _make_block(entries[position:end], outputs)
        if block is not None:
            blocks.append(block)
            last_start = position
        position = end
    return blocks, last_start


def _find_end(entries: Sequence[Item | Draft], position: int) -> int:
    """
    Where the answer (or the single other item) at *position* ends.
    """
    end = position
    while end < len(entries) and _is_answer(entries[end]):
        end += 1
    return max(end, position + 1)


def _is_answer(entry: Item | Draft) -> bool:
    if isinstance(entry, Message):
        return entry.role == "assistant"
    return not isinstance(entry, FunctionCallOutput)


def _make_block(run: Sequence[Item | Draft], outputs: Mapping[str, FunctionCallOutput]) -> Block | None:
    first = run[0]
    if isinstance(first, FunctionCallOutput):
        # It stands in the block of its call.
        return None
    if isinstance(first, Message) and first.role == "user":
        return Block((first,))
    items = [entry for entry in run if not isinstance(entry, Draft | FunctionCallOutput)]
    cut = any(_was_cut(item, outputs) for item in items if item.status == "incomplete")
    kept = [item for item in items if _is_sent(item, cut, outputs)]
    while kept and isinstance(kept[-1], Reasoning):
        kept.pop()
    if not kept:
        return None
    if cut:
        kept = [attrs.evolve(item, provenance=None) for item in kept]
    given = [outputs[item.call_id] for item in kept if isinstance(item, FunctionCall) and item.call_id in outputs]
    return Block(tuple(kept), tuple(given))


def _was_cut(item: Message | FunctionCall | Reasoning, outputs: Mapping[str, FunctionCallOutput]) -> bool:
    # Of what is incomplete: a call that was announced has its output, whatever became of it.
    return not isinstance(item, FunctionCall) or item.call_id not in outputs


def _is_sent(item: Message | FunctionCall | Reasoning, cut: bool, outputs: Mapping[str, FunctionCallOutput]) -> bool:
    if isinstance(item, Reasoning):
        return not cut
    if isinstance(item, Message):
        return item.role == "user" or any(_has_text(part) for part in item.content)
    return item.status == "action_required" or item.call_id in outputs


def _has_text(part: object) -> bool:
    return bool(getattr(part, "text", "") or getattr(part, "refusal", ""))
