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


@attrs.define(eq=False, kw_only=True)
class Draft:
    """
    An item in progress. ``parts`` maps a content (or summary) index to its kind and the pieces that came so far; a call
    has one part, its arguments.
    """

    id: str
    type: Literal["message", "function_call", "reasoning"]
    response_id: str
    output_index: int
    created_at: int
    call_id: str = ""
    name: str = ""
    raw_name: str = ""
    parts: dict[int, tuple[str, list[str]]] = attrs.field(factory=dict)
    annotations: Mapping[int, tuple[Mapping[str, Any], ...]] = attrs.field(factory=dict)
    provenance: Provenance | None = None
    arguments: str | None = None
    problem: str | None = None
    done: bool = False

    def add(self, index: int, kind: str, piece: str) -> None:
        """
        Take one more piece of the part at *index*.
        """
        part = self.parts.get(index)
        if part is None:
            self.parts[index] = (kind, [piece])
        else:
            part[1].append(piece)

    def text(self, index: int = 0) -> str:
        """
        What the part at *index* holds so far.
        """
        part = self.parts.get(index)
        return "".join(part[1]) if part else ""

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
                summary=tuple(SummaryText(self.text(index)) for index in sorted(self.parts)),
                status=status,
                response_id=self.response_id,
                created_at=self.created_at,
                provenance=provenance,
            )
        return Message(
            id=self.id,
            role="assistant",
            content=tuple(self._part(index) for index in sorted(self.parts)),
            origin="model",
            status=status,
            response_id=self.response_id,
            created_at=self.created_at,
            provenance=provenance,
        )

    def _part(self, index: int) -> Part:
        kind, _ = self.parts[index]
        if kind == "refusal":
            return Refusal(self.text(index))
        return OutputText(self.text(index), tuple(self.annotations.get(index, ())))
