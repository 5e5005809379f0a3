"""
The mock model server over real sockets: scripts, queues, gate, cuts, captured requests, the openai SDK as its client.
"""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any, TypeVar

import aiohttp
import httpx
import openai
import pytest
from aiohttp import web

from agent_harness.testing.mock_llm import make_mock_app, serve_mock
from agent_harness.testing.threads import ThreadServer

Body = dict[str, Any]
T = TypeVar("T")
PATHS = {"responses": "/v1/responses", "chat": "/v1/chat/completions"}
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}
CALL = {"call_id": "call_1", "name": "look", "arguments": '{"widget_id": 42}'}


async def soon(thing: Awaitable[T]) -> T:
    return await asyncio.wait_for(thing, 5)


async def make_mock() -> web.Application:
    return make_mock_app()


class Mock:
    """
    A mock server, a client, and the errors that the server logged.
    """

    def __init__(self, url: str, client: aiohttp.ClientSession) -> None:
        self.url = url
        self.client = client

    async def post(self, path: str, body: Any = None) -> Body:
        async with self.client.post(self.url + path, json=body or {}) as response:
            assert response.status == 200, await response.text()
            return dict(await response.json())

    async def get(self, path: str) -> Body:
        async with self.client.get(self.url + path) as response:
            return dict(await response.json())

    async def script(self, *entries: Body, **fields: Any) -> None:
        await self.post("/mock/configure", {"responses": entries, **fields})

    async def ask(
        self, dialect: str, text: Any = "hi", *, session: str | None = None, **fields: Any
    ) -> tuple[int, Any]:
        headers = {"x-session-id": session} if session else {}
        async with self.client.post(
            self.url + PATHS[dialect], json=make_body(dialect, text, **fields), headers=headers
        ) as got:
            raw = await got.text()
            return got.status, json.loads(raw) if got.content_type == "application/json" else read_events(raw)

    def open(self, dialect: str, **fields: Any) -> Any:
        return self.client.post(self.url + PATHS[dialect], json=make_body(dialect, "hi", stream=True, **fields))

    async def captured(self, key: str = "") -> list[Body]:
        return list((await self.get(f"/mock/requests?key={key}"))["requests"])


def make_body(dialect: str, text: Any, **fields: Any) -> Body:
    items = text if isinstance(text, list) else [{"role": "user", "content": text}]
    return {"model": "m", ("input" if dialect == "responses" else "messages"): items, **fields}


def read_events(raw: str) -> list[Any]:
    """
    Read a stream: its JSON events, each named by its `event:` line in Responses; "[DONE]" as it is.
    """
    events: list[Any] = []
    assert not raw or raw.endswith("\n\n")
    for frame in raw.split("\n\n")[:-1]:
        *names, data = frame.split("\n")
        held = data.removeprefix("data: ")
        events.append(held if held == "[DONE]" else json.loads(held))
        if names:
            assert names == [f"event: {events[-1]['type']}"]
    return events


async def read_until_broken(content: aiohttp.StreamReader) -> bytes:
    """
    Give what can be read until the connection breaks; it must break.
    """
    raw = b""
    try:
        while not content.at_eof():
            raw += await content.readany()
    except aiohttp.ClientError:
        return raw
    raise AssertionError("the stream ended well")


