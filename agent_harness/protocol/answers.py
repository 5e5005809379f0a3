"""
What an answer's deltas do: drafts grow, and the events that tell of it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from agent_harness.protocol import events as said
from agent_harness.protocol.drafts import Draft
from agent_harness.protocol.items import Provenance
from agent_harness.protocol.tools import clean_json, is_writable, read_arguments

__all__ = ["finish_draft", "grow_draft"]


def grow_draft(draft: Draft, kind: str, number: int, piece: str) -> said.Piece | None:
    """
    Add *piece* to a part of kind text, refusal, arguments or summary; *number* is the model's own for it. None if the
    piece is empty: then nothing changes.

    Raises:
        ValueError: an item of this type has no such part, or it is whole already.
    """
    if not piece:
        return None
    index = draft.add(kind, number, piece)
    if kind == "arguments":
        return said.ArgumentsDelta(draft.response_id, draft.id, draft.output_index, piece)
    return _PIECES[kind](draft.response_id, draft.id, draft.output_index, index, piece)


_PIECES: dict[str, Callable[[str, str, int, int, str], said.Piece]] = {
    "text": said.TextDelta,
    "refusal": said.RefusalDelta,
    "summary": said.SummaryDelta,
}


def finish_draft(
    draft: Draft,
    *,
    arguments: str | None = None,
    annotations: Mapping[int, tuple[Mapping[str, Any], ...]] | None = None,
    provenance: Provenance | None = None,
) -> list[said.Event]:
    """
    Note that *draft* is whole; a call's *arguments* (None: the joined deltas) get the form they are kept in.

    Raises:
        ValueError: it is whole already.
    """
    if draft.done:
        raise ValueError("an item of the answer ended twice")
    draft.done = True
    # What cannot be written as JSON would break every frame and request that it came into: it is left out here.
    if provenance is not None and is_writable(provenance.data):
        draft.provenance = attrs.evolve(provenance, data=clean_json(provenance.data))
    if annotations:
        draft.annotations = {part: tuple(filter(is_writable, notes)) for part, notes in annotations.items()}
    rid, item_id, at = draft.response_id, draft.id, draft.output_index
    if draft.type == "function_call":
        draft.arguments, draft.problem = read_arguments(draft.text() if arguments is None else arguments)
        return [said.ArgumentsDone(rid, item_id, at, draft.arguments)]
    told: list[said.Event] = []
    for index, ((kind, _), pieces) in enumerate(draft.parts.items()):
        # One text from here on, shared with the item.
        pieces[:] = [text := "".join(pieces)]
        match kind:
            case "text":
                told.append(said.TextDone(rid, item_id, at, index, text))
            case "refusal":
                told.append(said.RefusalDone(rid, item_id, at, index, text))
            case _:
                told.append(said.SummaryDone(rid, item_id, at, index, text))
    return told
