"""
What the streams of both dialects are made of: frames, ids, JSON, made-up token counts. Pure.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

import attrs

from agent_harness.testing.mock_entry import Entry

__all__ = ["Answer", "Frame", "count_tokens", "encode_json", "mint"]


@attrs.frozen
class Frame:
    """
    One write of a stream. `is_delta` says that it carries a piece of the answer, which `delay_s` waits for.
    """

    data: bytes
    is_delta: bool = False


@attrs.frozen
class Answer:
    """
    An answer in every form: the frames of its stream, its JSON document, and its output items (Responses shape).
    """

    frames: Sequence[Frame]
    document: dict[str, Any]
    items: Sequence[dict[str, Any]]


def encode_json(value: Any) -> bytes:
    """
    Write JSON in UTF-8 as the real API does; escaped when a scripted lone surrogate leaves no other way.
    """
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def mint(prefix: str) -> str:
    """
    Make an id as long as OpenAI's.
    """
    return f"{prefix}{secrets.token_hex(24)}"


def count_tokens(entry: Entry, request_bytes: int) -> tuple[int, int, int]:
    """
    Make up tokens of input, output and reasoning: four bytes or characters each.
    """
    spoken = len(entry.text or "") + sum(len(call.name) + len(call.arguments) for call in entry.tool_calls)
    reasoning = -(-len(entry.reasoning or "") // 4)
    return request_bytes // 4 + 1, -(-spoken // 4) + reasoning, reasoning
