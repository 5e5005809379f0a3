"""
Transcripts that begin with a past: copied from another session, or given by the client when it makes one.
"""

from collections.abc import Iterable

import attrs

from agent_harness.protocol.items import FunctionCall, FunctionCallOutput, Item, make_id
from agent_harness.protocol.sizes import item_size
from agent_harness.protocol.transcript import Call, Transcript

__all__ = ["CLOSED_AT_START", "copy_items", "seed_transcript"]

CLOSED_AT_START = "The call was not answered before this session was made; it is closed."
"""What the model reads as the output of a call that came without one."""


def seed_transcript(items: Iterable[Item], now: int) -> Transcript:
    """
    A transcript that begins with *items*, under new ids and outside any turn.

    A call with status ``action_required`` whose output is not among them is closed by the harness, behind the items of
    its answer. A call that was never announced (``incomplete``, without output) stays as it is.
    """
    copies = [attrs.evolve(item, id=make_id(item.id.partition("_")[0]), response_id=None) for item in items]
    answered = {item.call_id for item in copies if isinstance(item, FunctionCallOutput)}
    entries: list[Item] = []
    unanswered: list[FunctionCallOutput] = []
    for item in copies:
        in_answer = not isinstance(item, FunctionCallOutput) and getattr(item, "role", "assistant") == "assistant"
        if not in_answer:
            entries += unanswered
            unanswered = []
        if isinstance(item, FunctionCall) and item.status == "action_required" and item.call_id not in answered:
            item = attrs.evolve(item, status="incomplete")
            unanswered.append(_close(item.call_id, now))
        entries.append(item)
    return _index([*entries, *unanswered])


def copy_items(source: Transcript, up_to_item_id: str | None) -> list[Item]:
    """
    The settled items of *source* up to and including one of them, ready for `seed_transcript`: an announced call whose
    output is not copied stands there as ``action_required``.

    Raises:
        KeyError: no settled item has that id.
    """
    items = source.settled()
    if up_to_item_id is not None:
        ids = [item.id for item in items]
        if up_to_item_id not in ids:
            raise KeyError(up_to_item_id)
        items = items[: ids.index(up_to_item_id) + 1]
    copied = {item.call_id for item in items if isinstance(item, FunctionCallOutput)}
    return [_reopen(item) if _is_unanswered(item, source, copied) else item for item in items]


def _is_unanswered(item: Item, source: Transcript, copied: set[str]) -> bool:
    return isinstance(item, FunctionCall) and source.was_announced(item.call_id) and item.call_id not in copied


def _reopen(item: Item) -> Item:
    assert isinstance(item, FunctionCall)
    return attrs.evolve(item, status="action_required")


def _close(call_id: str, now: int) -> FunctionCallOutput:
    return FunctionCallOutput(
        id=make_id("fco"), call_id=call_id, output=CLOSED_AT_START, is_error=True, origin="harness", created_at=now
    )


def _index(entries: list[Item]) -> Transcript:
    transcript = Transcript(entries=list(entries), size=sum(map(item_size, entries)))
    for position, item in enumerate(entries):
        if isinstance(item, FunctionCall):
            transcript.calls[item.call_id] = Call(position)
        elif isinstance(item, FunctionCallOutput):
            transcript.outputs[item.call_id] = item
            transcript.calls[item.call_id].closed_by = "client" if item.origin == "client" else "harness"
    return transcript
