"""
What a Responses stream becomes, however a server bends it: by itself, and over a socket.
"""

import asyncio
import copy
import logging
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_harness.config import ProviderSettings
from agent_harness.errors import ModelError
from agent_harness.llm.base import (
    ArgumentsDelta,
    Delta,
    Ended,
    ItemAdded,
    ItemDone,
    RefusalDelta,
    Request,
    Retrying,
    SummaryDelta,
    TextDelta,
)
from agent_harness.llm.responses import ResponsesModel
from agent_harness.llm.responses_events import AnswerReader
from agent_harness.llm.upstream_frames import EventReader
from agent_harness.protocol.items import Usage
from tests.llm.raw_upstream import Answer, RawUpstream, frame, frames, serve_raw

Event = dict[str, Any]
GONE: Any = object()


def added(place: int | None, item: Event) -> Event:
    return clear({"type": "response.output_item.added", "output_index": place, "item": clear(item)})


def done(place: int | None, item: Event) -> Event:
    return clear({"type": "response.output_item.done", "output_index": place, "item": clear(item)})


def clear(value: Event) -> Event:
    return {key: entry for key, entry in value.items() if entry is not GONE}


def delta(kind: str, item_id: Any, place: Any, text: Any, **fields: Any) -> Event:
    return clear({"type": f"response.{kind}.delta", "item_id": item_id, "output_index": place, "delta": text, **fields})


def message(text: str | None, item_id: Any = "msg_1", **part: Any) -> Event:
    content = [] if text is None else [{"type": "output_text", "text": text, "annotations": [], **part}]
    return {"type": "message", "id": item_id, "role": "assistant", "content": content}


def call(call_id: Any, arguments: Any = "{}", item_id: Any = "fc_1", name: Any = "f", **more: Any) -> Event:
    return {"type": "function_call", "id": item_id, "call_id": call_id, "name": name, "arguments": arguments, **more}


def reasoning(item_id: Any = "rs_1", encrypted: Any = "E", *summary: str, **more: Any) -> Event:
    parts = [{"type": "summary_text", "text": text} for text in summary]
    return {"type": "reasoning", "id": item_id, "summary": parts, "encrypted_content": encrypted, **more}


def completed(*output: Event, **fields: Any) -> Event:
    response = {"id": "resp_1", "status": "completed", "output": [clear(item) for item in output], **fields}
    return {"type": "response.completed", "response": clear(response)}


CREATED: Event = {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}
TEXT = [CREATED, added(0, message(None)), delta("output_text", "msg_1", 0, "hi", content_index=0)]
CALL = [
    added(0, call("c1", "")),
    delta("function_call_arguments", "fc_1", 0, '{"a"'),
    delta("function_call_arguments", "fc_1", 0, ":1}"),
    {"type": "response.function_call_arguments.done", "item_id": "fc_1", "output_index": 0, "arguments": '{"a":1}'},
    done(0, call("c1", '{"a":1}')),
]


@attrs.define
class Item:
    """
    An item as a reader of the deltas knows it.
    """

    type: str
    call_id: str = ""
    name: str = ""
    texts: dict[tuple[str, int], str] = attrs.field(factory=dict)
    done: ItemDone | None = None

    @property
    def text(self) -> str:
        return "".join(text for (kind, _), text in sorted(self.texts.items()) if kind == "TextDelta")

    @property
    def arguments(self) -> str:
        given = None if self.done is None else self.done.arguments
        return self.texts.get(("ArgumentsDelta", 0), "") if given is None else given


@attrs.define
class Outcome:
    items: list[Item] = attrs.field(factory=list)
    ended: Ended | None = None
    error: ModelError | None = None
    deltas: list[Delta] = attrs.field(factory=list)

    def calls(self) -> list[tuple[str, str, str]]:
        return [(item.call_id, item.name, item.arguments) for item in self.items if item.type == "function_call"]

    def text(self) -> str:
        return "".join(item.text for item in self.items)


def fold(deltas: list[Delta], error: ModelError | None = None) -> Outcome:
    """
    The deltas as items, under the contract: indexes in order, nothing before an item's beginning or after its end.
    """
    outcome = Outcome(error=error, deltas=deltas)
    for value in deltas:
        assert outcome.ended is None
        if isinstance(value, Ended):
            outcome.ended = value
        elif isinstance(value, ItemAdded):
            assert value.index == len(outcome.items)
            assert value.name or value.type != "function_call"
            outcome.items.append(Item(value.type, value.call_id, value.name))
        elif not isinstance(value, Retrying):
            item = outcome.items[value.index]
            assert item.done is None
            if isinstance(value, ItemDone):
                item.done = value
                continue
            index = getattr(value, "content_index", getattr(value, "summary_index", 0))
            key = (type(value).__name__, index)
            value.delta.encode()
            assert value.delta
            item.texts[key] = item.texts.get(key, "") + value.delta
    assert outcome.ended is None or all(item.done is not None for item in outcome.items)
    return outcome


