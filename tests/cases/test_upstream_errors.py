"""
Model servers that fail, lie or fall silent: the turn ends once and says why, and the session takes the next message.
"""

from typing import Any

import orjson
import pytest

from agent_harness.testing.strict import Dialect
from tests.cases.rig import DIALECTS, begun, chat_stream, frame, raw_calls, responses_stream
from tests.support import types

both = pytest.mark.parametrize("dialect", DIALECTS)
ANSWER = {"text": "done"}
ENDS = ("response.completed", "response.failed", "response.incomplete", "response.cancelled")


def text_of(stream: list[Any]) -> str:
    return "".join(each.data["delta"] for each in stream if each.event == "response.output_text.delta")


@both
async def test_a_reset_after_text_is_not_asked_again(play: Any, dialect: Dialect) -> None:
    """
    B104: failed with what came so far, never said twice; one message of the model in the transcript.
    """
    cut = {"deltas": ["Hel", "lo"], "disconnect_after": begun(dialect)}
    case = await play(dialect, cut, ANSWER)
    sent = await case.send("go")
    assert await case.rests() == "failed"
    record = await case.record(sent)
    assert (record["status"], record["error"]["code"]) == ("failed", "upstream_disconnected")
    assert text_of(case.stream.frames) == "Hel"
    assert await case.texts() == [("user", "go"), ("assistant", "Hel")]
    assert len(await case.requests()) == 1
    assert (await case.says("next"))["status"] == "completed"
    last = (await case.requests())[-1]
    assert (last.status, last.said) == (200, [("user", "go"), ("assistant", "Hel"), ("user", "next")])


@both
async def test_a_call_whose_answer_was_cut_is_never_anybodys_to_run(play: Any, dialect: Dialect) -> None:
    """
    B105: calls are announced only when their answer has ended well, so a reset leaves none to be run twice: no retry,
    nothing to answer (404), and the call is in no later request.
    """
    whole = raw_calls(dialect, ("look", "{}", "c1"))["raw"]
    case = await play(dialect, {"raw": whole, "disconnect_after": len(whole) - 2 + (dialect == "responses")}, ANSWER)
    sent = await case.send("go")
    assert await case.rests() == "failed"
    assert (await case.record(sent))["error"]["code"] == "upstream_disconnected"
    added = [each.data["item"]["call_id"] for each in case.stream.frames if each.event == "response.output_item.added"]
    assert added == ["c1"]
    ended = [each.data["item"]["status"] for each in case.stream.frames if each.event == "response.output_item.done"]
    assert ended == ["incomplete"]
    data = {"call_id": "c1", "output": "ran"}
    await case.refused(
        {"type": "function_call_output", "data": data}, status=404, code="unknown_call", param="data.call_id"
    )
    assert len(await case.requests()) == 1
    assert (await case.says("next"))["status"] == "completed"
    last = (await case.requests())[-1]
    assert (last.status, last.said) == (200, [("user", "go"), ("user", "next")])


@both
async def test_when_the_attempts_run_out_the_session_is_free(play: Any, dialect: Dialect) -> None:
    """
    B106: as many attempts as the provider's settings say, each told; one terminal event; the next message works.
    """
    down = {"disconnect_after": -1}
    case = await play(dialect, *[down] * 3, ANSWER, provider={"max_retries": 2})
    sent = await case.send("go")
    assert await case.rests() == "failed"
    assert (await case.record(sent))["error"]["code"] in ("upstream_disconnected", "provider_unavailable")
    told = types(case.stream.frames)
    assert (told.count("response.retrying"), sum(told.count(end) for end in ENDS)) == (2, 1)
    assert (await case.snapshot())["required_actions"] == []
    assert len(await case.requests()) == 3
    assert (await case.says("next"))["status"] == "completed"
    last = (await case.requests())[-1]
    assert (last.status, last.said) == (200, [("user", "go"), ("user", "next")])


