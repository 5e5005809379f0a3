"""
Values that JSON cannot hold, from an adapter that breaks its contract.
"""

from typing import Any

import pytest

from agent_harness.engine.harness import Harness
from agent_harness.llm.base import Ended, ItemAdded, ItemDone, Retrying, TextDelta
from agent_harness.protocol.items import Usage
from agent_harness.server import make_app
from tests.engine.odd import OddModel, yielding
from tests.support import Api, Frame, types

TEXT = (ItemAdded(0, "message"), TextDelta(0, "hi"))
UNWRITABLE: dict[str, tuple[Any, ...]] = {
    "a set as delay": (Retrying(1, {1}, "busy"), *TEXT, Ended()),  # type: ignore[arg-type]
    "a number over 64 bits": (Retrying(2**80, 0.0, "busy"), *TEXT, Ended()),
    "usage that is none": (*TEXT, Ended(usage=Usage(b"1", 2**80, 3))),  # type: ignore[arg-type]
    "a set in annotations": (*TEXT, ItemDone(0, annotations={0: ({"a": {1}},)}), Ended()),
    "half a character": (ItemAdded(0, "message"), TextDelta(0, "hi"), TextDelta(0, "\ud800"), Ended()),
    "not a number": (Retrying(1, float("nan"), "\udfff"), *TEXT, Ended()),
}


@pytest.mark.parametrize("name", UNWRITABLE)
async def test_one_value_that_cannot_be_written_ends_no_stream(aiohttp_client: Any, name: str) -> None:
    """
    B070: it becomes null (half a character U+FFFD); every follower reads on, the turn completes, and the session can be
    read.
    """
    model: Any = OddModel(yielding(*UNWRITABLE[name]))
    api = Api(await aiohttp_client(make_app(Harness({"default": model}))), model)
    talk = await api.open()
    other = await talk.follow(after=0)
    await talk.send()
    await talk.stream.until_status("idle")
    seq = talk.stream.frames[-1].seq
    await other.until(lambda frame: frame.id == seq)
    assert [numbered(frame) for frame in talk.stream.frames if frame.id] == [
        numbered(frame) for frame in other.frames if frame.id
    ]
    assert [frame.id for frame in other.frames if frame.id] == list(range(1, seq + 1))
    assert types(talk.stream.frames)[-2:] == ["response.completed", "session.status idle"]
    assert (await talk.items())[-1]["content"][0]["text"].startswith("hi")
    await talk.send("again")
    await talk.stream.until_status("idle")


async def test_a_model_name_that_cannot_be_written_ends_no_stream(aiohttp_client: Any) -> None:
    """
    B070.
    """
    model: Any = OddModel()
    model.default_model = b"odd"
    api = Api(await aiohttp_client(make_app(Harness({"default": model}))), model)
    talk = await api.open()
    sent = await talk.send()
    await talk.stream.until_status("idle")
    assert (await api.get(f"{talk.path}/responses/{sent['response_id']}"))["model"] is None


def numbered(frame: Frame) -> tuple[int | None, Any]:
    return frame.id, frame.data