def read_bytes(*pieces: bytes) -> Outcome:
    """
    What a stream of these bytes becomes, without a connection.
    """
    events, answer = EventReader(), AnswerReader()
    deltas: list[Delta] = []
    try:
        for piece in (*pieces, None):
            for name, event in events.end() if piece is None else events.feed(piece):
                if answer.ended is None:
                    deltas += answer.read(name, event)
            if events.failure is not None and answer.ended is None:
                raise events.failure
    except ModelError as error:
        return fold(deltas, error)
    return fold([*deltas, answer.ended] if answer.ended else deltas)


def read(*events: Event) -> Outcome:
    return read_bytes(frames(*events))


def make_model(raw: RawUpstream, **fields: Any) -> ResponsesModel:
    settings: dict[str, Any] = {"api_key": "sk-test-1", "model": "m1", "retry_base_s": 0.001, "idle_timeout_s": 4.0}
    return ResponsesModel(ProviderSettings(base_url=raw.url, **(settings | fields)))


REQUEST = Request(session_id="sess_1", provider="default", model=None, blocks=(), instructions="I")


async def ask(*answers: Answer | bytes, **fields: Any) -> tuple[Outcome, RawUpstream]:
    """
    What the model makes of these answers, over a socket.
    """
    deltas: list[Delta] = []
    failure = None
    async with serve_raw(*answers) as raw:
        model = make_model(raw, **fields)
        try:
            async with asyncio.timeout(5), aclosing(model.stream(REQUEST)) as stream:
                async for value in stream:
                    deltas.append(value)
        except ModelError as error:
            failure = error
        finally:
            await model.aclose()
        if raw.answers[-1].end in ("hold", "beat"):
            async with asyncio.timeout(5):
                await raw.gone.wait()
    return fold(deltas, failure), raw


# Ordinary answers.


def test_a_text_is_passed_on_piece_by_piece() -> None:
    outcome = read(
        *TEXT,
        delta("output_text", "msg_1", 0, " there", content_index=0),
        {
            "type": "response.output_text.done",
            "item_id": "msg_1",
            "output_index": 0,
            "content_index": 0,
            "text": "hi there",
        },
        done(0, message("hi there")),
        completed(message("hi there")),
    )
    assert outcome.deltas == [
        ItemAdded(0, "message"),
        TextDelta(0, "hi"),
        TextDelta(0, " there"),
        ItemDone(0, hidden={"id": "msg_1"}),
        Ended(),
    ]


def test_a_call_is_added_with_its_name_and_ends_with_its_arguments() -> None:
    outcome = read(*CALL, completed(call("c1", '{"a":1}')))
    assert outcome.deltas == [
        ItemAdded(0, "function_call", "c1", "f"),
        ArgumentsDelta(0, '{"a"'),
        ArgumentsDelta(0, ":1}"),
        ItemDone(0, '{"a":1}', {"id": "fc_1"}),
        Ended(),
    ]


def test_reasoning_keeps_its_summary_its_id_and_its_encrypted_content() -> None:
    """
    B014, B015: in stream order, and an empty summary is no reason to leave one out.
    """
    outcome = read(
        added(0, reasoning("rs_A", "early")),
        {"type": "response.reasoning_summary_part.added", "item_id": "rs_A", "output_index": 0, "summary_index": 0},
        delta("reasoning_summary_text", "rs_A", 0, "one", summary_index=0),
        delta("reasoning_summary_text", "rs_A", 0, "two", summary_index=1),
        done(0, reasoning("rs_A", "EA", "one", "two")),
        added(1, call("a", "", "fc_A")),
        done(1, call("a", "{}", "fc_A")),
        added(2, reasoning("rs_B", GONE)),
        done(2, reasoning("rs_B", "EB")),
        done(3, call("b", "{}", "fc_B")),
        completed(),
    )
    assert [item.type for item in outcome.items] == ["reasoning", "function_call"] * 2
    assert outcome.items[0].texts == {("SummaryDelta", 0): "one", ("SummaryDelta", 1): "two"}
    hidden = [item.done.hidden if item.done else None for item in outcome.items]
    assert hidden == [
        {"id": "rs_A", "encrypted_content": "EA"},
        {"id": "fc_A"},
        {"id": "rs_B", "encrypted_content": "EB"},
        {"id": "fc_B"},
    ]


def test_reasoning_without_encrypted_content_hides_only_its_id() -> None:
    """
    B018.
    """
    outcome = read(done(0, reasoning("rs_1", GONE)), done(1, call("c1")), completed())
    assert outcome.items[0].done == ItemDone(0, hidden={"id": "rs_1"})


def test_raw_reasoning_becomes_the_summary_only_when_there_is_no_other() -> None:
    raw = [delta("reasoning_text", "rs_1", 0, text, content_index=0) for text in ("think", "ing")]
    local = read(added(0, reasoning(encrypted=GONE)), *raw, done(0, reasoning(encrypted=GONE)), completed())
    assert local.deltas[1] == SummaryDelta(0, "thinking")
    told = read(*raw, done(0, reasoning("rs_1", GONE, "short")), completed())
    assert told.items[0].texts == {("SummaryDelta", 1): "short"}
    sealed = read(*raw, done(0, reasoning()), completed())
    assert sealed.items[0].texts == {}


def test_a_refusal_is_a_part_of_its_own() -> None:
    both = {**message("so"), "content": [{"type": "output_text", "text": "so"}, {"type": "refusal", "refusal": "no"}]}
    streamed = read(
        *TEXT[:2],
        delta("output_text", "msg_1", 0, "so", content_index=0),
        delta("refusal", "msg_1", 0, "no", content_index=0),
        {"type": "response.refusal.done", "item_id": "msg_1", "output_index": 0, "content_index": 0, "refusal": "no"},
        done(0, both),
        completed(both),
    )
    whole = read(done(0, both), completed())
    for outcome in (streamed, whole):
        assert outcome.items[0].texts == {("TextDelta", 0): "so", ("RefusalDelta", 1): "no"}
    assert RefusalDelta(0, "no", 1) in whole.deltas


def test_annotations_belong_to_their_text() -> None:
    note = {"type": "url_citation", "url": "u"}
    event = {"type": "response.output_text.annotation.added", "item_id": "msg_1", "output_index": 0, "annotation": note}
    streamed = read(*TEXT, {**event, "content_index": 0}, done(0, message("hi", annotations=None)), completed())
    repeated = read(*TEXT, {**event, "content_index": 0}, done(0, message("hi", annotations=[note])), completed())
    for outcome in (streamed, repeated):
        assert outcome.items[0].done == ItemDone(0, hidden={"id": "msg_1"}, annotations={0: (note,)})
    bad = frames(*TEXT, done(0, message("hi", annotations=[note, {"url": "HALF"}, "x"])), completed())
    poisoned = read_bytes(bad.replace(b"HALF", b"\\ud83d"))
    assert poisoned.items[0].done == ItemDone(0, hidden={"id": "msg_1"}, annotations={0: (note,)})


def test_usage_is_what_was_reported() -> None:
    usage = {
        "input_tokens": 10,
        "output_tokens": 5,
        "total_tokens": 15,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens_details": {"reasoning_tokens": 2},
    }
    assert read(*TEXT, completed(usage=usage)).ended == Ended(usage=Usage(10, 5, 15, 4, 2))


@pytest.mark.parametrize(
    "response",
    [
        GONE,
        None,
        {},
        {"tools": None, "usage": None, "output": None},
        {"usage": {"input_tokens": "7", "output_tokens": None, "input_tokens_details": None, "total_tokens": True}},
        {"usage": [], "output": {"x": 1}, "status": None, "created_at": "yesterday"},
        [],
    ],
)
def test_a_sparse_response_object_ends_the_answer_with_unknown_usage(response: Any) -> None:
    """
    B171.
    """
    outcome = read(
        clear({"type": "response.created", "response": response}),
        *TEXT[1:],
        clear({"type": "response.completed", "response": response}),
    )
    assert outcome.ended == Ended("completed", Usage())
    assert outcome.text() == "hi"


# Ends.


@pytest.mark.parametrize(
    "details, reason",
    [
        ({"reason": "max_output_tokens"}, "max_output_tokens"),
        ({"reason": "content_filter"}, "content_filter"),
        ({"reason": "something new"}, "max_output_tokens"),
        (None, "max_output_tokens"),
    ],
)
def test_an_incomplete_answer_says_why(details: Any, reason: str) -> None:
    """
    B077, B079: the call is there as far as it was written, and the end says that it was cut.
    """
    response = {"status": "incomplete", "incomplete_details": details, "output": [], "usage": {"output_tokens": 9}}
    outcome = read(*CALL[:2], {"type": "response.incomplete", "response": response})
    assert outcome.ended is not None
    assert (outcome.ended.reason, outcome.ended.usage.output_tokens) == (reason, 9)
    assert outcome.calls() == [("c1", "f", '{"a"')]


def test_an_answer_called_complete_whose_status_or_call_says_otherwise_was_cut() -> None:
    """
    B075: a cut call that is labelled as an ordinary one.
    """
    by_status = read(*CALL, completed(status="incomplete"))
    by_call = read(added(0, call("c1", "")), done(0, call("c1", '{"a', status="incomplete")), completed())
    for outcome in (by_status, by_call):
        assert outcome.ended == Ended("max_output_tokens")


