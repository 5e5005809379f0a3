"""
Good streams of a model server in both dialects, as the mock model server builds them. The same in every run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from agent_harness.testing.mock_entry import read_entry
from agent_harness.testing.mock_llm import build_answer
from agent_harness.testing.strict import Dialect

__all__ = ["GOOD", "Frames", "good_stream", "good_text"]

Frames = list[bytes]

_CALL = {"call_id": "call_a", "name": "look", "arguments": '{"widget_id": 42, "why": "caf\u00e9 \U0001f642"}'}
_OTHER = {"call_id": "call_b", "name": "find", "arguments": "{}"}

GOOD: Mapping[str, dict[str, Any]] = {
    "text": {"text": "Two words, caf\u00e9 \U0001f642 and \u2028 more.", "deltas": []},
    "call": {"tool_calls": [_CALL]},
    "text and call": {"text": "I look it up.", "tool_calls": [_CALL]},
    "reasoning and calls": {"reasoning": "First think, then look.", "tool_calls": [_CALL, _OTHER]},
    "reasoning and text": {"reasoning": "Think of it.", "text": "So it is."},
    "reasoning of a local model": {"reasoning": "Hm.", "tool_calls": [_OTHER]},
    "refusal": {"text": "I will not do that."},
    "parallel calls": {"tool_calls": [_CALL, _OTHER, {**_CALL, "call_id": "call_c"}]},
    "unknown tool": {"tool_calls": [{**_CALL, "name": "no_such_tool"}, {**_OTHER, "arguments": "[1]"}]},
    "cut": {"text": "Half a", "tool_calls": [_CALL], "finish": "length"},
}
"""Answers in the mock server's words."""

NO_CONTENT = "reasoning of a local model"
"""The kind whose reasoning comes without encrypted content in the Responses dialect."""

_REQUEST = {"model": "m", "include": ["reasoning.encrypted_content"], "stream_options": {"include_usage": True}}


def good_stream(dialect: Dialect, kind: str) -> tuple[Frames, list[dict[str, Any]]]:
    """
    The frames of a good stream, and the items it holds (Responses shape).
    """
    request = {**_REQUEST, "include": []} if kind == NO_CONTENT else _REQUEST
    answer = build_answer(dialect, read_entry(GOOD[kind], "entry"), request, 100)
    known: dict[bytes, bytes] = {}
    frames = [_steady(frame.data, known) for frame in answer.frames]
    if kind == "refusal":
        frames = [_refuse(frame, dialect) for frame in frames]
    return frames, list(orjson.loads(_steady(orjson.dumps(list(answer.items)), known)))


def _steady(data: bytes, known: dict[bytes, bytes]) -> bytes:
    """
    *data* with the same ids in every run.
    """

    def number(found: re.Match[bytes]) -> bytes:
        return known.setdefault(found[0], b"%d" % (10 ** (len(found[0]) - 1) + len(known)))

    return re.sub(rb"(?<=gAAAAA)[\w-]{64}|[0-9a-f]{48}|(?<=_at\":)\d+|(?<=created\":)\d+", number, data)


def _refuse(frame: bytes, dialect: Dialect) -> bytes:
    if dialect == "chat":
        return frame.replace(b'"content":', b'"refusal":', 1) if b'"content":"' in frame else frame
    frame = frame.replace(b"response.output_text.", b"response.refusal.").replace(b'"output_text"', b'"refusal"')
    return frame.replace(b'"text":"', b'"refusal":"') if b'"text":"' in frame else frame


def good_text(dialect: Dialect, text: str) -> Frames:
    """
    The frames of an answer that says *text*.
    """
    return [
        frame.data for frame in build_answer(dialect, read_entry({"text": text}, "entry"), {"model": "m"}, 10).frames
    ]
