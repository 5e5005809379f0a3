"""
Values as the wire's JSON: what each holds, what stays hidden, and how an event becomes a frame.
"""

from __future__ import annotations

import json
from typing import Any, get_args

import attrs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_harness.protocol import encode
from agent_harness.protocol import events as said
from agent_harness.protocol.agents import Agent
from agent_harness.protocol.encode import dump_json, encode_event, to_wire
from agent_harness.protocol.items import (
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Item,
    Message,
    OutputText,
    Provenance,
    Reasoning,
    Refusal,
    SummaryText,
    Usage,
)
from agent_harness.protocol.pages import Snapshot
from agent_harness.protocol.sse import encode_frame
from agent_harness.protocol.tools import NamedChoice, Tool
from agent_harness.protocol.turns import LastError, RequiredAction, Turn

SECRET = "only-the-provider-knows"
HIDDEN = Provenance("openai", "gpt", {"id": SECRET, "encrypted_content": SECRET, "deep": [{"x": SECRET}]})
R, AT = "resp_1", 1_700_000_000.1239

TURN = Turn(id=R, status="in_progress", model="m", created_at=1)
TURN_WIRE = {
    "id": R, "object": "response", "status": "in_progress", "model": "m", "created_at": 1, "completed_at": None,
    "usage": None, "error": None, "incomplete_details": None,
}  # fmt: skip
ENDED = Turn(
    id=R,
    status="failed",
    model_calls=3,
    usage=Usage(1, 2, 3, 4),
    error=LastError("rate_limited", "wait"),
    incomplete_reason="max_output_tokens",
    created_at=1,
    completed_at=2,
)
USAGE_WIRE = {
    "input_tokens": 1, "output_tokens": 2, "total_tokens": 3, "input_tokens_details": {"cached_tokens": 4},
    "output_tokens_details": {"reasoning_tokens": None},
}  # fmt: skip
ENDED_WIRE = {
    "id": R, "object": "response", "status": "failed", "model": None, "created_at": 1, "completed_at": 2,
    "usage": USAGE_WIRE, "error": {"code": "rate_limited", "message": "wait"},
    "incomplete_details": {"reason": "max_output_tokens"},
}  # fmt: skip

BASE = {"response_id": R, "created_at": 1}
PARTS = (
    InputText("t"),
    InputImage(image_url="u", detail="low"),
    InputFile(file_data="d", filename="n"),
    OutputText("o", ({"type": "url_citation"},)),
    Refusal("no"),
)
PARTS_WIRE = [
    {"type": "input_text", "text": "t"},
    {"type": "input_image", "image_url": "u", "detail": "low"},
    {"type": "input_file", "file_data": "d", "filename": "n"},
    {"type": "output_text", "text": "o", "annotations": [{"type": "url_citation"}]},
    {"type": "refusal", "refusal": "no"},
]
MESSAGE = Message(id="msg_1", role="user", content=PARTS, origin="client", provenance=HIDDEN, **BASE)
CALL = FunctionCall(
    id="fc_1", call_id="c1", name="f", arguments='{"a": 1}', status="completed", provenance=HIDDEN, **BASE
)
OUTPUT = FunctionCallOutput(id="fco_1", call_id="c1", output="42", **BASE)
REASONING = Reasoning(id="rs_1", summary=(SummaryText("s"),), status="completed", provenance=HIDDEN, **BASE)

ITEMS: list[tuple[Item, dict[str, Any]]] = [
    (
        MESSAGE,
        {
            "id": "msg_1",
            "type": "message",
            "role": "user",
            "content": PARTS_WIRE,
            "origin": "client",
            "status": "completed",
        },
    ),
    (
        CALL,
        {
            "id": "fc_1",
            "type": "function_call",
            "call_id": "c1",
            "name": "f",
            "arguments": '{"a": 1}',
            "status": "completed",
        },
    ),
    (
        OUTPUT,
        {
            "id": "fco_1",
            "type": "function_call_output",
            "call_id": "c1",
            "output": "42",
            "is_error": False,
            "origin": "client",
            "status": "completed",
        },
    ),
    (
        REASONING,
        {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "status": "completed"},
    ),
]
CALL_WIRE = ITEMS[1][1] | BASE