@pytest.mark.parametrize(
    "failure",
    [
        {
            "type": "response.failed",
            "response": {"status": "failed", "error": {"code": "server_error", "message": "boom"}},
        },
        {"type": "error", "code": "server_error", "message": "boom", "param": None},
        {"type": "error", "error": {"type": "server_error", "message": "boom"}},
        {"error": {"type": "server_error", "message": "boom"}},
        {
            "type": "response.completed",
            "response": {"status": "failed", "error": {"code": "server_error", "message": "boom"}},
        },
    ],
)
async def test_a_failure_of_any_shape_keeps_the_text_before_it_and_the_providers_words(failure: Event) -> None:
    """
    B100, B101: the failed turn is told in the provider's words.
    """
    outcome, raw = await ask(frames(*TEXT, failure) + b"data: [DONE]\n\n")
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.message) == ("provider_unavailable", "boom")
    assert (outcome.text(), outcome.ended, len(raw.bodies)) == ("hi", None, 1)


@pytest.mark.parametrize("events", [TEXT, CALL[:2], CALL], ids=["in a text", "in a call", "behind a call"])
@pytest.mark.parametrize("end", ["close", "reset"])
async def test_an_answer_without_its_end_marker_was_cut(events: list[Event], end: str) -> None:
    """
    B085, B104, B105: a clean end or a reset after output began is a failure, and is not tried again.
    """
    outcome, raw = await ask(Answer((frames(*events),), end=end))
    assert outcome.error is not None
    assert (outcome.error.code, outcome.ended, len(raw.bodies)) == ("upstream_disconnected", None, 1)
    assert len(outcome.items) == 1


async def test_a_stream_ended_by_its_done_marker_alone_was_cut() -> None:
    outcome, _ = await ask(frames(*TEXT) + b"data: [DONE]\n\n")
    assert outcome.error is not None
    assert outcome.error.code == "upstream_disconnected"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b": hb\n\n",
        b"data: [DONE]\n\n",
        Answer((b'{"error":{"message":"m"}}',), headers=("content-type: application/json",)),
        Answer((b"<html><title>Log in</title></html>",), headers=("content-type: text/html",)),
    ],
    ids=range(5),
)
async def test_a_200_without_an_answer_is_invalid_and_says_nothing(answer: Answer | bytes) -> None:
    """
    B086.
    """
    outcome, raw = await ask(answer)
    assert outcome.error is not None
    assert (outcome.error.code, outcome.deltas, len(raw.bodies)) == ("upstream_invalid", [], 1)


async def test_silence_ends_the_answer_with_what_it_had() -> None:
    """
    B107.
    """
    outcome, raw = await ask(Answer((frames(*TEXT),), end="beat"), idle_timeout_s=0.06)
    assert outcome.error is not None
    assert (outcome.error.code, outcome.text()) == ("upstream_idle", "hi")
    assert raw.gone.is_set()


# Retries.


@pytest.mark.parametrize(
    "failure",
    [
        Answer(status=503),
        Answer(status=429, headers=("retry-after-ms: 1",)),
        Answer(end="drop"),
        Answer((frames(CREATED),), end="reset"),
        Answer((frames(CREATED),)),
    ],
    ids=["503", "429", "closed", "reset", "ended"],
)
async def test_a_failure_before_any_output_is_announced_and_tried_again(failure: Answer) -> None:
    outcome, raw = await ask(failure, frames(*TEXT, completed()))
    assert outcome.error is None
    assert (outcome.text(), outcome.ended) == ("hi", Ended())
    assert [type(value) for value in outcome.deltas].count(Retrying) == 1
    assert raw.bodies[0] == raw.bodies[1]


async def test_a_server_that_resets_every_connection_is_given_up_and_can_answer_later() -> None:
    """
    B106.
    """
    async with serve_raw(Answer(end="drop")) as raw:
        model = make_model(raw, max_retries=2)
        async with asyncio.timeout(5):
            with pytest.raises(ModelError) as caught:
                async for _ in model.stream(REQUEST):
                    pass
            assert (caught.value.code, len(raw.bodies)) == ("provider_unavailable", 3)
            raw.answers = [Answer((frames(*TEXT, completed()),))]
            outcome = fold([value async for value in model.stream(REQUEST)])
        await model.aclose()
    assert outcome.text() == "hi"


@pytest.mark.parametrize("status", [400, 401, 404, 413])
async def test_a_refusal_is_not_tried_again(status: int) -> None:
    outcome, raw = await ask(Answer((b'{"error":{"message":"no"}}',), status=status))
    assert outcome.error is not None
    assert outcome.error.message.startswith("no (HTTP")
    assert (outcome.deltas, len(raw.bodies)) == ([], 1)


async def test_the_answer_is_whole_although_its_connection_stays_open() -> None:
    outcome, raw = await ask(Answer((frames(*TEXT, completed()),), end="hold"))
    assert (outcome.text(), outcome.ended, outcome.error) == ("hi", Ended(), None)
    assert raw.gone.is_set()


async def test_a_reader_that_leaves_in_the_middle_closes_the_upstream() -> None:
    async with serve_raw(Answer((frames(*TEXT),), end="hold")) as raw:
        model = make_model(raw)
        async with asyncio.timeout(5):
            async with aclosing(model.stream(REQUEST)) as stream:
                assert await anext(stream) == ItemAdded(0, "message")
            await raw.gone.wait()
        await model.aclose()


