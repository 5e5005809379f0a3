"""
Models that break their contract: the turn ends, nothing is stuck, and the next message completes.
"""

from typing import Any

import attrs
import pytest

from agent_harness.engine.harness import Harness
from agent_harness.llm.base import ArgumentsDelta, Ended, ItemAdded, ItemDone, TextDelta
from agent_harness.llm.scripted import ScriptedModel, Step, say
from agent_harness.protocol.items import Message
from tests.engine.odd import BEGINNINGS, CALL, REASONING, TEXT, OddModel, check_failure, yielding
from tests.engine.rig import open_rig, ticks

RUBBISH: dict[str, tuple[Any, ...]] = {
    "None": (None,),
    "a string": ("text",),
    "a dictionary": ({"type": "text"},),
    "an unknown index": (TextDelta(7, "x"),),
    "a done before its item": (ItemDone(0),),
    "text that is none": (ItemAdded(0, "message"), TextDelta(0, None)),  # type: ignore[arg-type]
    "bytes": (ItemAdded(0, "message"), TextDelta(0, b"x")),  # type: ignore[arg-type]
    "a type that is none": (ItemAdded(0, "image"),),  # type: ignore[arg-type]
    "a call without a name": (ItemAdded(0, "function_call", "c1", None),),  # type: ignore[arg-type]
    "an id that is a number": (ItemAdded(0, "function_call", 5, "look"),),  # type: ignore[arg-type]
    "arguments that are an object": (*CALL, ItemDone(0, arguments={"a": 1})),  # type: ignore[arg-type]
    "a class": (Ended,),
}


@pytest.mark.parametrize("what", RUBBISH)
@pytest.mark.parametrize("before", ["nothing", "text"])
async def test_a_model_that_yields_rubbish_fails_the_turn(what: str, before: str) -> None:
    """
    The model contract: only deltas, of items that began.
    """
    first = tuple(getattr(delta, "index", 0) + 1 for delta in BEGINNINGS[before])
    deltas = [*BEGINNINGS[before], *(_shift(delta, max(first, default=0)) for delta in RUBBISH[what])]
    async with open_rig(model=OddModel(yielding(*deltas, Ended()))) as rig:
        await check_failure(rig, "internal_error")


def _shift(delta: Any, by: int) -> Any:
    if isinstance(delta, ItemAdded | ItemDone | TextDelta | ArgumentsDelta):
        return attrs.evolve(delta, index=delta.index + by)
    return delta


AGAIN: dict[str, tuple[Any, ...]] = {
    "an item twice": (*TEXT, ItemAdded(0, "message"), TextDelta(0, "x"), ItemDone(0)),
    "a call where a message was": (*TEXT, ItemAdded(0, "function_call", "c1", "look"), ItemDone(0, arguments="{}")),
    "an item again after its end": (*TEXT, ItemDone(0), ItemAdded(0, "message"), ItemDone(0)),
    "text after the end": (*TEXT, ItemDone(0), TextDelta(0, "more")),
    "arguments after the end": (*CALL, ItemDone(0, arguments="{}"), ArgumentsDelta(0, "more")),
    "two ends of a message": (*TEXT, ItemDone(0), ItemDone(0)),
    "two ends of a call": (*CALL, ItemDone(0, arguments="{}"), ItemDone(0, arguments='{"b": 2}')),
    "text in a call": (*CALL, TextDelta(0, "x"), ItemDone(0, arguments="{}")),
    "arguments in a message": (*TEXT, ArgumentsDelta(0, "x"), ItemDone(0)),
    "text in reasoning": (*REASONING, TextDelta(0, "x"), ItemDone(0)),
    "a part that leaves out one": (*TEXT, TextDelta(0, "second", 5), ItemDone(0)),
}


@pytest.mark.parametrize("what", AGAIN)
async def test_a_model_that_breaks_the_order_of_its_items_leaves_no_session_stuck(what: str) -> None:
    """
    The model contract, 1: whatever becomes of the turn, it ends, nothing stays in progress, stream and store agree.
    """
    async with open_rig(model=OddModel(yielding(*AGAIN[what], Ended()))) as rig:
        rig.send()
        await ticks(30)
        if rig.open:
            await rig.interrupt()
        await rig.settled()
        rig.send()
        assert await rig.settled() == "idle"


async def test_what_a_model_adds_that_is_no_json_is_left_out_and_the_stream_goes_on() -> None:
    """
    B070: a set, bytes, or nesting without end in an annotation or in hidden data breaks no frame and no later request.
    """
    deep: dict[str, Any] = {}
    for _ in range(600):
        deep = {"in": deep}
    notes = ({"a": {1, 2}}, {"b": b"x"}, {"c": "\ud800"}, deep, {"kept": True})
    step = Step(
        (ItemAdded(0, "message"), TextDelta(0, "hi"), ItemDone(0, hidden={"id": {1}}, annotations={0: notes}), Ended())
    )
    async with Harness({"default": ScriptedModel([step, say("next")])}) as harness:
        session = await harness.create_session()
        follower = session.follow()
        _ = [event async for event in session.run("one")]
        frames = b"".join(published.frame for published in await follower.take() + await follower.take())
        assert b'"annotations":[{"kept":true}]' in frames
        last = [event async for event in session.run("two")]
        assert last[-2].type == "response.completed"
        message = session.transcript.settled()[1]
        assert isinstance(message, Message) and message.provenance is None