def join_text(dialect: str, events: list[Any]) -> str:
    if dialect == "responses":
        return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    choices = [choice for event in events if event != "[DONE]" for choice in event["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@pytest.fixture
async def mock(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Mock]:
    runner = web.AppRunner(make_mock_app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as client:
        yield Mock(url, client)
    await asyncio.wait_for(runner.cleanup(), 5)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.fixture
async def sdk(mock: Mock) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{mock.url}/v1", api_key="k", max_retries=0, timeout=5) as client:
        yield client


BOTH = pytest.mark.parametrize("dialect", ["responses", "chat"])


async def test_a_responses_stream_has_all_events_of_the_real_api_in_order(mock: Mock) -> None:
    await mock.script({"reasoning": "Hm.", "text": "So it is", "deltas": ["So it", " is"], "tool_calls": [CALL]})
    status, events = await mock.ask("responses", stream=True, include=["reasoning.encrypted_content"], tools=[TOOL])
    assert status == 200
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    done = events[-1]["response"]
    assert done["status"] == "completed"
    assert done["usage"]["total_tokens"] == done["usage"]["input_tokens"] + done["usage"]["output_tokens"]
    assert done["output"] == [event["item"] for event in events if event["type"] == "response.output_item.done"]
    reasoning, message, call = done["output"]
    assert reasoning["id"].startswith("rs_")
    assert reasoning["encrypted_content"]
    assert reasoning["summary"] == [{"type": "summary_text", "text": "Hm."}]
    assert message["content"][0]["text"] == "So it is"
    assert {key: call[key] for key in CALL} == CALL
    assert (call["id"][:3], call["status"]) == ("fc_", "completed")


async def test_reasoning_is_not_encrypted_unless_asked_for_and_may_have_no_summary(mock: Mock) -> None:
    await mock.script({"reasoning": "", "text": "x"})
    _, body = await mock.ask("responses")
    assert {key: value for key, value in body["output"][0].items() if key != "id"} == {
        "type": "reasoning",
        "summary": [],
    }


async def test_a_chat_stream_has_role_deltas_finish_reason_usage_and_end_marker(mock: Mock) -> None:
    second = {"name": "look", "arguments": {"a": "é"}, "deltas": None}
    await mock.script({"reasoning": "Hm.", "text": "So it is", "tool_calls": [CALL, second]})
    tools = [{"type": "function", "function": {"name": "look"}}]
    _, events = await mock.ask("chat", stream=True, stream_options={"include_usage": True}, tools=tools)
    *chunks, usage, end = events
    assert end == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] > 0
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk["usage"] for chunk in chunks} == {None}
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["tool_calls"]
    assert join_text("chat", events) == "So it is"
    assert "".join(choice["delta"].get("reasoning_content", "") for choice in choices) == "Hm."
    pieces = [piece for choice in choices for piece in choice["delta"].get("tool_calls", ())]
    assert [piece["index"] for piece in pieces] == [0, 0, 0, 1, 1, 1]
    assert pieces[0]["id"] == "call_1"
    assert pieces[0]["function"] == {"name": "look", "arguments": ""}
    assert "".join(piece["function"]["arguments"] for piece in pieces[:3]) == '{"widget_id": 42}'
    assert "".join(piece["function"]["arguments"] for piece in pieces[3:]) == '{"a":"é"}'
    assert pieces[3]["id"].startswith("call_")
    kinds = ["content" if choice["delta"].get("content") else "calls" for choice in choices[1:-1]][1:]
    assert kinds == sorted(kinds, reverse=True)


async def test_a_chat_stream_has_no_usage_unless_asked_for(mock: Mock) -> None:
    await mock.script({"text": "x"})
    _, events = await mock.ask("chat", stream=True)
    assert all("usage" not in event for event in events[:-1])


@BOTH
async def test_the_sdk_reads_a_streamed_answer(mock: Mock, sdk: openai.AsyncOpenAI, dialect: str) -> None:
    await mock.script({"text": "Ja, U+2028 \u2028 und 😀.", "tool_calls": [CALL]})
    text = arguments = ""
    if dialect == "responses":
        async for event in await sdk.responses.create(model="m", input="hi", stream=True):
            text += event.delta if event.type == "response.output_text.delta" else ""
            if event.type == "response.completed":
                arguments = event.response.output[1].arguments  # type: ignore[union-attr]
    else:
        messages: Any = [{"role": "user", "content": "hi"}]
        async for chunk in await sdk.chat.completions.create(model="m", messages=messages, stream=True):
            text += chunk.choices[0].delta.content or ""
            for call in chunk.choices[0].delta.tool_calls or ():
                arguments += (call.function.arguments or "") if call.function else ""
    assert (text, arguments) == ("Ja, U+2028 \u2028 und 😀.", CALL["arguments"])


@BOTH
async def test_the_sdk_reads_an_answer_that_is_not_streamed(mock: Mock, sdk: openai.AsyncOpenAI, dialect: str) -> None:
    await mock.script({"reasoning": "Hm.", "text": "red", "tool_calls": [CALL]})
    if dialect == "responses":
        response = await sdk.responses.create(model="m", input="hi")
        assert response.output_text == "red"
        assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
        assert response.usage is not None
    else:
        completion = await sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        choice = completion.choices[0]
        assert (choice.message.content, choice.finish_reason) == ("red", "tool_calls")
        assert choice.message.tool_calls is not None
        assert choice.message.tool_calls[0].id == "call_1"
        assert completion.usage is not None


async def test_the_sdk_reads_errors_and_models(mock: Mock, sdk: openai.AsyncOpenAI) -> None:
    await mock.script({"error": "slow down", "status_code": 429, "headers": {"retry-after": "7"}}, key="gpt")
    with pytest.raises(openai.RateLimitError, match="slow down") as caught:
        await sdk.responses.create(model="gpt", input="hi")
    assert caught.value.response.headers["retry-after"] == "7"
    assert caught.value.type == "rate_limit_error"
    assert [model.id async for model in sdk.models.list()] == ["mock", "gpt"]


@BOTH
async def test_errors_have_the_shape_of_the_real_api_and_are_500_unless_told(mock: Mock, dialect: str) -> None:
    await mock.script({"error": "boom"}, {"error": {"message": "m", "code": "c", "x": 1}, "status_code": 400})
    assert await mock.ask(dialect, stream=True) == (
        500,
        {"error": {"message": "boom", "type": "server_error", "param": None, "code": None}},
    )
    assert await mock.ask(dialect) == (
        400,
        {"error": {"message": "m", "type": "invalid_request_error", "param": None, "code": "c", "x": 1}},
    )


@BOTH
async def test_an_answer_cut_by_length_says_so(mock: Mock, dialect: str) -> None:
    await mock.script(
        {"text": "So", "finish": "length"},
        {"tool_calls": [CALL, CALL | {"arguments": '{"a'}], "finish": "content_filter"},
    )
    _, events = await mock.ask(dialect, stream=True)
    _, document = await mock.ask(dialect)
    if dialect == "responses":
        assert events[-1]["type"] == "response.incomplete"
        assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
        assert [item["status"] for item in events[-1]["response"]["output"]] == ["incomplete"]
        assert document["incomplete_details"] == {"reason": "content_filter"}
        assert [item["status"] for item in document["output"]] == ["completed", "incomplete"]
        assert document["output"][1]["arguments"] == '{"a'
    else:
        assert events[-2]["choices"][0]["finish_reason"] == "length"
        assert document["choices"][0]["finish_reason"] == "content_filter"


@BOTH
async def test_usage_is_put_in_as_it_is_even_null(mock: Mock, dialect: str) -> None:
    await mock.script({"text": "a", "usage": {"odd": 1}}, {"text": "a", "usage": None})
    assert (await mock.ask(dialect))[1]["usage"] == {"odd": 1}
    assert (await mock.ask(dialect))[1]["usage"] is None


@BOTH
async def test_deltas_split_the_text_even_inside_an_emoji(mock: Mock, dialect: str) -> None:
    await mock.script({"deltas": ["a", "\ud83d", "\ude00"]})
    async with mock.open(dialect) as response:
        raw = await response.text()
    assert "\\ud83d" in raw
    assert "\\ude00" in raw


@BOTH
async def test_an_entry_without_text_or_calls_is_an_answer_without_items(mock: Mock, dialect: str) -> None:
    await mock.script({})
    _, body = await mock.ask(dialect)
    if dialect == "responses":
        assert (body["status"], body["output"]) == ("completed", [])
    else:
        assert body["choices"][0]["message"]["content"] is None


@BOTH
async def test_recall_answers_with_what_the_request_really_holds(mock: Mock, dialect: str) -> None:
    await mock.script(
        {"recall": r'"color": "(\w+)"'}, {"recall": r"widget-\d+"}, {"recall": "instructed"}, {"recall": "id.: 4."}
    )
    if dialect == "responses":
        items = [
            {"role": "system", "content": "instructed"},
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "which?"}, {"type": "input_text", "text": " widget-7"}],
            },
            {"type": "function_call", **CALL},
            {"type": "function_call_output", "call_id": "call_1", "output": '{"color": "red"}'},
        ]
    else:
        function = {"name": "look", "arguments": CALL["arguments"]}
        items = [
            {"role": "system", "content": "instructed"},
            {"role": "user", "content": "which? widget-7"},
            {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": '{"color": "red"}'}]},
        ]
    answers = [join_text(dialect, (await mock.ask(dialect, items, stream=True))[1]) for _ in range(4)]
    assert answers == ["red", "widget-7", "not found", 'id": 42']


@BOTH
async def test_a_queue_is_chosen_by_the_last_user_text_then_the_model_then_default(mock: Mock, dialect: str) -> None:
    await mock.script({"text": "by match"}, key="one", match="blue widget")
    await mock.script({"text": "by model"}, key="gpt")
    await mock.script({"text": "by default"})
    matching = [{"role": "user", "content": "a blue widget?"}, {"role": "assistant", "content": "no"}]
    elsewhere = [*matching, {"role": "user", "content": "a red one?"}]

    async def say(text: Any, model: str) -> str:
        return join_text(dialect, (await mock.ask(dialect, text, model=model, stream=True))[1])

    assert await say(elsewhere, "other") == "by default"
    assert await say(elsewhere, "gpt") == "by model"
    assert await say(matching, "gpt") == "by match"
    assert [held["key"] for held in await mock.captured()] == ["default", "gpt", "one"]
    assert [held["body"]["model"] for held in await mock.captured("gpt")] == ["gpt"]


@BOTH
async def test_an_exhausted_queue_answers_500_naming_the_key_unless_a_fallback_is_set(mock: Mock, dialect: str) -> None:
    status, body = await mock.ask(dialect)
    assert (status, body["error"]["code"]) == (500, "mock_queue_exhausted")
    assert "'default'" in body["error"]["message"]
    await mock.script(key="gpt")
    assert "'gpt'" in (await mock.ask(dialect, model="gpt"))[1]["error"]["message"]
    await mock.post("/mock/set_fallback", {"response": {"text": "again"}})
    for _ in range(2):
        assert join_text(dialect, (await mock.ask(dialect, stream=True))[1]) == "again"
    await mock.post("/mock/set_fallback", {"response": None})
    assert (await mock.ask(dialect))[0] == 500


async def test_configuring_a_key_replaces_its_queue(mock: Mock) -> None:
    await mock.script({"text": "old"}, {"text": "old"})
    await mock.script({"text": "new"})
    assert join_text("chat", (await mock.ask("chat", stream=True))[1]) == "new"
    assert (await mock.ask("chat"))[0] == 500


@pytest.mark.parametrize(
    "body,path",
    [
        ({"responses": [{"txt": "a"}]}, "responses[0].txt"),
        ({"responses": [{"text": 1}]}, "responses[0].text"),
        ({"responses": [{"tool_calls": [{"call_id": "a"}]}]}, "responses[0].tool_calls[0].name"),
        ({"responses": [{"recall": "("}]}, "responses[0].recall"),
        ({"responses": [{"raw": [1]}]}, "responses[0].raw[0]"),
        ({"responses": {}}, "responses"),
        ({"strict": {"prefx": False}}, "strict.prefx"),
        ({"strict": {"prefix": 0}}, "strict.prefix"),
        ({"answers": []}, "answers"),
        ([], "body"),
    ],
)
async def test_a_script_with_a_mistake_is_refused_with_its_path(mock: Mock, body: Any, path: str) -> None:
    async with mock.client.post(f"{mock.url}/mock/configure", json=body) as response:
        assert response.status == 400
        assert (await response.json())["error"]["message"].startswith(f"{path}:")


async def test_requests_are_captured_with_path_headers_body_and_status(mock: Mock) -> None:
    await mock.script({"text": "a"})
    await mock.ask("responses", session="sess_1")
    await mock.ask("chat")
    async with mock.client.post(f"{mock.url}/v1/responses", data=b'{"input": NaN}') as response:
        assert response.status == 400
    first, second, third = await mock.captured()
    assert (first["path"], first["status"], first["key"]) == ("/v1/responses", 200, "default")
    assert first["body"] == make_body("responses", "hi")
    assert first["headers"]["x-session-id"] == "sess_1"
    assert (second["path"], second["status"]) == ("/v1/chat/completions", 500)
    assert (third["body"], third["status"], third["key"]) == ('{"input": NaN}', 400, None)


async def test_reset_forgets_everything_and_drops_what_is_parked(mock: Mock) -> None:
    await mock.script({"block": True})
    await mock.script({"text": "b"}, key="gpt", strict=False)
    parked = asyncio.create_task(mock.ask("chat"))
    await soon(mock.get("/gate/pending?wait=1"))
    await mock.post("/mock/reset")
    with pytest.raises(aiohttp.ClientConnectionError):
        await soon(parked)
    assert await mock.captured() == []
    assert await mock.get("/stats") == {"requests": {}, "open": 0, "disconnects": 0, "pending": 0}
    assert (await mock.ask("chat", model="gpt"))[0] == 500


@BOTH
async def test_a_blocked_request_gets_no_byte_before_its_release(mock: Mock, dialect: str) -> None:
    await mock.script({"text": "a", "block": True}, {"error": "late", "block": True}, {"text": "c", "block": True})
    asked = [asyncio.create_task(mock.ask(dialect, stream=True)) for _ in range(3)]
    assert await soon(mock.get("/gate/pending?wait=3")) == {"pending": 3}
    assert [held["status"] for held in await mock.captured()] == [None] * 3
    assert not any(task.done() for task in asked)
    assert await mock.post("/gate/release", {"count": 1}) == {"released": 1, "pending": 2}
    await soon(asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED))
    assert await mock.post("/gate/release") == {"released": 2, "pending": 0}
    assert sorted(status for status, _ in await soon(asyncio.gather(*asked))) == [200, 200, 500]