ACTION = RequiredAction(response_id=R, call_id="c1", name="f", arguments="{}", expires_at=1.5)
ACTION_WIRE = {
    "type": "function_call", "response_id": R, "call_id": "c1", "name": "f", "arguments": "{}", "expires_at": 1.5,
}  # fmt: skip
AGENT = Agent(
    tools=(Tool(name="f", parameters={"type": "object"}),), tool_choice=NamedChoice("f"), text={"verbosity": "low"}
)
AGENT_WIRE = {
    "name": None, "model": None, "provider": None, "instructions": None,
    "tools": [{"type": "function", "name": "f", "description": None, "parameters": {"type": "object"}, "strict": False,
               "timeout_s": None}],
    "tool_choice": {"type": "function", "name": "f"}, "parallel_tool_calls": None, "temperature": None, "top_p": None,
    "max_output_tokens": None, "reasoning": None, "text": {"verbosity": "low"}, "max_model_calls": 50,
    "tool_timeout_s": 3600.0,
}  # fmt: skip

PLACE = {"response_id": R, "item_id": "i", "output_index": 2}
STATUS = said.SessionStatus(status="running", response_id=R)
STATUS_WIRE = {"status": "running", "response_id": R, "required_actions": [], "queued": [], "last_error": None}

# One of each, as in the contract: the event, its wire type, its fields, and whether it carries `at`.
EVENTS: list[tuple[said.Event, str, dict[str, Any], bool]] = [
    (said.SessionItem(MESSAGE), "session.item", {"item": ITEMS[0][1] | BASE}, True),
    (STATUS, "session.status", STATUS_WIRE, True),
    (
        said.SessionStatus(status="waiting", response_id=R, required_actions=(ACTION,), queued=("m",), item_id="i"),
        "session.status",
        {**STATUS_WIRE, "status": "waiting", "required_actions": [ACTION_WIRE], "queued": ["m"], "item_id": "i"},
        True,
    ),
    (
        said.SessionStatus(status="failed", response_id=None, last_error=LastError("rate_limited", "wait")),
        "session.status",
        {
            **STATUS_WIRE,
            "status": "failed",
            "response_id": None,
            "last_error": {"code": "rate_limited", "message": "wait"},
        },
        True,
    ),
    (said.SessionUpdated(AGENT, {"k": "v"}), "session.updated", {"agent": AGENT_WIRE, "metadata": {"k": "v"}}, False),
    (said.SessionDeleted("sess_1"), "session.deleted", {"id": "sess_1"}, False),
    (said.SessionGap("x", None), "session.gap", {"after": "x", "first_seq": None}, False),
    (said.SessionLagged(), "session.lagged", {}, False),
    (said.ResponseCreated(TURN), "response.created", {"response": TURN_WIRE}, False),
    (said.ResponseCompleted(TURN), "response.completed", {"response": TURN_WIRE}, False),
    (said.ResponseFailed(ENDED), "response.failed", {"response": ENDED_WIRE}, False),
    (said.ResponseIncomplete(ENDED), "response.incomplete", {"response": ENDED_WIRE}, False),
    (said.ResponseCancelled(TURN), "response.cancelled", {"response": TURN_WIRE}, False),
    (
        said.ResponseRetrying(R, 1, 0.5, "why"),
        "response.retrying",
        {"response_id": R, "attempt": 1, "delay_s": 0.5, "reason": "why"},
        False,
    ),
    (
        said.OutputItemAdded(R, 2, CALL),
        "response.output_item.added",
        {"response_id": R, "output_index": 2, "item": CALL_WIRE},
        True,
    ),
    (
        said.OutputItemDone(R, 2, CALL),
        "response.output_item.done",
        {"response_id": R, "output_index": 2, "item": CALL_WIRE},
        True,
    ),
    (
        said.OutputItemDone(R, 2, CALL, replayed=True),
        "response.output_item.done",
        {"response_id": R, "output_index": 2, "item": CALL_WIRE, "replayed": True},
        True,
    ),
    (
        said.TextDelta(R, "i", 2, 1, "d"),
        "response.output_text.delta",
        PLACE | {"content_index": 1, "delta": "d"},
        False,
    ),
    (said.TextDone(R, "i", 2, 1, "t"), "response.output_text.done", PLACE | {"content_index": 1, "text": "t"}, False),
    (said.RefusalDelta(R, "i", 2, 1, "d"), "response.refusal.delta", PLACE | {"content_index": 1, "delta": "d"}, False),
    (said.RefusalDone(R, "i", 2, 1, "t"), "response.refusal.done", PLACE | {"content_index": 1, "refusal": "t"}, False),
    (said.ArgumentsDelta(R, "i", 2, "d"), "response.function_call_arguments.delta", PLACE | {"delta": "d"}, False),
    (said.ArgumentsDone(R, "i", 2, "{}"), "response.function_call_arguments.done", PLACE | {"arguments": "{}"}, False),
    (
        said.SummaryDelta(R, "i", 2, 1, "d"),
        "response.reasoning_summary_text.delta",
        PLACE | {"summary_index": 1, "delta": "d"},
        False,
    ),
    (
        said.SummaryDone(R, "i", 2, 1, "t"),
        "response.reasoning_summary_text.done",
        PLACE | {"summary_index": 1, "text": "t"},
        False,
    ),
]


