"""
What an answer's deltas do: drafts grow, and the events that tell of it.
"""

from collections.abc import Mapping
from typing import Any

from agent_harness.protocol import events as said
from agent_harness.protocol.drafts import Draft
from agent_harness.protocol.items import Provenance
from agent_harness.protocol.tools import read_arguments

__all__ = ["finish_draft", "grow_draft"]


def grow_draft(draft: Draft, index: int, kind: str, piece: str) -> list[said.Event]:
    """
    Add *piece* to the part at *index* of kind text, refusal, arguments or summary.
    """
    if not piece:
        return []
    draft.add(index, kind, piece)
    rid, item_id, at = draft.response_id, draft.id, draft.output_index
    match kind:
        case "text":
            return [said.TextDelta(rid, item_id, at, index, piece)]
        case "refusal":
            return [said.RefusalDelta(rid, item_id, at, index, piece)]
        case "arguments":
            return [said.ArgumentsDelta(rid, item_id, at, piece)]
        case _:
            return [said.SummaryDelta(rid, item_id, at, index, piece)]


def finish_draft(
    draft: Draft,
    *,
    arguments: str | None = None,
    annotations: Mapping[int, tuple[Mapping[str, Any], ...]] | None = None,
    provenance: Provenance | None = None,
) -> list[said.Event]:
    """
    Note that *draft* is whole; a call's *arguments* (None: the joined deltas) get the form they are kept in.
    """
    draft.done = True
    draft.provenance = provenance
    draft.annotations = annotations or {}
    rid, item_id, at = draft.response_id, draft.id, draft.output_index
    if draft.type == "function_call":
        draft.arguments, draft.problem = read_arguments(draft.text() if arguments is None else arguments)
        return [said.ArgumentsDone(rid, item_id, at, draft.arguments)]
    told: list[said.Event] = []
    for index in sorted(draft.parts):
        text = draft.text(index)
        match draft.parts[index][0]:
            case "text":
                told.append(said.TextDone(rid, item_id, at, index, text))
            case "refusal":
                told.append(said.RefusalDone(rid, item_id, at, index, text))
            case _:
                told.append(said.SummaryDone(rid, item_id, at, index, text))
    return told
