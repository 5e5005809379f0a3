"""
Transcripts that are taken up again from what was stored of them.
"""

from collections.abc import Sequence

import attrs

from agent_harness.protocol import events as said
from agent_harness.protocol.items import FunctionCall, FunctionCallOutput, Item
from agent_harness.protocol.sizes import item_size
from agent_harness.protocol.stored import Head, Offer, StoredItem
from agent_harness.protocol.transcript import Call, Transcript, Waiting
from agent_harness.protocol.turns import Turn

__all__ = ["revive_transcript"]


def revive_transcript(
    head: Head, offer: Offer, stored: Sequence[StoredItem], turns: Sequence[Turn], waiting: Sequence[Waiting]
) -> tuple[Transcript, list[said.Event]]:
    """
    The transcript as it was when it was stored, and the events that tell of what was cut: items of an answer that was
    not at its end are incomplete now. The model call that they came from does not count: it is made again.
    """
    told: list[said.Event] = []
    entries: list[Item] = []
    for part in stored:
        item = part.item
        if item.status == "in_progress":
            item = attrs.evolve(item, status="incomplete", provenance=None)
            told.append(said.OutputItemDone(item.response_id or "", part.output_index, item))
        entries.append(item)
    transcript = Transcript(
        turns={turn.id: turn for turn in turns},
        waiting={held.message.id: held for held in waiting},
        current=head.current,
        tools=offer.tools,
        tool_choice=offer.tool_choice,
        answered=head.answered,
        next_index=head.next_index,
        entries=list(entries),
        size=sum(map(item_size, entries)),
    )
    _index(transcript, stored, entries)
    if transcript.current is not None:
        turn = transcript.running
        transcript.turns[turn.id] = attrs.evolve(turn, model_calls=head.answered)
    return transcript, told


def _index(transcript: Transcript, stored: Sequence[StoredItem], entries: Sequence[Item]) -> None:
    for position, (part, item) in enumerate(zip(stored, entries, strict=True)):
        if isinstance(item, FunctionCall):
            call = Call(position, part.output_index, part.closed_by, part.expires_at)
            transcript.calls[item.call_id] = call
            if item.status == "action_required":
                transcript.open_calls.append(item.call_id)
        elif isinstance(item, FunctionCallOutput):
            transcript.outputs[item.call_id] = item