@both
async def test_a_retry_that_works_is_told_and_said_once(play: Any, dialect: Dialect) -> None:
    """
    B106, its good end.
    """
    case = await play(dialect, {"disconnect_after": -1}, {"error": "busy", "status_code": 503}, ANSWER,
                      provider={"max_retries": 2})  # fmt: skip
    assert (await case.says())["status"] == "completed"
    assert text_of(case.stream.frames) == "done"
    assert types(case.stream.frames).count("response.retrying") == 2


@both
@pytest.mark.parametrize("beats", [False, True], ids=["silence", "comments"])
async def test_a_stream_without_events_is_ended(play: Any, dialect: Dialect, beats: bool) -> None:
    """
    B107: silence is counted between events, so comments do not keep a stream alive; the connection is closed.
    """
    first = {"deltas": ["Hel", "lo"], "block": begun(dialect)}
    if beats:
        opening = (
            [frame({"type": "response.output_text.delta", "output_index": 0, "delta": "Hel"})]
            if dialect == "responses"
            else chat_stream({"content": "Hel"}, finish=None, done=False)
        )
        first = {"raw": [*opening, *[": hb\n\n"] * 2000], "delay_s": 0.005}
    case = await play(dialect, first, ANSWER, provider={"idle_timeout_s": 0.1, "max_retries": 0})
    sent = await case.send("go")
    assert await case.rests() == "failed"
    assert (await case.record(sent))["error"]["code"] == "upstream_idle"
    await case.upstreams(0)
    assert (await case.tell_mock("/stats?disconnects=1"))["disconnects"] == 1
    assert text_of(case.stream.frames) == "Hel"
    assert (await case.says())["status"] == "completed"


@pytest.mark.parametrize("given", [{}, {"tools": None, "usage": None, "status": None}, {"created_at": "x", "tools": 3}])
async def test_fields_that_are_missing_or_odd_do_no_harm(play: Any, given: dict[str, Any]) -> None:
    """
    B171: the turn completes, and usage that is not reported is null.
    """
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
    case = await play("responses", {"raw": responses_stream(item, **given)}, ANSWER)
    record = await case.says("go")
    assert record["status"] == "completed"
    usage = record["usage"]
    assert usage is None or usage["total_tokens"] is None
    assert await case.texts() == [("user", "go"), ("assistant", "hi")]
    assert (await case.says())["status"] == "completed"


@pytest.mark.parametrize("where", ["stream", "final"])
async def test_an_answer_is_taken_once_wherever_it_stands(play: Any, where: str) -> None:
    """
    B087: items that were streamed although the final output is empty, and the other way round.
    """
    call = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": "{}"}
    text = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
    raw = responses_stream(text, call)
    final = frame({"type": "response.completed", "response": {"output": []}})
    case = await play("responses", {"raw": [*raw[:-1], final] if where == "stream" else raw[-1:]}, ANSWER)
    await case.send("go")
    assert [action["call_id"] for action in await case.waiting()] == ["c1"]
    await case.result("c1", "out")
    assert await case.rests() == "idle"
    second = (await case.requests())[1]
    assert second.status == 200
    assert second.said == [("user", "go"), ("assistant", "hi"), ("call", "c1", "look", "{}"), ("output", "c1", "out")]


@both
async def test_halves_of_a_character_become_one(play: Any, dialect: Dialect) -> None:
    """
    B090: in text and arguments; half of one that stays alone becomes U+FFFD.
    """
    high, low = "\ud83d", "\ude00"
    halves = {"deltas": ["a" + high, low + "b" + high]}
    call = {
        "call_id": "c1",
        "name": "look",
        "arguments": f'{{"t":"{high}{low}"}}',
        "deltas": [f'{{"t":"{high}', f'{low}"}}'],
    }
    case = await play(dialect, {**halves, "tool_calls": [call]}, ANSWER)
    await case.send("go")
    (action,) = await case.waiting()
    assert orjson.loads(action["arguments"]) == {"t": "😀"}
    assert text_of(case.stream.frames) == "a😀b\ufffd"
    await case.result("c1", "out")
    assert await case.rests() == "idle"
    second = (await case.requests())[1]
    assert second.status == 200
    assert second.of("assistant") == [("a😀b\ufffd",)]