@BOTH
async def test_a_number_blocks_after_that_many_frames(mock: Mock, dialect: str) -> None:
    await mock.script({"text": "one two", "block": 2})
    async with mock.open(dialect) as response:
        await soon(mock.get("/gate/pending?wait=1"))
        raw = await soon(response.content.readuntil(b"\n\n")) + await soon(response.content.readuntil(b"\n\n"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(response.content.readany(), 0.05)
        await mock.post("/gate/release")
        raw += await soon(response.content.read())
    assert join_text(dialect, read_events(raw.decode())) == "one two"


@BOTH
async def test_an_answer_that_is_not_streamed_can_be_blocked_too(mock: Mock, dialect: str) -> None:
    await mock.script({"text": "a", "block": 3})
    asked = asyncio.create_task(mock.ask(dialect))
    await soon(mock.get("/gate/pending?wait=1"))
    await mock.post("/gate/release")
    assert (await soon(asked))[0] == 200


async def test_a_raw_stream_can_be_held_open_after_its_last_frame(mock: Mock) -> None:
    await mock.script({"raw": [": hb\n\n"], "block": 1})
    async with mock.open("chat") as response:
        assert await soon(response.content.readuntil(b"\n\n")) == b": hb\n\n"
        await soon(mock.get("/gate/pending?wait=1"))
        assert not response.content.at_eof()
        await mock.post("/gate/release")
        assert await soon(response.content.read()) == b""


@pytest.mark.parametrize("block", [True, 2])
async def test_a_parked_request_whose_client_goes_is_dropped_and_counted(mock: Mock, block: Any) -> None:
    await mock.script({"text": "a", "block": block}, {"text": "b"})
    leaving = asyncio.create_task(mock.ask("responses", stream=True))
    await soon(mock.get("/gate/pending?wait=1"))
    assert (await mock.get("/stats"))["open"] == 1
    leaving.cancel()
    assert await soon(mock.get("/gate/pending?wait=0")) == {"pending": 0}
    stats = await soon(mock.get("/stats?open=0&disconnects=1"))
    assert stats == {"requests": {"/v1/responses": 1}, "open": 0, "disconnects": 1, "pending": 0}
    assert await mock.post("/gate/release") == {"released": 0, "pending": 0}
    assert (await mock.ask("responses"))[0] == 200
    assert (await mock.get("/stats"))["disconnects"] == 1


async def test_a_client_that_leaves_a_slow_stream_is_noticed_at_once(mock: Mock) -> None:
    await mock.script({"text": "a b c", "delay_s": 60})
    async with mock.open("responses") as response:
        await soon(response.content.readuntil(b"\n\n"))
    started = time.monotonic()
    stats = await soon(mock.get("/stats?disconnects=1"))
    assert (stats["open"], stats["disconnects"]) == (0, 1)
    assert time.monotonic() - started < 1


@BOTH
async def test_a_delay_passes_before_each_delta(mock: Mock, dialect: str) -> None:
    await mock.script({"deltas": ["a", "b", "c"], "delay_s": 0.02})
    started = time.monotonic()
    assert join_text(dialect, (await mock.ask(dialect, stream=True))[1]) == "abc"
    assert time.monotonic() - started >= 0.06


@BOTH
@pytest.mark.parametrize("count", [0, 1, 3])
async def test_the_connection_is_cut_after_as_many_frames_as_told(mock: Mock, dialect: str, count: int) -> None:
    await mock.script({"text": "one two three", "disconnect_after": count})
    async with mock.open(dialect) as response:
        raw = await soon(read_until_broken(response.content))
    assert len(read_events(raw.decode())) == count
    assert (await soon(mock.get("/stats?open=0")))["disconnects"] == 0
    assert [held["status"] for held in await mock.captured()] == [200]


@BOTH
async def test_the_connection_can_be_cut_before_any_answer(mock: Mock, dialect: str) -> None:
    await mock.script({"text": "a", "disconnect_after": -1}, {"text": "a", "disconnect_after": 5}, {"text": "c"})
    for stream in (True, False):
        with pytest.raises(aiohttp.ClientConnectionError):
            await mock.ask(dialect, stream=stream)
    assert [held["status"] for held in await mock.captured()] == [None, None]
    assert (await mock.ask(dialect))[0] == 200


@BOTH
async def test_raw_frames_are_sent_as_they_are(mock: Mock, dialect: str) -> None:
    html = {"raw": ["<h1>no</h1>"], "status_code": 502, "headers": {"Content-Type": "text/html"}}
    await mock.script({"raw": ["data: {", "\n\n: \ud83d", {"hex": "ff00"}]}, html, {"raw": []})
    async with mock.open(dialect) as response:
        assert response.content_type == "text/event-stream"
        assert await response.read() == b"data: {\n\n: \xed\xa0\xbd\xff\x00"
    async with mock.open(dialect) as response:
        assert (response.status, response.content_type, await response.text()) == (502, "text/html", "<h1>no</h1>")
    async with mock.open(dialect) as response:
        assert await response.read() == b""


@BOTH
async def test_a_request_that_strict_refuses_uses_up_no_answer(mock: Mock, dialect: str) -> None:
    await mock.script({"text": "a"})
    orphan = {"responses": {"type": "function_call_output", "call_id": "x", "output": ""}}.get(
        dialect, {"role": "tool", "tool_call_id": "x", "content": ""}
    )
    status, body = await mock.ask(dialect, [orphan])
    path = "input[0]" if dialect == "responses" else "messages[0]"
    assert (status, body["error"]["param"]) == (400, path)
    assert body["error"]["message"].startswith(f"STRICT rule 1: {path}")
    assert (await mock.ask(dialect))[0] == 200


@BOTH
async def test_a_session_must_begin_with_the_items_of_its_last_good_request(mock: Mock, dialect: str) -> None:
    await mock.script({"text": "a"}, {"error": "no"}, {"text": "b"}, {"text": "c"}, {"text": "d"})
    one, two, three = ([{"role": "user", "content": text}] for text in ("one", "two", "three"))
    assert (await mock.ask(dialect, one, session="s"))[0] == 200
    assert (await mock.ask(dialect, one + two, session="s"))[0] == 500
    status, body = await mock.ask(dialect, two, session="s")
    assert status == 400
    assert "STRICT rule 9" in body["error"]["message"]
    assert (await mock.ask(dialect, one + three, session="s"))[0] == 200  # the one answered 500 does not count
    assert (await mock.ask(dialect, two, session="other"))[0] == 200
    assert (await mock.ask(dialect, three))[0] == 200  # a request that names no session has no past
    assert (await mock.ask(dialect, one + three, session="s"))[0] == 500


@BOTH
async def test_strictness_is_set_by_key_and_stays_until_it_is_set_again(mock: Mock, dialect: str) -> None:
    await mock.script(
        {"text": "a"}, {"text": "b"}, key="lax", match="lax", strict={"prefix": False, "refuse_nul": True}
    )
    assert (await mock.ask(dialect, "lax one", session="s"))[0] == 200
    assert (await mock.ask(dialect, "lax two", session="s"))[0] == 200
    await mock.script({"text": "c"}, key="lax", match="lax")
    assert (await mock.ask(dialect, "lax \0", session="s"))[0] == 400
    await mock.script({"text": "c"}, key="lax", match="lax", strict=False)
    assert (await mock.ask(dialect, [{"role": "user", "content": "lax", "odd": 1}]))[0] == 200


async def test_reasoning_is_judged_by_what_the_session_was_answered(mock: Mock) -> None:
    await mock.script({"reasoning": "Hm.", "tool_calls": [CALL]}, {"text": "b"}, {"text": "c"})
    fields = {"store": False, "include": ["reasoning.encrypted_content"]}
    user = {"role": "user", "content": "hi"}
    _, body = await mock.ask("responses", [user], session="s", **fields)
    reasoning, call = body["output"]
    output = {"type": "function_call_output", "call_id": "call_1", "output": ""}
    status, refused = await mock.ask("responses", [user, call, output], session="s", **fields)
    assert status == 400
    assert f"required 'reasoning' item: '{reasoning['id']}'" in refused["error"]["message"]
    bare = {key: value for key, value in reasoning.items() if key != "encrypted_content"}
    assert (await mock.ask("responses", [user, bare, call, output], session="s", **fields))[0] == 400
    assert (await mock.ask("responses", [user, reasoning, user, call, output], session="s", **fields))[0] == 400
    assert (await mock.ask("responses", [user, reasoning, call, output], session="s", **fields))[0] == 200


async def test_reasoning_in_a_raw_stream_is_remembered_too(mock: Mock) -> None:
    told = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "E"},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": "{}"},
    ]
    events = [f"data: {json.dumps({'type': 'response.output_item.done', 'item': item})}\n\n" for item in told]
    await mock.script({"raw": ["data: [DONE]\n\n", *events]}, {"text": "b"})
    user = {"role": "user", "content": "hi"}
    await mock.ask("responses", [user], session="s", stream=True, store=False)
    output = {"type": "function_call_output", "call_id": "c1", "output": ""}
    assert (await mock.ask("responses", [user, told[1], output], session="s", store=False))[0] == 400
    assert (await mock.ask("responses", [user, *told, output], session="s", store=False))[0] == 200


