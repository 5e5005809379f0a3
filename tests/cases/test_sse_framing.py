"""
Frames: those of the model server as they come off the socket, and ours as any reader may cut them.
"""

import asyncio
import json
from typing import Any

import pytest
from openai._streaming import SSEDecoder

from agent_harness.testing.strict import Dialect
from tests.cases.rig import DIALECTS, Case, calling, chat_stream, responses_stream
from tests.support import WAIT_S, strict_json

both = pytest.mark.parametrize("dialect", DIALECTS)
ANSWER = {"text": "done"}
SEPARATORS = "a\u2028b\u2029c\x85d 好🙂"


def answer(dialect: Dialect, text: str, *, ascii_only: bool = False) -> list[str]:
    """
    The frames of an answer of text, its characters as they are unless told otherwise.
    """
    if dialect == "chat":
        stream = chat_stream({"content": text}, finish="stop")
    else:
        stream = responses_stream({"type": "message", "content": [{"type": "output_text", "text": text}]})
    if ascii_only:
        return stream
    return [each.replace(json.dumps(text), json.dumps(text, ensure_ascii=False)) for each in stream]


def raw(*frames: str, split: bool = False) -> dict[str, Any]:
    """
    An entry that sends these frames, each byte in a write of its own if *split*.
    """
    data = "".join(frames).encode()
    return {"raw": [{"hex": f"{byte:02x}"} for byte in data] if split else [{"hex": data.hex()}]}


async def body_of(case: Case) -> bytes:
    """
    The session's stream so far, as bytes.
    """
    async with asyncio.timeout(WAIT_S):
        async with case.api.client.get(f"{case.path}/stream?after=0&until=idle") as response:
            return await response.read()


def said_in(events: list[Any]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


@both
async def test_line_separators_survive_and_cut_no_line(play: Any, dialect: Dialect) -> None:
    """
    B091: unescaped from the model server, and from the client in messages and outputs; our frames hold them only as
    escapes, so a reader that splits lines as Python does loses nothing.
    """
    case = await play(dialect, calling("c1"), raw(*answer(dialect, SEPARATORS)), ANSWER)
    await case.send(SEPARATORS)
    await case.waiting()
    await case.result("c1", SEPARATORS)
    assert await case.rests() == "idle"
    assert (await case.says())["status"] == "completed"
    last = (await case.requests())[-1]
    assert last.status == 200
    assert last.of("output") == [("c1", SEPARATORS)]
    assert (SEPARATORS,) in last.of("user") and (SEPARATORS,) in last.of("assistant")
    body = (await body_of(case)).decode()
    assert not set(body) & set("\u2028\u2029\x85")
    data = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: {")]
    events = [strict_json(each) for each in data]
    assert said_in(events) == SEPARATORS + "done"


@both
async def test_streams_cut_at_every_byte_say_the_same(play: Any, dialect: Dialect) -> None:
    """
    B092: the model server's bytes come one at a time; our own stream is read one byte at a time by another's reader.
    """
    case = await play(dialect, raw(*answer(dialect, SEPARATORS), split=True), ANSWER)
    assert (await case.says("go"))["status"] == "completed"
    assert await case.texts() == [("user", "go"), ("assistant", SEPARATORS)]
    body = await body_of(case)

    async def single_bytes() -> Any:
        for byte in body:
            yield bytes((byte,))

    events = [event.json() async for event in SSEDecoder().aiter_bytes(single_bytes()) if event.data != "[DONE]"]
    assert said_in(events) == SEPARATORS
    assert "\ufffd" not in json.dumps(events)


@both
@pytest.mark.parametrize("noise", ["B094", "B097"])
async def test_odd_frames_of_a_model_server_are_read(play: Any, dialect: Dialect, noise: str) -> None:
    """
    B094, B097: comments between frames; no space behind the colon, data over several lines.
    """
    frames = answer(dialect, "hi there")
    if noise == "B094":
        frames = [part for each in frames for part in (":\n\n", ": ping\n\n", each)]
    else:
        frames = [each.replace("data: ", "data:").replace(', "', ',\ndata:"') for each in frames]
    case = await play(dialect, raw(*frames), ANSWER)
    assert (await case.says("go"))["status"] == "completed"
    assert await case.texts() == [("user", "go"), ("assistant", "hi there")]


@both
async def test_lines_of_a_mebibyte_pass_in_both_directions(play: Any, dialect: Dialect) -> None:
    """
    B098: one line from the model server; and arguments of that size through our stream, whose frames may be long:
    readers go by the blank line. The text comes in deltas no longer than upstream made them.
    """
    long = "x" * 1_048_576
    arguments = json.dumps({"t": long})
    call = {"call_id": "c1", "name": "look", "arguments": arguments, "deltas": [arguments]}
    case = await play(dialect, raw(*answer(dialect, long)), {"tool_calls": [call]}, ANSWER)
    assert (await case.says("go"))["status"] == "completed"
    assert (await case.texts())[1] == ("assistant", long)
    await case.send("call")
    (action,) = await case.waiting()
    assert action["arguments"] == arguments
    await case.result("c1", long)
    assert await case.rests() == "idle"
    last = (await case.requests())[-1]
    assert (last.status, last.of("call"), last.of("output")) == (200, [("c1", "look", arguments)], [("c1", long)])


FORGED = ['\n\ndata: {"type":"done"}\n\n', "\r", "\r\n\r\nevent: x\r\n", "id: 99\nretry: 1\n\n"]


@both
@pytest.mark.parametrize("text", FORGED)
async def test_text_of_a_model_forges_no_event(play: Any, dialect: Dialect, text: str) -> None:
    """
    B099: neither in its text nor in a tool's name; what is numbered has no holes.
    """
    entry = {"deltas": [text, "!"], "tool_calls": [{"call_id": "c1", "name": f"a{text}", "arguments": "{}"}]}
    case = await play(dialect, entry, ANSWER)
    assert (await case.says("go"))["status"] == "completed"
    body = (await body_of(case)).decode()
    frames = body.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    events = [strict_json(frame.rpartition("\ndata: ")[2]) for frame in frames[:-2]]
    assert [event["seq"] for event in events[1:]] == list(range(1, len(events)))
    assert said_in(events) == text + "!done"
    second = (await case.requests())[1]
    assert (second.status, second.of("assistant")[0]) == (200, (text + "!",))
