"""
A scripted answer in the Chat Completions dialect: its stream and its document. Pure.

The chunks follow OpenAI's: `data:` lines only; a first chunk with the role, deltas, one with `finish_reason`, one with
`usage` and no choices when `stream_options.include_usage` asks for it (`usage` is null in the others then), and
`data: [DONE]`. `reasoning_content` is no field of OpenAI's but of the servers that imitate it (DeepSeek, vLLM).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from agent_harness.testing.mock_entry import UNSET, Entry, split_text
from agent_harness.testing.mock_streams import Answer, Frame, count_tokens, encode_json, mint

__all__ = ["build_chat"]


def build_chat(entry: Entry, body: dict[str, Any], request_bytes: int) -> Answer:
    """
    Build a Chat Completions answer; calls without an id get one, the same in stream and document.
    """
    calls = [
        {
            "id": mint("call_") if call.call_id is None else call.call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in entry.tool_calls
    ]
    finish = entry.finish or ("tool_calls" if calls else "stop")
    usage = count_usage(entry, request_bytes) if entry.usage is UNSET else entry.usage
    envelope = {
        "id": mint("chatcmpl-"),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body.get("model"),
        "service_tier": "default",
        "system_fingerprint": None,
    }
    message: dict[str, Any] = {"role": "assistant", "content": entry.text, "refusal": None, "annotations": []}
    if entry.reasoning is not None:
        message["reasoning_content"] = entry.reasoning
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    document = {**envelope, "choices": [choice], "usage": usage}
    return Answer(list(list_frames(entry, body, envelope, calls, finish, usage)), document, [])


def list_frames(
    entry: Entry, body: dict[str, Any], envelope: dict[str, Any], calls: list[dict[str, Any]], finish: str, usage: Any
) -> Iterator[Frame]:
    """
    Give the chunks of the stream and its end marker.
    """
    asked = bool((body.get("stream_options") or {}).get("include_usage"))
    envelope = {**envelope, "object": "chat.completion.chunk"}
    if asked:
        envelope["usage"] = None

    def write(delta: dict[str, Any], finish: str | None = None, *, is_delta: bool = True) -> Frame:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return Frame(b"data: " + encode_json({**envelope, "choices": [choice]}) + b"\n\n", is_delta)

    content = None if entry.text is None and calls else ""
    yield write({"role": "assistant", "content": content, "refusal": None}, is_delta=False)
    for piece in split_text(entry.reasoning or "", ()):
        yield write({"reasoning_content": piece})
    for piece in split_text(entry.text or "", entry.deltas):
        yield write({"content": piece})
    for index, (call, scripted) in enumerate(zip(calls, entry.tool_calls, strict=True)):
        head = {"name": scripted.name, "arguments": ""}
        yield write({"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": head}]})
        for piece in scripted.deltas:
            yield write({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield write({}, finish, is_delta=False)
    if asked:
        yield Frame(b"data: " + encode_json({**envelope, "choices": [], "usage": usage}) + b"\n\n")
    yield Frame(b"data: [DONE]\n\n")


def count_usage(entry: Entry, request_bytes: int) -> dict[str, Any]:
    """
    Give the usage object.
    """
    asked, answered, reasoning = count_tokens(entry, request_bytes)
    return {
        "prompt_tokens": asked,
        "completion_tokens": answered,
        "total_tokens": asked + answered,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }
