"""
What holds for every session at every moment, judged from outside: the events published, the snapshot, the requests.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import attrs
import orjson

from agent_harness.config import ProviderSettings
from agent_harness.engine.follower import Published
from agent_harness.engine.session import Session
from agent_harness.llm.base import Request, RequestCache
from agent_harness.llm.responses_input import build_body
from agent_harness.protocol import events as said
from agent_harness.protocol.encode import to_wire
from agent_harness.protocol.items import FunctionCall, FunctionCallOutput, Message
from agent_harness.protocol.tools import NAME_PATTERN
from agent_harness.testing.strict import SessionMemory, StrictOptions, check_request, parse_body

__all__ = ["check_log", "check_pairs", "check_requests", "check_rest", "check_snapshot", "project"]

SETTINGS = ProviderSettings(model="strict-model")
AFTER = {  # which status of a call may follow which
    None: ("in_progress",),
    "in_progress": ("action_required", "failed", "incomplete"),
    "action_required": ("completed", "failed", "incomplete"),
}


# Requests.


def check_pairs(request: Request) -> None:
    """
    Each call has one output, later in the list and in call order; ids, names and arguments are what a provider takes.
    """
    seen: set[str] = set()
    for block in request.blocks:
        assert block.items, "a block without items"
        calls = [item for item in block.items if isinstance(item, FunctionCall)]
        assert [output.call_id for output in block.outputs] == [call.call_id for call in calls]
        for call in calls:
            assert 0 < len(call.call_id) <= 64
            assert call.call_id not in seen, f"call id {call.call_id} twice"
            seen.add(call.call_id)
            assert NAME_PATTERN.match(call.name), call.name
            assert isinstance(orjson.loads(call.arguments), dict), call.arguments
        if any(item.status == "incomplete" for item in block.items if isinstance(item, Message)):
            assert all(isinstance(item, Message) for item in block.items), "a cut answer's calls or reasoning are sent"
            assert all(item.provenance is None for item in block.items), "a cut answer's provider ids are sent"
        users = [item for item in block.items if isinstance(item, Message) and item.role == "user"]
        assert len(users) in (0, len(block.items)), "a user message inside an answer"
    last = request.blocks[-1]
    assert last.is_user or last.outputs, "the model is asked with nothing to answer"


def check_requests(requests: Sequence[Request]) -> None:
    """
    Each request is right in itself, in the Responses dialect too, and begins with the one before it.
    """
    memory = SessionMemory()
    shared = RequestCache()
    for before, request in zip([None, *requests], requests, strict=False):
        check_pairs(request)
        if before is not None:
            assert request.blocks[: len(before.blocks)] == before.blocks, "the past was changed"
            assert request.closed >= before.closed
        if request.model is None:
            request = attrs.evolve(request, model="strict-model")
        raw = build_body(attrs.evolve(request, cache=shared), SETTINGS)
        assert raw == build_body(attrs.evolve(request, cache=RequestCache()), SETTINGS), "kept bytes are not the items"
        memory.last = check_request("responses", parse_body(raw), raw, StrictOptions(refuse_nul=True), memory)


# Events.


def check_log(log: Sequence[Published]) -> None:
    """
    Numbers without holes; each turn ends once, after its items, and a status follows; calls go their way and no other.
    """
    assert [published.seq for published in log] == list(range(1, len(log) + 1))
    events = [published.event for published in log]
    _check_turns(events)
    _check_statuses(events)
    _check_items(events)
    _check_calls(events)


def _check_turns(events: Sequence[said.Event]) -> None:
    created: set[str] = set()
    ended: set[str] = set()
    running: str | None = None
    for index, event in enumerate(events):
        turn_id = said.event_response_id(event)
        if isinstance(event, said.ResponseCreated):
            assert running is None, "two turns at once"
            assert turn_id not in created, "a turn began twice"
            assert turn_id not in ended, "a turn began after its end"
            created.add(turn_id)
            running = turn_id
        elif isinstance(event, said.TERMINAL_EVENTS):
            assert turn_id not in ended, f"{turn_id} ended twice"
            ended.add(turn_id)
            if turn_id == running:
                running = None
                after = events[index + 1 : index + 3]
                assert after, "no event follows a turn's end"
                assert isinstance(after[0], said.SessionStatus)
                assert not any(isinstance(other, said.SessionStatus) for other in after[1:])
            else:
                assert turn_id not in created
                assert isinstance(event, said.ResponseCancelled), "a turn that never began was not cancelled"
        elif not isinstance(event, said.SessionItem | said.SessionStatus) and turn_id is not None:
            assert turn_id == running, f"{event} outside its turn"
        elif isinstance(event, said.SessionItem):
            assert turn_id not in ended, f"{event} after its turn's end"


def _check_statuses(events: Sequence[said.Event]) -> None:
    told: tuple[str, str | None] = ("idle", None)
    before: said.Event | None = None
    for event in events:
        if isinstance(event, said.SessionStatus):
            now = (event.status, event.response_id)
            assert now != told or isinstance(before, said.TERMINAL_EVENTS), f"a status that tells nothing new: {event}"
            assert bool(event.required_actions) == (event.status == "waiting")
            assert (event.response_id is None) == (event.status in ("idle", "failed"))
            told = now
        before = event


def _check_items(events: Sequence[said.Event]) -> None:
    """
    Output indexes count from 0 in each turn, and an item keeps its own.
    """
    indexes: dict[str, dict[str, int]] = {}
    for event in events:
        if isinstance(event, said.OutputItemAdded | said.OutputItemDone):
            known = indexes.setdefault(event.response_id, {})
            assert known.setdefault(event.item.id, len(known)) == event.output_index


def _check_calls(events: Sequence[said.Event]) -> None:
    statuses: dict[str, str] = {}
    outputs: Counter[str] = Counter()
    for index, event in enumerate(events):
        item = getattr(event, "item", None)
        if isinstance(item, FunctionCall):
            assert item.status in AFTER.get(statuses.get(item.call_id), ()), f"{statuses.get(item.call_id)} to {item}"
            statuses[item.call_id] = item.status
            was_cut = item.status == "incomplete" and not _has_output(events[index + 1 :], item)
            if item.status in ("completed", "failed", "incomplete") and not was_cut:
                _check_output_follows(events, index, item)
        elif isinstance(item, FunctionCallOutput):
            outputs[item.call_id] += 1
            assert statuses[item.call_id] in ("completed", "failed", "incomplete")
    assert all(count == 1 for count in outputs.values()), "a call with two outputs"


def _has_output(events: Sequence[said.Event], call: FunctionCall) -> bool:
    items = (getattr(event, "item", None) for event in events)
    return any(isinstance(item, FunctionCallOutput) and item.call_id == call.call_id for item in items)


def _check_output_follows(events: Sequence[said.Event], index: int, call: FunctionCall) -> None:
    output = getattr(events[index + 1], "item", None)
    assert isinstance(output, FunctionCallOutput), f"no output behind the last status of {call}"
    assert output.call_id == call.call_id


# What is shown.


def project(events: Sequence[said.Event]) -> list[dict[str, Any]]:
    """
    The items as a client that read all *events* knows them, in the order of wire.md.
    """
    entered: dict[str, dict[str, Any]] = {}
    waiting: dict[str, dict[str, Any]] = {}
    for event in events:
        if isinstance(event, said.SessionItem):
            item = to_wire(event.item)
            waiting.pop(item["id"], None)
            if item["status"] == "queued":
                waiting[item["id"]] = item
            elif item["status"] != "cancelled":
                entered[item["id"]] = item
        elif isinstance(event, said.OutputItemAdded | said.OutputItemDone):
            entered[event.item.id] = to_wire(event.item)
        elif isinstance(event, said.TextDelta | said.RefusalDelta | said.ArgumentsDelta | said.SummaryDelta):
            _grow(entered[event.item_id], event)
        elif isinstance(event, said.ArgumentsDone):
            entered[event.item_id]["arguments"] = event.arguments
    return [*entered.values(), *waiting.values()]


def _grow(item: dict[str, Any], event: Any) -> None:
    if isinstance(event, said.ArgumentsDelta):
        item["arguments"] += event.delta
        return
    key, kind, field = {
        said.TextDelta: ("content", "output_text", "text"),
        said.RefusalDelta: ("content", "refusal", "refusal"),
        said.SummaryDelta: ("summary", "summary_text", "text"),
    }[type(event)]
    index = event.summary_index if isinstance(event, said.SummaryDelta) else event.content_index
    parts = item[key]
    if index == len(parts):
        empty = {"annotations": []} if kind == "output_text" else {}
        parts.append({field: "", **empty, "type": kind})
    parts[index][field] += event.delta


def check_snapshot(log: Sequence[Published], session: Session, first: Sequence[dict[str, Any]] = ()) -> None:
    """
    The snapshot is what the events tell, no more and no less. *first* are the items the session began with.
    """
    shown = to_wire(session.snapshot())
    events = [published.event for published in log]
    known = [*first, *project(events)]
    waiting = [item for item in known if item.get("status") == "queued"]
    assert shown["items"] == [item for item in known if item.get("status") != "queued"] + waiting
    assert shown["seq"] == len(log)
    assert shown["queued"] == [item["id"] for item in waiting]
    told = [event for event in events if isinstance(event, said.SessionStatus)]
    last = (told[-1].status, told[-1].response_id) if told else ("idle", None)
    assert (shown["status"], shown["response_id"]) == last
    assert shown["last_error"] == (to_wire(told[-1].last_error) if told and told[-1].last_error else None)
    needed = [item["call_id"] for item in shown["items"] if item.get("status") == "action_required"]
    assert [action["call_id"] for action in shown["required_actions"]] == needed
    assert (shown["status"] == "waiting") == bool(needed)


def check_rest(session: Session, *, task: bool = True) -> None:
    """
    Nothing is left over in a session in which nothing runs; no *task* either, once it had a moment to end.
    """
    transcript = session.transcript
    assert session.status in ("idle", "failed")
    assert transcript.current is None
    assert not transcript.open_calls
    assert not transcript.drafts
    assert not transcript.waiting
    assert not any(item.status in ("in_progress", "queued", "action_required") for item in transcript.items())
    assert not any(turn.status in ("in_progress", "queued") for turn in transcript.turns.values())
    assert not session._pending
    assert not task or session._task is None or session._task.done()