async def test_a_large_output_is_taken(mock: Mock) -> None:
    await mock.script({"recall": "needle"})
    items = [
        {"type": "function_call", **CALL},
        {"type": "function_call_output", "call_id": "call_1", "output": "x" * 10_000_000 + "needle"},
    ]
    body = io.BytesIO(json.dumps(make_body("responses", items, stream=True)).encode())
    async with mock.client.post(f"{mock.url}/v1/responses", data=body) as response:
        assert join_text("responses", read_events(await response.text())) == "needle"


async def test_shutdown_waits_for_no_parked_and_no_slow_request() -> None:
    runner = web.AppRunner(make_mock_app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as client:
        mock = Mock(f"http://127.0.0.1:{runner.addresses[0][1]}", client)
        await mock.script({"block": True}, {"text": "a b", "delay_s": 60})
        parked = asyncio.create_task(mock.ask("chat"))
        await soon(mock.get("/gate/pending?wait=1"))
        slow = asyncio.create_task(mock.ask("chat", stream=True))
        await soon(mock.get("/stats?open=2"))
        await soon(runner.cleanup())
        for task in (parked, slow):
            with pytest.raises(aiohttp.ClientError):
                await soon(task)


async def test_serve_mock_serves_until_cancelled() -> None:
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_mock("127.0.0.1", 0, on_listening=listening.set_result))
    url = await soon(listening)
    async with aiohttp.ClientSession() as client, client.get(f"{url}/v1/models") as response:
        assert response.status == 200
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(serving)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))