async def test_what_is_sent_is_the_body_that_can_be_previewed() -> None:
    outcome, raw = await ask(frames(*TEXT, completed()))
    assert outcome.ended is not None
    assert raw.bodies == [make_model(raw).body(REQUEST)]
    assert raw.paths == ["/v1/responses"]


# Streams that are bent.


@pytest.mark.parametrize("output", [[], [message("hi"), call("c1", '{"a":1}')]], ids=["empty", "repeated"])
def test_items_of_the_stream_win_over_the_list_at_its_end(output: list[Event]) -> None:
    """
    B087.
    """
    later = [{**event, "output_index": 1} for event in CALL]
    outcome = read(*TEXT, done(0, message("hi")), *later, completed(*output))
    assert outcome.text() == "hi"
    assert outcome.calls() == [("c1", "f", '{"a":1}')]


def test_a_list_at_the_end_stands_in_for_a_stream_that_said_nothing() -> None:
    """
    B087: each text once, as one delta.
    """
    outcome = read(CREATED, completed(reasoning("rs_1", "E", "s"), message("hi"), call("c1", '{"a":1}')))
    assert outcome.deltas == [
        ItemAdded(0, "reasoning"),
        SummaryDelta(0, "s"),
        ItemDone(0, hidden={"id": "rs_1", "encrypted_content": "E"}),
        ItemAdded(1, "message"),
        TextDelta(1, "hi"),
        ItemDone(1, hidden={"id": "msg_1"}),
        ItemAdded(2, "function_call", "c1", "f"),
        ArgumentsDelta(2, '{"a":1}'),
        ItemDone(2, '{"a":1}', {"id": "fc_1"}),
        Ended(),
    ]


def test_a_text_that_only_its_last_event_has_is_one_delta() -> None:
    """
    B087: whole in ``output_text.done``, in ``output_item.done``, or begun in deltas and finished there.
    """
    whole = {
        "type": "response.output_text.done",
        "item_id": "msg_1",
        "output_index": 0,
        "content_index": 0,
        "text": "hi!",
    }
    for events in (
        [*TEXT[:2], whole, done(0, message("hi!"))],
        [*TEXT[:2], done(0, message("hi!"))],
        [done(0, message("hi!"))],
        [*TEXT, whole, done(0, message("hi!"))],
        [*TEXT, {**whole, "text": GONE}, done(0, message("hi!"))],
    ):
        outcome = read(*(clear(event) for event in events), completed(message("hi!")))
        assert outcome.text() == "hi!"
        assert len(outcome.items) == 1


def test_deltas_win_over_a_last_event_that_contradicts_them() -> None:
    outcome = read(*TEXT, done(0, message("other")), completed(message("third")))
    assert outcome.text() == "hi"


def test_arguments_that_lost_a_delta_are_what_the_last_event_says() -> None:
    outcome = read(CALL[0], CALL[2], *CALL[3:], completed())
    assert outcome.calls() == [("c1", "f", '{"a":1}')]


def test_a_call_whose_last_event_forgets_its_arguments_has_those_of_its_deltas() -> None:
    outcome = read(*CALL[:3], done(0, call("c1", "")), completed(call("c1", None)))
    assert outcome.calls() == [("c1", "f", '{"a":1}')]


@pytest.mark.parametrize("item_id", [None, GONE, ""])
@pytest.mark.parametrize("place", [0, None, GONE])
def test_ids_and_places_may_be_missing(item_id: Any, place: Any) -> None:
    """
    B089: and an id that was not given is not given back.
    """
    outcome = read(
        added(place, call("A", "", item_id)),
        delta("function_call_arguments", item_id, place, '{"a":'),
        delta("function_call_arguments", item_id, place, "1}"),
        done(place, call("A", '{"a":1}', item_id)),
        added(1 if place == 0 else place, message(None, item_id)),
        delta("output_text", item_id, 1 if place == 0 else place, "hi"),
        done(1 if place == 0 else place, message("hi", item_id)),
        completed(call("A", '{"a":1}', item_id), message("hi", item_id)),
    )
    assert outcome.calls() == [("A", "f", '{"a":1}')]
    assert outcome.text() == "hi"
    assert [item.done.hidden if item.done else 0 for item in outcome.items] == [None, None]


def test_a_call_that_comes_only_whole_and_without_an_id_is_one_call() -> None:
    """
    B089.
    """
    outcome = read(done(0, call("A", "{}", None)), completed(call("A", "{}", None)))
    assert outcome.calls() == [("A", "f", "{}")]


def test_the_call_id_that_was_announced_wins_over_the_one_at_the_end() -> None:
    """
    B038: by id, or by place where the ids differ too; the call is there once.
    """
    for last in (call("B"), call("B", "{}", None), call("B", "{}", "fc_9")):
        outcome = read(added(0, call("A", "")), done(0, call("A")), completed(last))
        assert outcome.calls() == [("A", "f", "{}")]
    outcome = read(added(0, call("A", "")), done(0, call("B")), completed(call("C")))
    assert outcome.calls() == [("A", "f", "{}")]