def parse_frame(frame: bytes) -> tuple[dict[str, str], Any]:
    """
    The fields of one frame, and its data as strict JSON.
    """
    text = frame.decode()
    assert text.endswith("\n\n")
    lines = text[:-2].splitlines()
    assert lines == text[:-2].split("\n")
    fields = dict(line.split(": ", 1) for line in lines)
    return fields, orjson.loads(fields.pop("data"))


@pytest.mark.parametrize("item, wire", ITEMS)
def test_item_is_one_flat_shape_without_what_is_hidden(item: Item, wire: dict[str, Any]) -> None:
    assert to_wire(item) == wire | BASE


def test_samples_hold_every_event_class() -> None:
    assert {type(event) for event, *_ in EVENTS} == set(get_args(said.Event))


@pytest.mark.parametrize("event, kind, fields, dated", EVENTS)
def test_event_is_a_frame_with_its_type_fields_and_number(
    event: said.Event, kind: str, fields: dict[str, Any], dated: bool
) -> None:
    head, data = parse_frame(encode_event(event, 7, AT))

    assert head == {"event": kind, "id": "7"}
    assert data == {"type": kind, "seq": 7, **({"at": 1_700_000_000.124} if dated else {}), **fields}
    assert SECRET not in json.dumps(data)


@pytest.mark.parametrize("event, kind, fields, dated", EVENTS)
def test_unnumbered_event_has_a_seq_but_no_id(
    event: said.Event, kind: str, fields: dict[str, Any], dated: bool
) -> None:
    head, data = parse_frame(encode_event(event, 0, AT, numbered=False))

    assert head == {"event": kind}
    assert data["seq"] == 0


def test_retry_stands_inside_the_frame() -> None:
    head, data = parse_frame(encode_event(STATUS, 3, AT, numbered=False, retry=1000))

    assert head == {"event": "session.status", "retry": "1000"}
    assert data["status"] == "running"


def test_frame_as_its_bytes() -> None:
    frame = encode_event(said.TextDelta(R, "msg_1", 0, 0, "é"), 12, AT)

    assert (
        frame
        == (
            'event: response.output_text.delta\nid: 12\ndata: {"type":"response.output_text.delta","seq":12,'
            '"response_id":"resp_1","item_id":"msg_1","output_index":0,"content_index":0,"delta":"é"}\n\n'
        ).encode()
    )


def test_output_may_be_parts_on_the_wire() -> None:
    """B061."""
    output = FunctionCallOutput(id="fco_1", call_id="c", output=PARTS[:3], created_at=1)

    assert to_wire(output)["output"] == PARTS_WIRE[:3]


def test_usage_has_null_where_nothing_was_reported() -> None:
    """B171."""
    assert to_wire(Usage()) == {
        "input_tokens": None,
        "output_tokens": None,
        "total_tokens": None,
        "input_tokens_details": {"cached_tokens": None},
        "output_tokens_details": {"reasoning_tokens": None},
    }


def test_snapshot_is_written_with_and_without_its_items() -> None:
    given_fields: dict[str, Any] = {
        "id": "sess_1", "status": "waiting", "created_at": 1, "updated_at": 2, "agent": AGENT, "metadata": {"k": "v"},
        "response_id": R, "required_actions": (ACTION,), "queued": ("msg_2",), "seq": 9, "usage": Usage(1, 2, 3, 4),
        "last_error": None,
    }  # fmt: skip
    wire = given_fields | {
        "object": "session", "agent": AGENT_WIRE, "required_actions": [ACTION_WIRE], "queued": ["msg_2"],
        "usage": USAGE_WIRE,
    }  # fmt: skip

    assert to_wire(Snapshot(**given_fields)) == wire
    assert to_wire(Snapshot(**given_fields, items=())) == wire | {"items": []}
    shown = to_wire(Snapshot(**given_fields, items=tuple(item for item, _ in ITEMS)))
    assert shown == wire | {"items": [fields | BASE for _, fields in ITEMS]}
    assert SECRET not in dump_json(shown).decode()


