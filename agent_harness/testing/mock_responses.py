"""
A scripted answer in the Responses dialect: its stream and its document. Pure.

The events, their order and their fields follow recorded streams of OpenAI's API and the types in
`openai.types.responses`: `event:` and `data:` lines, `sequence_number` from 0, no `[DONE]` at the end.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from typing import Any

from agent_harness.testing.mock_entry import UNSET, Entry, ToolCall, split_text
from agent_harness.testing.mock_streams import Answer, Frame, count_tokens, encode_json, mint

__all__ = ["ResponsesStream", "read_raw_items"]

INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


def read_raw_items(writes: Sequence[bytes]) -> list[dict[str, Any]]:
    """
    Give the output items that a raw Responses stream completes, as far as it can be read.
    """
    items: list[dict[str, Any]] = []
    for line in b"".join(writes).splitlines():
        if not line.startswith(b"data:"):
            continue
        try:
            event = json.loads(line[5:])
        except ValueError:
            continue
        is_done = isinstance(event, dict) and event.get("type") == "response.output_item.done"
        if is_done and isinstance(event.get("item"), dict):
            items.append(event["item"])
    return items


class ResponsesStream:
    """
    Builds the stream of one Responses answer, numbering its events.
    """

    def __init__(self, entry: Entry, body: dict[str, Any], request_bytes: int) -> None:
        self.entry = entry
        self.body = body
        self.request_bytes = request_bytes
        self.frames: list[Frame] = []
        self.items: list[dict[str, Any]] = []
        self.cut = entry.finish in INCOMPLETE

    def build(self) -> Answer:
        """
        Build everything: envelope, reasoning, text, calls, and the closing event with the full output and usage.
        """
        resource = self.describe()
        self.emit("response.created", response=resource)
        self.emit("response.in_progress", response=resource)
        if self.entry.reasoning is not None:
            self.add_reasoning(self.entry.reasoning)
        if self.entry.text is not None:
            self.add_text(self.entry.text, cut=self.cut and not self.entry.tool_calls)
        for call in self.entry.tool_calls:
            self.add_call(call, cut=self.cut and call is self.entry.tool_calls[-1])
        status = "incomplete" if self.cut else "completed"
        details = {"reason": INCOMPLETE[self.entry.finish]} if self.entry.finish in INCOMPLETE else None
        done = {**resource, "status": status, "incomplete_details": details, "output": self.items}
        done["completed_at"] = None if self.cut else int(time.time())
        done["usage"] = self.count() if self.entry.usage is UNSET else self.entry.usage
        self.emit(f"response.{status}", response=done)
        return Answer(self.frames, done, self.items)

    def emit(self, kind: str, **fields: Any) -> None:
        """
        Add one event with the next number.
        """
        event = {"type": kind, "sequence_number": len(self.frames), **fields}
        data = b"event: " + kind.encode() + b"\ndata: " + encode_json(event) + b"\n\n"
        self.frames.append(Frame(data, is_delta=kind.endswith(".delta")))

    def describe(self) -> dict[str, Any]:
        """
        Give the response as it begins: what was asked, nothing answered.
        """
        body = self.body
        return {
            "id": mint("resp_"),
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "background": False,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "max_tool_calls": None,
            "model": body.get("model"),
            "output": [],
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "previous_response_id": None,
            "prompt_cache_key": body.get("prompt_cache_key"),
            "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
            "safety_identifier": None,
            "service_tier": "default",
            "store": body.get("store", True),
            "temperature": body.get("temperature", 1.0),
            "text": body.get("text") or {"format": {"type": "text"}},
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": body.get("tools", []),
            "top_p": body.get("top_p", 1.0),
            "truncation": "disabled",
            "usage": None,
            "user": None,
            "metadata": body.get("metadata") or {},
        }

    def add_reasoning(self, summary: str) -> None:
        """
        Add a reasoning item; an empty summary has no parts. Encrypted content comes when `include` asked for it.
        """
        index, item_id = len(self.items), mint("rs_")
        item: dict[str, Any] = {"id": item_id, "type": "reasoning", "summary": []}
        if "reasoning.encrypted_content" in (self.body.get("include") or ()):
            item["encrypted_content"] = f"gAAAAA{secrets.token_urlsafe(48)}"
        self.emit("response.output_item.added", output_index=index, item={**item, "summary": []})
        if summary:
            place = {"item_id": item_id, "output_index": index, "summary_index": 0}
            part = {"type": "summary_text", "text": summary}
            self.emit("response.reasoning_summary_part.added", **place, part={**part, "text": ""})
            for piece in split_text(summary, ()):
                self.emit("response.reasoning_summary_text.delta", **place, delta=piece, obfuscation="x")
            self.emit("response.reasoning_summary_text.done", **place, text=summary)
            self.emit("response.reasoning_summary_part.done", **place, part=part)
            item["summary"] = [part]
        self.emit("response.output_item.done", output_index=index, item=item)
        self.items.append(item)

    def add_text(self, text: str, *, cut: bool) -> None:
        """
        Add a message with one text part; `cut` says that the answer broke off in it.
        """
        index, item_id = len(self.items), mint("msg_")
        item = {"id": item_id, "type": "message", "status": "in_progress", "content": [], "role": "assistant"}
        place = {"item_id": item_id, "output_index": index, "content_index": 0}
        part = {"type": "output_text", "annotations": [], "logprobs": [], "text": text}
        self.emit("response.output_item.added", output_index=index, item=item)
        self.emit("response.content_part.added", **place, part={**part, "text": ""})
        for piece in split_text(text, self.entry.deltas):
            fields = {**place, "delta": piece, "logprobs": [], "obfuscation": "x"}
            self.emit("response.output_text.delta", **fields)
        self.emit("response.output_text.done", **place, text=text, logprobs=[])
        self.emit("response.content_part.done", **place, part=part)
        status = "incomplete" if cut else "completed"
        done = {**item, "status": status, "content": [part]}
        self.emit("response.output_item.done", output_index=index, item=done)
        self.items.append(done)

    def add_call(self, call: ToolCall, *, cut: bool) -> None:
        """
        Add a function call; `cut` says that the answer broke off in it.
        """
        index, item_id = len(self.items), mint("fc_")
        item = {"id": item_id, "type": "function_call", "status": "in_progress", "arguments": ""}
        item |= {"call_id": mint("call_") if call.call_id is None else call.call_id, "name": call.name}
        place = {"item_id": item_id, "output_index": index}
        self.emit("response.output_item.added", output_index=index, item=item)
        for piece in call.deltas:
            fields = {**place, "delta": piece, "obfuscation": "x"}
            self.emit("response.function_call_arguments.delta", **fields)
        self.emit("response.function_call_arguments.done", **place, arguments=call.arguments)
        status = "incomplete" if cut else "completed"
        done = {**item, "status": status, "arguments": call.arguments}
        self.emit("response.output_item.done", output_index=index, item=done)
        self.items.append(done)

    def count(self) -> dict[str, Any]:
        """
        Give the usage object.
        """
        asked, answered, reasoning = count_tokens(self.entry, self.request_bytes)
        return {
            "input_tokens": asked,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": answered,
            "output_tokens_details": {"reasoning_tokens": reasoning},
            "total_tokens": asked + answered,
        }