def test_a_call_without_a_call_id_is_passed_on_without_one() -> None:
    """
    B035: the session makes the id.
    """
    for call_id in (None, GONE, "", 7):
        outcome = read(added(0, call(call_id, "")), done(0, call(call_id)), completed())
        assert outcome.calls() == [("", "f", "{}")]


def test_two_calls_that_share_a_call_id_stay_two() -> None:
    """
    B032: what their ids become is the session's business.
    """
    events = [done(place, call("t:0", f'{{"n":{place}}}', f"fc_{place}")) for place in (0, 1)]
    assert read(*events, completed()).calls() == [("t:0", "f", '{"n":0}'), ("t:0", "f", '{"n":1}')]


def test_a_call_id_of_any_length_is_passed_on() -> None:
    """
    B039: the session makes a short one of it.
    """
    assert read(done(0, call("x" * 94)), completed()).calls() == [("x" * 94, "f", "{}")]


def test_items_with_one_place_are_told_apart_by_their_ids() -> None:
    outcome = read(
        added(0, call("a", "", "fc_a")),
        added(0, call("b", "", "fc_b")),
        delta("function_call_arguments", "fc_b", 0, '{"n":2}'),
        delta("function_call_arguments", "fc_a", 0, '{"n":1}'),
        done(0, call("b", '{"n":2}', "fc_b")),
        done(0, call("a", '{"n":1}', "fc_a")),
        completed(),
    )
    assert outcome.calls() == [("a", "f", '{"n":1}'), ("b", "f", '{"n":2}')]


def test_items_with_another_id_in_each_event_are_told_apart_by_their_place() -> None:
    outcome = read(
        added(0, message(None, "x1")),
        added(1, call("a", "", "x2")),
        delta("output_text", "x3", 0, "h", content_index=0),
        delta("function_call_arguments", "x4", 1, '{"n":'),
        delta("output_text", "x5", 0, "i", content_index=0),
        delta("function_call_arguments", "x6", 1, "1}"),
        done(0, message("hi", "x7")),
        done(1, call("a", '{"n":1}', "x8")),
        completed(message("hi", "x9"), call("a", '{"n":1}', "x10")),
    )
    assert outcome.text() == "hi"
    assert outcome.calls() == [("a", "f", '{"n":1}')]
    assert [item.done.hidden if item.done else 0 for item in outcome.items] == [{"id": "x8"}, {"id": "x7"}]


def test_interleaved_items_keep_the_order_in_which_they_appear() -> None:
    outcome = read(
        added(5, call("a", "", "fc_a")),
        added(2, call("b", "", "fc_b")),
        delta("function_call_arguments", "fc_b", 2, '{"n":2}'),
        delta("function_call_arguments", "fc_a", 5, '{"n":1}'),
        done(5, call("a", '{"n":1}', "fc_a")),
        completed(),
    )
    assert outcome.calls() == [("a", "f", '{"n":1}'), ("b", "f", '{"n":2}')]


def test_arguments_before_the_name_are_held_back() -> None:
    """
    B042: the call is added once its name is known, with all that came before.
    """
    outcome = read(
        added(0, call("a", "", name="")),
        delta("function_call_arguments", "fc_1", 0, '{"q":'),
        delta("function_call_arguments", "fc_1", 0, "1}"),
        done(0, call("a", '{"q":1}')),
        completed(),
    )
    assert outcome.deltas[:2] == [ItemAdded(0, "function_call", "a", "f"), ArgumentsDelta(0, '{"q":1}')]


def test_a_call_that_never_gets_a_name_is_ignored_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """
    B037: the text beside it is kept.
    """
    with caplog.at_level(logging.WARNING):
        ghost = call("", "", GONE, name=GONE)
        outcome = read(*TEXT, done(0, message("hi")), added(1, ghost), done(1, ghost), completed())
    assert (outcome.text(), outcome.calls()) == ("hi", [])
    assert "without a name was ignored" in caplog.text


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"k": 1}, '{"k":1}'),
        ([1, 2], "[1,2]"),
        (None, ""),
        (GONE, ""),
        (3, "3"),
        ('"{}"', '"{}"'),
        ("nonsense", "nonsense"),
    ],
)
def test_arguments_of_any_type_become_text_and_are_not_judged(arguments: Any, text: str) -> None:
    """
    B054, B056, B057, B059: an object is written as JSON once; what is no object is the session's business.
    """
    outcome = read(done(0, call("c1", arguments)), completed())
    assert outcome.calls() == [("c1", "f", text)]


def test_a_message_that_stays_empty_is_none() -> None:
    outcome = read(
        added(0, message(None)), done(0, message("")), *({**e, "output_index": 1} for e in CALL), completed()
    )
    assert [item.type for item in outcome.items] == ["function_call"]


