"""
The bytes of a stream: frames, escapes, pings, and readers that others wrote.
"""

import asyncio
import json
import re
import socket

import pytest
from openai._streaming import SSEDecoder

from agent_harness.llm.base import ItemAdded, ItemDone, TextDelta
from agent_harness.llm.scripted import Step, call, say
from agent_harness.server.event_stream import _TIMED
from tests.support import DONE, TOOL, WAIT_S, Api, Talk, heard, strict_json, types

PING = b": ping\n"


class Raw:
    """A stream on a bare socket: status line and headers, then the body's bytes without their chunk frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.body = b""

    @classmethod
    async def open(cls, api: Api, path: str) -> "Raw":
        reader, writer = await asyncio.open_connection(api.client.host, api.client.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        async with asyncio.timeout(WAIT_S):
            head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200") and b"Transfer-Encoding: chunked" in head
        return cls(reader, writer)

    async def chunk(self) -> bytes:
        """One write of the server; empty at the end."""
        async with asyncio.timeout(WAIT_S):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = await self.reader.readexactly(size + 2)
        self.body += data[:-2]
        return data[:-2]

    async def until(self, wanted: bytes) -> bytes:
        while wanted not in self.body:
            assert await self.chunk()
        return self.body

    def close(self) -> None:
        self.writer.close()


async def test_a_ping_is_one_comment_line_without_a_blank_line(serve):
    api = await serve(ping_s=0.02)
    talk = Talk(api, (await api.create())["id"])
    raw = await Raw.open(api, f"{talk.path}/stream")
    first = await raw.chunk()
    assert first.startswith(b"event: session.status\nretry: 1000\n") and first.endswith(b"}\n\n")
    assert [await raw.chunk() for _ in range(4)] == [PING] * 4
    await api.ask("PATCH", talk.path, json={"metadata": {"a": "b"}})
    body = await raw.until(b"session.updated")
    assert re.sub(rb"(?m)^: ping\n", b"", body).count(b"\n\n") == body.count(b"\n\n") == 2
    assert b"\r" not in body
    raw.close()


async def test_a_stream_that_breaks_by_a_fault_of_the_server_is_cut_and_logged(serve, monkeypatch, caplog):
    api = await serve(say("hi"))
    talk = Talk(api, (await api.create())["id"])

    def fail(*_):
        raise ZeroDivisionError

    raw = await Raw.open(api, f"{talk.path}/stream")
    await raw.chunk()
    monkeypatch.setattr("agent_harness.engine.following.Everything.choose", fail)
    await talk.send()
    async with asyncio.timeout(WAIT_S):
        # Neither the body's last chunk nor a second head.
        assert await raw.reader.read() == b""
    assert "a stream broke" in caplog.text and "ZeroDivisionError" in caplog.text
    monkeypatch.undo()
    assert types(await (await talk.follow(after=0, until="idle")).rest())[-2:] == ["session.status idle", DONE]
    raw.close()


async def test_there_are_no_pings_where_there_is_no_silence(serve):
    api = await serve(say("hi"), ping_s=3600)
    talk = await api.open()
    await talk.turn()
    await talk.stream.until_status("idle")
    assert PING not in talk.stream.raw


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel has no such time-out")
async def test_a_connection_keeps_the_kernel_s_time_out_when_its_stream_has_ended(serve):
    api = await serve(say("hi"))
    talk = Talk(api, (await api.create())["id"])
    raw = await Raw.open(api, f"{talk.path}/stream?until=idle")
    await raw.chunk()
    await talk.send()
    await raw.until(b"data: [DONE]")
    ours = raw.writer.get_extra_info("sockname")
    (conn,) = [each for each in _TIMED if each.get_extra_info("peername") == ours]
    assert conn.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 120_000
    raw.close()


async def test_a_queued_message_s_own_stream_is_pinged_while_it_waits(serve):
    api = await serve(call("look_up", "{}", "c1"), say("one"), say("two"), ping_s=0.02)
    talk = await api.open()
    await talk.park()
    stream = await talk.send_streamed("queued")
    await stream.until("session.item")
    while bytes(stream.raw).count(PING) < 3:
        async with asyncio.timeout(WAIT_S):
            stream.raw += await stream.response.content.readany()
    await talk.result("c1")
    assert types(await stream.rest())[-3:] == ["response.completed", "session.status idle", DONE]


async def test_a_frame_is_never_split_over_two_writes(serve):
    api = await serve(say("a", *["b" * 3000] * 20), call("look_up", "{}", "c1"), say("x" * 300_000))
    talk = Talk(api, (await api.create(agent={"tools": [TOOL]}))["id"])
    raw = await Raw.open(api, f"{talk.path}/stream?until=idle")
    await raw.chunk()
    await talk.send()
    while chunk := await raw.chunk():
        assert chunk.endswith(b"\n\n") and chunk.startswith((b"event: ", b"data: [DONE]"))
    assert raw.body.endswith(b"data: [DONE]\n\n")
    raw.close()


NASTY = [
    "a\u2028b\u2029c\x85d",
    '\n\ndata: {"type":"done"}\n\n',
    "\r",
    "\r\n\r\n",
    "\x0b\x0c\x1c\x1d\x1e",
    "event: x\nid: 99\nretry: 1\n\n",
    ": ping\n",
    "\ufeff",
    "data: [DONE]\n\n",
    "🙂\0",
]


@pytest.mark.parametrize("text", NASTY)
async def test_text_never_cuts_or_forges_a_frame(serve, text):
    """B099."""
    api = await serve(say(text, "!", text), call("look_up", json.dumps({"q": text}), "c1"), say("done"))
    talk = await api.open()
    raw = await Raw.open(api, f"{talk.path}/stream?after=0")
    await talk.turn(text)
    await talk.park(text)
    await talk.result("c1", text)
    await talk.stream.until_status("idle")
    kept = text.replace("\0", "\ufffd")
    deltas = [frame.data["delta"] for frame in talk.stream.frames if frame.event == "response.output_text.delta"]
    assert deltas[:3] == [kept, "!", kept]
    assert (await talk.items())[0]["content"][0]["text"] == kept
    assert heard(api.model, 2)[-1]["output"] == kept
    last = talk.stream.frames[-1].id
    body = (await raw.until(b"id: %d\n" % last)).decode()
    raw.close()
    seen = []
    for block in body.split("\n\n")[:-1]:
        lines = block.splitlines()
        assert [line.partition(": ")[0] for line in lines] in (["event", "id", "data"], ["event", "retry", "data"]), (
            lines
        )
        data = strict_json(lines[-1].removeprefix("data: "))
        assert lines[0] == f"event: {data['type']}"
        seen.append(data["seq"])
    assert seen == [last, *range(1, last + 1)] or seen[1:] == list(range(1, last + 1))


async def test_line_separators_are_escapes_in_the_frame_and_themselves_in_the_json(serve):
    api = await serve(say("a\u2028b\u2029c\x85d"))
    talk = await api.open()
    await talk.turn()
    await talk.stream.until_status("idle")
    raw = bytes(talk.stream.raw)
    assert b"a\\u2028b\\u2029c\\u0085d" in raw
    assert not any(each.encode() in raw for each in "\u2028\u2029\x85")


async def test_line_separators_in_names_and_metadata_are_escaped_too(serve):
    api = await serve()
    talk = await api.open(metadata={"k\u2028": "v\x85"})
    await api.ask("PATCH", talk.path, json={"agent": {"name": "n\u2029"}})
    (frame,) = await talk.stream.until("session.updated")
    assert frame.data["metadata"] == {"k\u2028": "v\x85"} and frame.data["agent"]["name"] == "n\u2029"


async def test_the_sdks_reader_reads_the_stream_through_three_pings(serve):
    api = await serve(call("look_up", '{"widget_id": 1}', "c1"), say("done"), ping_s=0.02)
    talk = await api.open()
    stream = await talk.follow(until="idle")
    pings = 0

    async def chunks():
        nonlocal pings
        parked = True
        while chunk := await stream.response.content.readany():
            yield chunk
            pings += chunk.count(PING)
            if parked and pings >= 3 and (await talk.snapshot())["status"] == "waiting":
                parked = False
                pings = 0
                await talk.result("c1")

    await talk.send(tools=[TOOL])
    seen, numbers = [], []
    async with asyncio.timeout(WAIT_S):
        async for event in SSEDecoder().aiter_bytes(chunks()):
            if event.data == DONE:
                seen.append(DONE)
                continue
            data = event.json()
            assert data["type"] == event.event
            seen.append(event.event)
            if len(seen) > 1:
                numbers.append(data["seq"])
                assert event.id == str(data["seq"])
    assert seen[-3:] == ["response.completed", "session.status", DONE]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_every_frame_holds_its_type_and_only_item_and_status_events_carry_at(serve):
    api = await serve(call("look_up", '{"widget_id": 1}', "c1"), say("done"))
    talk = await api.open()
    await talk.park()
    await talk.result("c1")
    await talk.stream.until_status("idle")
    for frame in talk.stream.frames:
        dated = frame.event in (
            "session.item",
            "session.status",
            "response.output_item.added",
            "response.output_item.done",
        )
        assert ("at" in frame.data) == dated, frame.event
        if dated:
            at = frame.data["at"]
            assert at > 1_600_000_000 and round(at, 3) == at


async def test_a_long_output_is_one_line(serve):
    api = await serve(call("look_up", "{}", "c1"), say("done"))
    talk = await api.open()
    await talk.park()
    await talk.result("c1", "line\n" * 200_000)
    await talk.stream.until_status("idle")
    (frame,) = [
        frame for frame in talk.stream.frames if frame.data.get("item", {}).get("type") == "function_call_output"
    ]
    assert len(frame.raw) > 1_000_000 and frame.raw.count(b"\n") == 2


async def test_an_answer_with_many_small_deltas_is_told_whole(serve):
    deltas = [TextDelta(0, f"{n} ") for n in range(400)]
    api = await serve(Step((ItemAdded(0, "message"), *deltas, ItemDone(0))))
    talk = await api.open()
    await talk.send()
    frames = await talk.stream.until_status("idle")
    told = "".join(frame.data["delta"] for frame in frames if frame.event == "response.output_text.delta")
    assert told == "".join(f"{n} " for n in range(400))
    assert told == next(frame.data["text"] for frame in frames if frame.event == "response.output_text.done")