@pytest.fixture
def thread_url() -> Iterator[str]:
    with ThreadServer(make_mock) as server:
        yield server.url


def test_a_synchronous_test_uses_a_server_in_a_thread(thread_url: str) -> None:
    with httpx.Client(base_url=thread_url, timeout=5) as client:
        client.post("/mock/configure", json={"responses": [{"text": "hello"}]}).raise_for_status()
        body = client.post("/v1/responses", json=make_body("responses", "hi")).json()
    assert body["output"][0]["content"][0]["text"] == "hello"


def test_a_thread_server_ends_with_its_tasks_loop_and_thread_even_while_a_request_is_parked() -> None:
    cancelled = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def linger() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def make() -> web.Application:
        loops.append(asyncio.get_running_loop())
        app = make_mock_app()
        app[web.AppKey("lingering", asyncio.Task)] = asyncio.create_task(linger())
        return app

    before = set(threading.enumerate())
    with ThreadServer(make) as server, httpx.Client(base_url=server.url, timeout=5) as client:
        client.post("/mock/configure", json={"responses": [{"block": True}]})
        asking = threading.Thread(target=ask_in_vain, args=(server.url,))
        asking.start()
        assert client.get("/gate/pending?wait=1").json() == {"pending": 1}
    asking.join(5)
    assert cancelled.is_set()
    assert loops[0].is_closed()
    assert set(threading.enumerate()) <= before
    gc.collect()
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)


def ask_in_vain(url: str) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.post(f"{url}/v1/responses", json=make_body("responses", "hi"), timeout=5)


def test_a_failure_to_start_is_raised_where_the_server_was_wanted() -> None:
    async def fail() -> web.Application:
        raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        ThreadServer(fail).__enter__()


def test_a_port_in_use_is_raised_where_the_server_was_wanted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(OSError, match="address already in use"):
            ThreadServer(make_mock, port=taken.getsockname()[1]).__enter__()
    gc.collect()


def test_a_failing_cleanup_is_raised_at_the_end() -> None:
    async def make() -> web.Application:
        app = make_mock_app()

        async def fail(app: web.Application) -> None:
            raise LookupError("cleanup")

        app.on_cleanup.append(fail)
        return app

    server = ThreadServer(make)
    server.__enter__()
    with pytest.raises(LookupError, match="cleanup"):
        server.__exit__(None, None, None)