def test_content_as_a_plain_string_is_a_text() -> None:
    assert read(done(0, {**message(None), "content": "hi"}), completed()).text() == "hi"


def test_an_item_that_nothing_ends_ends_with_the_answer() -> None:
    outcome = read(*TEXT, *({**event, "output_index": 1} for event in CALL[:3]), completed())
    assert outcome.text() == "hi"
    assert outcome.calls() == [("c1", "f", '{"a":1}')]


def test_unknown_events_and_items_are_passed_over() -> None:
    outcome = read(
        {"type": "response.queued"},
        {"type": "keepalive", "sequence_number": 3},
        {"type": 7},
        {},
        added(0, {"type": "web_search_call", "id": "ws_1"}),
        {"type": "response.web_search_call.searching", "item_id": "ws_1"},
        done(0, {"type": "web_search_call", "id": "ws_1"}),
        {"type": "response.output_item.added", "item": None},
        {"type": "response.output_item.done"},
        {"type": "response.output_text.delta", "delta": {"no": "text"}},
        *({**event, "output_index": 1} for event in TEXT[1:]),
        completed({"type": "web_search_call"}, message("hi")),
    )
    assert outcome.text() == "hi"
    assert len(outcome.items) == 1


def test_an_event_may_have_its_type_only_in_its_name() -> None:
    stream = b""
    for event in (*TEXT, completed()):
        bare = {key: value for key, value in event.items() if key != "type"}
        stream += frame(event).split(b"\n")[0] + b"\n" + frame(bare).split(b"\n", 1)[1]
    assert read_bytes(stream).text() == "hi"


def test_frames_that_come_twice_say_nothing_twice() -> None:
    events = [*TEXT[:2], *TEXT[2:], done(0, message("hi")), *({**event, "output_index": 1} for event in CALL)]
    for doubled in range(len(events)):
        if ".delta" in events[doubled]["type"]:
            continue
        outcome = read(*events[: doubled + 1], *events[doubled:], completed())
        assert (outcome.text(), outcome.calls()) == ("hi", [("c1", "f", '{"a":1}')])


def test_halves_of_a_character_are_joined_in_every_kind_of_text() -> None:
    """
    B090.
    """
    high, low = b"\\ud83d", b"\\ude00"
    events = [
        delta("reasoning_summary_text", "rs_1", 0, "HIGH", summary_index=0),
        delta("reasoning_summary_text", "rs_1", 0, "LOW", summary_index=0),
        done(0, reasoning()),
        added(1, message(None)),
        delta("output_text", "msg_1", 1, "aHIGH", content_index=0),
        delta("output_text", "msg_1", 1, "LOWb", content_index=0),
        delta("refusal", "msg_1", 1, "HIGH", content_index=1),
        delta("refusal", "msg_1", 1, "LOW", content_index=1),
        added(2, call("c1", "")),
        delta("function_call_arguments", "fc_1", 2, '{"q":"HIGH'),
        delta("function_call_arguments", "fc_1", 2, 'LOW"}'),
        completed(),
    ]
    outcome = read_bytes(frames(*events).replace(b"HIGH", high).replace(b"LOW", low))
    assert outcome.items[0].texts == {("SummaryDelta", 0): "😀"}
    assert outcome.items[1].texts == {("TextDelta", 0): "a😀b", ("RefusalDelta", 1): "😀"}
    assert outcome.calls() == [("c1", "f", '{"q":"😀"}')]


def test_half_a_character_at_the_end_of_a_text_is_replaced_or_made_whole() -> None:
    """
    B090: replaced if the end does not repeat the text, made whole if it does.
    """
    half = delta("output_text", "msg_1", 0, "aHIGH", content_index=0)
    for last, text in ((message(None), "a\ufffd"), (message("aHIGHLOW"), "a😀"), (message("aHIGH"), "a\ufffd")):
        stream = frames(TEXT[1], half, done(0, last), completed(last))
        assert read_bytes(stream.replace(b"HIGH", b"\\ud83d").replace(b"LOW", b"\\ude00")).text() == text
    bad = frames(done(0, call("c1", '{"q":"HIGH"}')), completed()).replace(b"HIGH", b"\\ud83d")
    assert read_bytes(bad).calls() == [("c1", "f", '{"q":"\ufffd"}')]


def test_separators_inside_a_text_survive() -> None:
    """
    B091, B099.
    """
    text = 'a\u2028b\u2029c\u0085d\n\ndata: {"type":"done"}\n\n\r'
    assert read(TEXT[1], delta("output_text", "msg_1", 0, text), done(0, message(text)), completed()).text() == text


# Any split, any damage.


