"""
Drafts: items of an answer while the model is still writing them.
"""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from agent_harness.protocol.items import (
    FunctionCall,
    Item,
    Message,
    OutputText,
    Part,
    Provenance,
    Reasoning,
    Refusal,
    SummaryText,
)

__all__ = ["Draft"]

_KINDS = {"message": ("text", "refusal"), "function_call": ("arguments",), "reasoning": ("summary",)}


@attrs.define(eq=False, kw_only=True)
class Draft:
    """
    An item in progress. ``parts`` holds the pieces that came so far by kind and the model's own part number, in order
    of first appearance, which is their order in the item; a call has one part, its arguments.
    """

    id: str
    type: Literal["message", "function_call", "reasoning"]
    response_id: str
    output_index: int
    created_at: int
    call_id: str = ""
    name: str = ""
    raw_name: str = ""
    parts: dict[tuple[str, int], list[str]] = attrs.field(factory=dict)
    annotations: Mapping[int, tuple[Mapping[str, Any], ...]] = attrs.field(factory=dict)
    provenance: Provenance | None = None
    arguments: str | None = None
    problem: str | None = None
    done: bool = False

    def add(self, kind: str, number: int, piece: str) -> int:
        """
        Take one more piece of a part, and return the part's place in the item.

        Raises:
            ValueError: an item of this type has no such part, or it is whole already.
        """
        if kind not in _KINDS[self.type] or self.done:
            raise ValueError(f"a {self.type} that is {'done' if self.done else 'in progress'} takes no {kind}")
        part = self.parts.get((kind, number))
        if part is None:
            self.parts[kind, number] = [piece]
            return len(self.parts) - 1
        part.append(piece)
        return 0 if len(self.parts) == 1 else list(self.parts).index((kind, number))

    def text(self) -> str:
        """
        What a call's arguments are so far.
        """
        return "".join(next(iter(self.parts.values()), ()))

    def item(self, status: Any = "in_progress") -> Item:
        """
        The item as it stands, with *status*. What came over the wire of a cut item has no provenance to give back.
        """
        provenance = self.provenance if status == "completed" or self.type == "function_call" else None
        if self.type == "function_call":
            return FunctionCall(
                id=self.id,
                call_id=self.call_id,
                name=self.name,
                arguments=self.text() if self.arguments is None else self.arguments,
                status=status,
                response_id=self.response_id,
                created_at=self.created_at,
                provenance=provenance,
            )
        if self.type == "reasoning":
            return Reasoning(
                id=self.id,
                summary=tuple(SummaryText("".join(pieces)) for pieces in self.parts.values()),
                status=status,
                response_id=self.response_id,
                created_at=self.created_at,
                provenance=provenance,
            )
        return Message(
            id=self.id,
            role="assistant",
            content=tuple([self._part(*key, "".join(pieces)) for key, pieces in self.parts.items()]),
            origin="model",
            status=status,
            response_id=self.response_id,
            created_at=self.created_at,
            provenance=provenance,
        )

    def _part(self, kind: str, number: int, text: str) -> Part:
        if kind == "refusal":
            return Refusal(text)
        return OutputText(text, tuple(self.annotations.get(number, ())))
