"""
Sessions that begin with a past: each request they make is right, whatever they were given.
"""

from typing import Any

import pytest

from agent_harness.errors import InvalidRequest, NotFound
from agent_harness.llm.scripted import ScriptedModel, say
from agent_harness.protocol.requests import read_create
from tests.engine.laws import check_rest
from tests.engine.rig import Rig, make_harness, open_rig

USER = {"type": "message", "role": "user", "content": "hi"}
SAID = {"type": "message", "role": "assistant", "content": "hello"}


def asked(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}"}


def answered(call_id: str, **more: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": f"R{call_id}", **more}


CLOSED = "output:{}=Error: …"
PASTS: dict[str, tuple[list[Any], list[str]]] = {
    "nothing": ([], []),
    "a whole round": ([USER, asked("1"), answered("1"), SAID], ["user:hi", "call:1", "output:1=R1", "assistant:hello"]),
    "an open call": ([USER, asked("1")], ["user:hi", "call:1", CLOSED.format(1)]),
    "a message behind an open call": (
        [asked("1"), USER, SAID],
        ["call:1", CLOSED.format(1), "user:hi", "assistant:hello"],
    ),
    "one of two answered": (
        [asked("1"), asked("2"), answered("2")],
        ["call:1", "call:2", CLOSED.format(1), "output:2=R2"],
    ),
    "answers in another order": (
        [asked("1"), asked("2"), answered("2"), answered("1")],
        ["call:1", "call:2", "output:1=R1", "output:2=R2"],
    ),
    "a failed call": ([asked("1"), answered("1", is_error=True)], ["call:1", "output:1=Error: R1"]),
    "answers of the assistant only": ([SAID, SAID], ["assistant:hello", "assistant:hello"]),
    "an answer behind a message": (
        [asked("1"), USER, answered("1"), SAID],
        ["call:1", "output:1=R1", "user:hi", "assistant:hello"],
    ),
    "a reasoning at the end": ([USER, {"type": "reasoning", "summary": []}], ["user:hi"]),
}


@pytest.mark.parametrize("past", PASTS)
async def test_a_session_may_begin_with_a_past(past: str) -> None:
    """
    B003, B011, B144: calls are paired by id, open ones closed by the harness; nothing runs before the first message.
    """
    items, sent = PASTS[past]
    model = ScriptedModel([say("one"), say("two")])
    async with make_harness({"default": model}) as harness:
        rig = Rig(harness, harness.create(read_create({"items": items}, 7)), model)
        shown = rig.snapshot
        assert (shown["status"], shown["seq"], shown["required_actions"]) == ("idle", 0, [])
        assert all(item["response_id"] is None for item in shown["items"])
        assert rig.requests == []
        check_rest(rig.session)
        for text in ("first", "second"):
            rig.send(text)
            assert await rig.finished() == "idle"
        read = [text.split("Error: ")[0] + "Error: …" if "was not answered" in text else text for text in rig.sent(0)]
        assert read == [*sent, "user:first"]
        assert rig.sent(1) == [*rig.sent(0), "assistant:one", "user:second"]


@pytest.mark.parametrize(
    "items",
    [
        [answered("1")],
        [answered("1"), asked("1")],
        [asked("1"), asked("1")],
        [asked("1"), answered("1"), answered("1")],
    ],
)
async def test_a_past_that_could_never_be_sent_is_refused(items: list[Any]) -> None:
    """
    B003, B012: an output without its call, a call twice, a second output.
    """
    with pytest.raises(InvalidRequest) as refused:
        read_create({"items": items}, 0)
    assert refused.value.param is not None
    assert refused.value.param.startswith("items[")


async def test_a_call_that_belongs_to_another_session_is_unknown_here() -> None:
    """
    B011: sessions live in memory; a result for one that is gone, or of another, is told so.
    """
    async with open_rig([]) as rig:
        with pytest.raises(NotFound) as refused:
            rig.result("c1")
        assert refused.value.code == "unknown_call"
        with pytest.raises(NotFound) as gone:
            rig.harness.get("sess_gone")
        assert gone.value.code == "unknown_session"
        assert rig.session.feed.seq == 0