PROVENANCES = st.builds(Provenance, st.just(SECRET), st.just(SECRET), st.just({"id": SECRET}))
TIMES = st.integers(0, 2**40)
TEXT = st.text(alphabet="\u2028\u2029\u0085\x0b\x0c\x1c\r\n\0é😀a") | st.text()
ANY_ITEM = st.one_of(
    st.builds(
        Message,
        created_at=TIMES,
        role=st.sampled_from(["user", "assistant"]),
        content=st.lists(st.builds(InputText, TEXT) | st.builds(OutputText, TEXT) | st.builds(Refusal, TEXT)).map(
            tuple
        ),
        origin=st.sampled_from(["client", "model", "harness"]),
        provenance=PROVENANCES,
    ),
    st.builds(FunctionCall, created_at=TIMES, arguments=TEXT, provenance=PROVENANCES),
    st.builds(FunctionCallOutput, created_at=TIMES, output=TEXT | st.lists(st.builds(InputText, TEXT)).map(tuple)),
    st.builds(
        Reasoning, created_at=TIMES, summary=st.lists(st.builds(SummaryText, TEXT)).map(tuple), provenance=PROVENANCES
    ),
)


@given(item=ANY_ITEM, wrap=st.sampled_from([said.SessionItem, lambda item: said.OutputItemDone(R, 0, item)]))
@settings(deadline=None, derandomize=True)
def test_no_item_shows_its_provenance_and_no_text_breaks_its_frame(item: Item, wrap: Any) -> None:
    """B069, B091, B099: strict JSON on one line, whatever the text."""
    _, data = parse_frame(encode_event(wrap(item), 1, AT))

    assert data["item"] == json.loads(json.dumps(to_wire(item)))
    assert "provenance" not in data["item"]
    assert SECRET not in json.dumps(data)


PIECES = get_args(said.Piece)
BIG = st.integers(-(2**63), 2**64 - 1)
ODD_TEXT = TEXT | st.text(alphabet=st.characters(), min_size=1) | st.just("\ud800") | st.just('\x7f"\\</script>')


@given(data=st.data(), kind=st.sampled_from(PIECES), seq=st.integers(0, 2**40), numbered=st.booleans())
@settings(deadline=None, derandomize=True, max_examples=500)
def test_a_piece_is_encoded_as_every_other_event_would_be(data: Any, kind: Any, seq: int, numbered: bool) -> None:
    """
    Pieces have a way of their own, for its speed: the bytes are those of the general one.
    """
    numbers = [data.draw(BIG) for field in attrs.fields(kind) if field.type is int]
    event = kind(data.draw(ODD_TEXT), data.draw(ODD_TEXT), *numbers, data.draw(ODD_TEXT))

    general = dump_json({"type": event.type, "seq": seq} | to_wire(event))

    assert encode_event(event, seq, AT, numbered=numbered) == encode_frame(
        event.type, general, id=seq if numbered else None
    )


PARTS_BY_HAND = st.lists(
    st.builds(InputText, TEXT) | st.builds(Refusal, TEXT) | st.builds(InputImage)
    | st.builds(OutputText, TEXT, st.lists(st.dictionaries(TEXT, TEXT)).map(tuple))
).map(tuple)  # fmt: skip
ACTIONS = st.builds(RequiredAction, expires_at=st.none() | st.floats(0, 2**40))
BY_HAND = st.one_of(
    st.builds(InputText, TEXT),
    st.builds(OutputText, TEXT, st.lists(st.dictionaries(TEXT, TEXT)).map(tuple)),
    st.builds(Message, content=PARTS_BY_HAND, response_id=st.none() | TEXT, provenance=st.none() | PROVENANCES),
    st.builds(FunctionCallOutput, output=TEXT | PARTS_BY_HAND, is_error=st.booleans(), response_id=st.none() | TEXT),
    ACTIONS,
    st.builds(
        said.SessionStatus,
        response_id=st.none() | TEXT,
        required_actions=st.lists(ACTIONS).map(tuple),
        queued=st.lists(TEXT).map(tuple),
        last_error=st.none() | st.builds(LastError),
        item_id=st.none() | TEXT,
    ),
)


@given(value=BY_HAND)
@settings(deadline=None, derandomize=True, max_examples=500)
def test_what_is_written_by_hand_is_what_cattrs_would_write(value: Any) -> None:
    """
    The same fields in the same order, and the same are left out.
    """
    general = encode._writer.get_unstructure_hook(type(value))(value)

    assert encode._writes[type(value)] is not encode._writer.get_unstructure_hook(type(value))
    assert json.dumps(to_wire(value)) == json.dumps(general)


@pytest.mark.parametrize("retry", [None, 1000])
@pytest.mark.parametrize("number", [None, 0, 7])
def test_a_frames_lines_stand_in_one_order(number: int | None, retry: int | None) -> None:
    frame = encode_frame("some.event", b"{}", id=number, retry=retry)

    lines = ["event: some.event"]
    lines += [] if number is None else [f"id: {number}"]
    lines += [] if retry is None else [f"retry: {retry}"]
    assert frame.decode() == "\n".join([*lines, "data: {}", "", ""])
