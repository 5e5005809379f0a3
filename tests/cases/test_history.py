"""
What a session's requests hold of its past: calls with their outputs, and a provider's reasoning.
"""

from typing import Any

import pytest

from agent_harness.testing.strict import Dialect
from tests.cases.rig import DIALECTS, Case, calling, frame, responses_stream

both = pytest.mark.parametrize("dialect", DIALECTS)
ANSWER = {"text": "done"}
OUTPUT = ' {"x":  1}\t\u00e9\r\n'


async def answer(case: Case) -> None:
    for action in await case.waiting():
        await case.result(action["call_id"], OUTPUT)


@both
async def test_a_second_message_is_sent_with_the_whole_tool_turn_before_it(play: Any, dialect: Dialect) -> None:
    """
    B005, B006: in order, the output byte for byte, and each item once, after two rounds of tools in one turn too.
    """
    case = await play(dialect, calling("c1"), calling("c2", "c3", text="More."), ANSWER, {"text": "15"})
    await case.send("go")
    await answer(case)
    await answer(case)
    assert await case.rests() == "idle"
    assert (await case.says("5*3?"))["status"] == "completed"
    last = (await case.requests())[-1]
    calls = [("call", call_id, "look", "{}") for call_id in ("c1", "c2", "c3")]
    outputs = [("output", call_id, OUTPUT) for call_id in ("c1", "c2", "c3")]
    assert last.status == 200
    assert last.said == [
        ("user", "go"),
        calls[0],
        outputs[0],
        ("assistant", "More."),
        *calls[1:],
        *outputs[1:],
        ("assistant", "done"),
        ("user", "5*3?"),
    ]


def thought(item_id: str, encrypted: str | None = "E", summary: str = "") -> dict[str, Any]:
    parts = [{"type": "summary_text", "text": summary}] if summary else []
    given = {} if encrypted is None else {"encrypted_content": encrypted}
    return {"type": "reasoning", "id": item_id, "summary": parts, **given}


def made(item_id: str, call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "id": item_id, "call_id": call_id, "name": "look", "arguments": "{}"}


async def items_after(case: Case) -> list[tuple[str, Any]]:
    """
    Type and provider's id of the items in the last request, which STRICT took; messages of the user left out.
    """
    last = (await case.requests())[-1]
    assert last.status == 200
    return [(item["type"], item.get("id")) for item in last.body["input"] if item.get("role") != "user"]


async def test_reasoning_goes_back_in_stream_order_before_what_it_led_to(play: Any) -> None:
    """
    B014, B015: two pairs in one answer, one without a summary; ids, content and summary as they were given.
    """
    first, second = thought("rs_A", "EA", "hm"), thought("rs_B", "EB")
    raw = responses_stream(first, made("fc_A", "c1"), second, made("fc_B", "c2"))
    case = await play("responses", {"raw": raw}, ANSWER, ANSWER)
    await case.send("go")
    await answer(case)
    assert await case.rests() == "idle"
    pairs = [("reasoning", "rs_A"), ("function_call", "fc_A"), ("reasoning", "rs_B"), ("function_call", "fc_B")]
    assert await items_after(case) == [*pairs, ("function_call_output", None), ("function_call_output", None)]
    sent = [item for item in (await case.requests())[-1].body["input"] if item["type"] == "reasoning"]
    assert sent == [first, second]
    assert (await case.says())["status"] == "completed"
    assert (await items_after(case))[:4] == pairs


@pytest.mark.parametrize("reasoning", [thought("rs_1", None), thought("r" * 65)], ids=["B018", "B014"])
async def test_a_call_whose_reasoning_cannot_go_back_goes_without_its_id(play: Any, reasoning: Any) -> None:
    """
    B014, B018: without encrypted content, which is asked for, nothing of the provider's own is sent, no reference
    either.
    """
    case = await play("responses", {"raw": responses_stream(reasoning, made("fc_1", "c1"))}, ANSWER, ANSWER)
    await case.send("go")
    await answer(case)
    assert await case.rests() == "idle"
    assert await items_after(case) == [("function_call", None), ("function_call_output", None)]
    first = (await case.requests())[0].body
    assert (first["store"], first["include"]) == (False, ["reasoning.encrypted_content"])
    assert (await case.says())["status"] == "completed"


async def test_reasoning_of_a_call_that_was_cut_is_dropped_with_it(play: Any) -> None:
    """
    B016: upstream says that the answer is incomplete after its reasoning and half a call.
    """
    raw = responses_stream(thought("rs_1"), made("fc_1", "c1"))[:-1]
    details = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    case = await play("responses", {"raw": [*raw, frame({"type": "response.incomplete", "response": details})]}, ANSWER)
    sent = await case.send("go")
    assert await case.rests() == "idle"
    assert (await case.record(sent))["status"] == "incomplete"
    assert (await case.says())["status"] == "completed"
    assert await items_after(case) == []