def list_streams() -> Iterator[tuple[str, bytes]]:
    text = [*TEXT, delta("output_text", "msg_1", 0, " 好🙂\u2028", content_index=0), done(0, message("hi 好🙂\u2028"))]
    usage = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    later = [{**event, "output_index": 1} for event in CALL]
    yield "text", frames(*text, completed(message("hi 好🙂\u2028"), usage=usage))
    yield "text and call", frames(*text, *later, completed())
    yield "reasoning and call", frames(added(0, reasoning()), done(0, reasoning()), *later, completed(usage=usage))
    yield "carriage returns", frames(*text, completed()).replace(b"\n", b"\r\n")
    yield "comments", frames(*text, completed()).replace(b"event:", b": hb\n\nevent:")
    yield "halves", frames(*text, completed()).replace(b" \xe5\xa5\xbd", b"\\ud83d").replace(b"hi", b"\\ude00")
    yield "no last blank line", frames(*text, completed()).rstrip()
    yield "incomplete", frames(*later[:2], {"type": "response.incomplete", "response": {}})
    yield "error", frames(*text, {"type": "error", "message": "boom", "code": "server_error"})
    yield "cut", frames(*text)[:-40]
    yield "empty", b": hb\n\n"


STREAMS = dict(list_streams())


@pytest.mark.parametrize("name, stream", STREAMS.items(), ids=list(STREAMS))
def test_a_stream_split_at_any_byte_gives_the_same_deltas(name: str, stream: bytes) -> None:
    """
    B092, B094, B097.
    """
    whole = read_bytes(stream)
    said = (whole.deltas, str(whole.error), whole.error and whole.error.code)
    assert whole.deltas or name == "empty"
    for cut in range(1, len(stream)):
        split = read_bytes(stream[:cut], stream[cut:])
        assert (split.deltas, str(split.error), split.error and split.error.code) == said, cut
    single = read_bytes(*(bytes((byte,)) for byte in stream))
    assert (single.deltas, str(single.error), single.error and single.error.code) == said


JUNK: tuple[Any, ...] = (None, 0, 3, True, "", "x", "fc_1", [], {}, ["x"], {"type": "message"}, {"error": "boom"}, 1.5)
BENT: list[Event] = [
    *TEXT,
    delta("refusal", "msg_1", 0, "no", content_index=1),
    done(0, message("hi")),
    added(1, reasoning("rs_1", GONE)),
    delta("reasoning_summary_text", "rs_1", 1, "s", summary_index=0),
    done(1, reasoning("rs_1", "E", "s")),
    *({**event, "output_index": 2} for event in CALL),
    added(3, call("c2", "", "fc_2", "g")),
    delta("function_call_arguments", "fc_2", 3, "{}"),
    done(3, call("c2", "{}", "fc_2", "g")),
    completed(message("hi"), reasoning("rs_1", "E", "s"), call("c1", '{"a":1}'), call("c2", "{}", "fc_2", "g")),
]


@st.composite
def bent_streams(draw: st.DrawFn) -> list[Event]:
    """
    A good stream with events dropped, doubled and moved, and with values of any type anywhere in them.
    """
    events = copy.deepcopy(BENT)
    for _ in range(draw(st.integers(0, 6))):
        place = draw(st.integers(0, len(events) - 1))
        action = draw(st.sampled_from(["drop", "double", "move", "junk", "junk"]))
        if action == "drop" and len(events) > 1:
            del events[place]
        elif action == "double":
            events.insert(draw(st.integers(0, len(events))), copy.deepcopy(events[place]))
        elif action == "move":
            events.insert(draw(st.integers(0, len(events) - 1)), events.pop(place))
        else:
            value: Any = events[place]
            while isinstance(value, dict | list) and value:
                key = draw(st.sampled_from(list(value) if isinstance(value, dict) else list(range(len(value)))))
                if not isinstance(value[key], dict | list) or draw(st.booleans()):
                    value[key] = copy.deepcopy(draw(st.sampled_from(JUNK)))
                    break
                value = value[key]
    return events


@given(bent_streams())
@settings(max_examples=400, deadline=None, derandomize=True)
def test_whatever_comes_the_contract_is_kept(events: list[Event]) -> None:
    """
    `fold` holds every outcome to the contract; a failure has one of its codes.
    """
    outcome = read(*events)
    assert outcome.error is None or outcome.error.code in ModelError.codes
    assert len(outcome.calls()) <= len([event for event in events if "call" in str(event)])


async def test_a_stream_written_byte_by_byte_is_read_over_a_socket() -> None:
    """
    B092.
    """
    stream = STREAMS["text"]
    outcome, _ = await ask(Answer([bytes((byte,)) for byte in stream]))
    assert outcome.text() == "hi 好🙂\u2028"
    assert outcome.ended == Ended(usage=Usage(3, 4, 7))


async def test_arguments_of_a_mebibyte_arrive() -> None:
    """
    B098.
    """
    arguments = '{"t":"' + "x" * 1_048_576 + '"}'
    outcome, _ = await ask(frames(added(0, call("c1", "")), done(0, call("c1", arguments)), completed()))
    assert outcome.calls() == [("c1", "f", arguments)]
