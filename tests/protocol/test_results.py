"""
Whether a posted result may be taken: the first one counts, its repeat changes nothing, all others are refused.
"""

from __future__ import annotations

from typing import Any

import pytest

from agent_harness.errors import Conflict, NotFound, RequestTooLarge
from agent_harness.protocol import results
from agent_harness.protocol.commands import OUTPUT_MAX, OutputData
from agent_harness.protocol.drafts import Draft
from agent_harness.protocol.items import FunctionCallOutput, InputText, Message
from agent_harness.protocol.transcript import ClosedBy, Transcript
from agent_harness.protocol.turns import Turn

PARAM = "events[1].data.call_id"


def find_repeated(transcript: Transcript, data: OutputData) -> FunctionCallOutput | None:
    """
    Of a single result.
    """
    (found,) = results.find_repeated(transcript, [data], [PARAM])
    return found


def make_output(call_id: str, output: Any = "42", *, is_error: bool = False) -> FunctionCallOutput:
    return FunctionCallOutput(id=f"fco_{call_id}", call_id=call_id, output=output, is_error=is_error, created_at=0)


def make_transcript() -> Transcript:
    """
    A running turn whose answer announced ``open`` and ``done`` and kept ``cut`` for itself.
    """
    transcript = Transcript()
    message = Message(id="msg_1", role="user", content=(InputText("q"),), origin="client", created_at=0)
    transcript.open_turn(Turn(id="resp_1", status="in_progress", created_at=0), message, (), None)
    for index, name in enumerate(("open", "done", "cut")):
        draft = Draft(
            id=f"fc_{name}", type="function_call", response_id="resp_1", output_index=0, created_at=0, call_id=name
        )
        transcript.begin_item(index, draft)
    transcript.end_answer({"open": None, "done": None}, {})
    return transcript


def close(transcript: Transcript, by: ClosedBy = "client", **more: Any) -> FunctionCallOutput:
    output = make_output("done", **more)
    transcript.close_call(output, "completed" if by == "client" else "incomplete", by)
    return output


def test_open_call_takes_any_result() -> None:
    assert find_repeated(make_transcript(), OutputData(call_id="open", output="42")) is None
    assert find_repeated(make_transcript(), OutputData(call_id="open", output="", is_error=True)) is None


@pytest.mark.parametrize(
    "output", ["x" * (OUTPUT_MAX + 1), (InputText("x" * (OUTPUT_MAX + 1)),)], ids=["text", "parts"]
)
def test_result_over_the_limit_is_refused_from_in_process_too(output: Any) -> None:
    """B066."""
    with pytest.raises(RequestTooLarge) as caught:
        find_repeated(make_transcript(), OutputData(call_id="open", output=output))

    assert caught.value.param == PARAM.replace("call_id", "output")


@pytest.mark.parametrize("call_id", ["never", "", "cut", "x" * 1000])
def test_call_that_was_never_announced_is_unknown_and_the_open_ones_are_named(call_id: str) -> None:
    """B140."""
    with pytest.raises(NotFound) as caught:
        find_repeated(make_transcript(), OutputData(call_id=call_id, output="42"))

    assert (caught.value.code, caught.value.param) == ("unknown_call", PARAM)
    assert "open, done" in caught.value.message
    assert len(caught.value.message) < 300


def test_call_still_being_written_is_unknown() -> None:
    """B138: not announced yet, so not the client's to answer."""
    transcript = Transcript()
    message = Message(id="msg_1", role="user", content=(InputText("q"),), origin="client", created_at=0)
    transcript.open_turn(Turn(id="resp_1", status="in_progress", created_at=0), message, (), None)
    draft = Draft(id="fc", type="function_call", response_id="resp_1", output_index=0, created_at=0, call_id="c")
    transcript.begin_item(0, draft)

    with pytest.raises(NotFound, match="open calls: none"):
        find_repeated(transcript, OutputData(call_id="c", output="42"))


@pytest.mark.parametrize("output", ["42", "", (InputText("a"), InputText("b"))])
@pytest.mark.parametrize("is_error", [True, False])
def test_same_result_again_is_a_repeat(output: Any, is_error: bool) -> None:
    """B012, B141."""
    transcript = make_transcript()
    kept = close(transcript, output=output, is_error=is_error)

    assert find_repeated(transcript, OutputData(call_id="done", output=output, is_error=is_error)) is kept


def test_null_is_the_same_as_the_empty_text() -> None:
    """B072."""
    transcript = make_transcript()
    kept = close(transcript, output="")

    assert find_repeated(transcript, OutputData(call_id="done", output=None)) is kept


@pytest.mark.parametrize(
    "output, is_error", [("43", False), ("42 ", False), ("", False), ("42", True), ((InputText("42"),), False)]
)
def test_another_result_is_refused_and_the_first_stands(output: Any, is_error: bool) -> None:
    """B026, B141."""
    transcript = make_transcript()
    close(transcript)

    with pytest.raises(Conflict) as caught:
        find_repeated(transcript, OutputData(call_id="done", output=output, is_error=is_error))

    assert (caught.value.status, caught.value.code) == (409, "call_already_answered")
    assert (caught.value.param, caught.value.extra) == (PARAM, {})


@pytest.mark.parametrize("by", ["interrupt", "deadline", "harness"])
@pytest.mark.parametrize("output", ["42", "other"])
def test_result_after_another_close_is_refused_and_says_by_whom(by: ClosedBy, output: str) -> None:
    """B123, B142: even one equal to what stands there."""
    transcript = make_transcript()
    close(transcript, by)

    with pytest.raises(Conflict) as caught:
        find_repeated(transcript, OutputData(call_id="done", output=output))

    assert (caught.value.status, caught.value.code, caught.value.param) == (409, "call_closed", PARAM)
    assert caught.value.to_wire()["error"]["closed_by"] == by
