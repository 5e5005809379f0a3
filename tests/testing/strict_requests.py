"""
Requests in both dialects to break, and the check that they go through, for the tests beside it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from agent_harness.testing.strict import (
    Dialect,
    SessionMemory,
    StrictError,
    StrictOptions,
    check_request,
    parse_body,
)

Body = dict[str, Any]
Change = Callable[[Body], object]

USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "red"}
ASSISTANT = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is red."}]}
FLAT_TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}

CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
CHAT_CALLS = {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}
CHAT_OUTPUT = {"role": "tool", "tool_call_id": "c1", "content": "red"}
NESTED_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def make_request(dialect: Dialect) -> Body:
    if dialect == "responses":
        items = [USER, CALL, OUTPUT, ASSISTANT, USER]
        return copy.deepcopy({"model": "m", "store": False, "instructions": "be", "input": items, "tools": [FLAT_TOOL]})
    messages = [
        {"role": "system", "content": "be"},
        {"role": "user", "content": "hi"},
        CHAT_CALLS,
        CHAT_OUTPUT,
        {"role": "assistant", "content": "It is red."},
        {"role": "user", "content": [{"type": "text", "text": "and?"}]},
    ]
    return copy.deepcopy({"model": "m", "messages": messages, "tools": [NESTED_TOOL]})


def check(
    dialect: Dialect, body: Body, memory: SessionMemory | None = None, options: StrictOptions | None = None
) -> None:
    raw = json.dumps(body).encode()
    memory = memory or SessionMemory()
    memory.last = check_request(dialect, parse_body(raw), raw, options or StrictOptions(), memory) or memory.last


def refuse(
    dialect: Dialect, body: Body, memory: SessionMemory | None = None, options: StrictOptions | None = None
) -> StrictError:
    with pytest.raises(StrictError) as caught:
        check(dialect, body, memory, options)
    return caught.value


def set_at(*path: Any) -> Change:
    *way, last, value = path

    def change(body: Body) -> None:
        held: Any = body
        for key in way:
            held = held[key]
        held[last] = value

    return change


def drop(key: str, index: int) -> Change:
    return lambda body: body[key].pop(index)


def add(key: str, index: int, *items: Any) -> Change:
    def change(body: Body) -> None:
        body[key][index:index] = copy.deepcopy(list(items))

    return change
