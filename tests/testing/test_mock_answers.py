"""
What scripted answers look like on the wire in both dialects, and to the openai SDK.
"""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.testing.mock_client import CALL, TOOL, Mock, join_text

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
