"""
The OpenAPI document takes exactly the bodies that the server takes, as far as a schema can say it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent_harness.errors import InvalidRequest
from agent_harness.protocol.decode import parse_json
from agent_harness.protocol.requests import read_create, read_events, read_fork, read_update
from tests.protocol.test_requests import BAD_EVENTS
from tests.server.document import OPERATIONS, body_of, content_of, faults, fits, validator
from tests.server.test_events import BAD_TOOLS
from tests.server.test_refusals import AGENTS, MESSAGES
from tests.support import TOOL, user

READERS: dict[str, Callable[[Any], Any]] = {
    "create_session": lambda body: read_create(body, 0),
    "update_session": read_update,
    "fork_session": read_fork,
    "post_events": read_events,
}

UNSAYABLE = ("Two tools are named", "A batch answers each call once", "Each call has its own call_id",
             "No call with this call_id", "This call has an output", "Arguments are the text")  # fmt: skip
"""Refusals of what lies between two values, or inside a text; no schema can say them."""


def is_taken(name: str, body: Any) -> bool:
    """
    Whether the server takes *body*, as far as a schema can know.
    """
    try:
        READERS[name](parse_json(json.dumps(body).encode()))
    except InvalidRequest as error:
        return error.message.startswith(UNSAYABLE)
    return True


def has_whole_float(value: Any) -> bool:
    """
    Whether 1.0 is in it: to a schema it is an integer, to the server it is none.
    """
    if isinstance(value, dict):
        value = list(value.values())
    return any(map(has_whole_float, value)) if isinstance(value, list) else isinstance(value, float)


BAD = [
    *(("post_events", body) for body, _, _ in (*MESSAGES, *BAD_EVENTS)),
    *(("post_events", user("x", tools=[tool])) for tool, _, _ in BAD_TOOLS),
    *((name, {"agent": {field: value}}) for field, value in AGENTS for name in ("create_session", "update_session")),
]


def test_what_the_tests_of_refusals_send_is_invalid_under_it() -> None:
    said = [(name, body) for name, body in BAD if not has_whole_float(body) and not is_taken(name, body)]

    assert len(said) > 150
    # To Python's `$`, and to no other, a line's end may stand behind a name.
    assert [body for name, body in said if fits(body, body_of(name)) and "a\\n" not in str(body)] == []


GOOD: list[tuple[str, Any]] = [
    ("create_session", {
        "agent": {
            "name": "a", "model": "m", "provider": "p", "instructions": "i", "parallel_tool_calls": True, "top_p": 0.5,
            "tools": [
                {"type": "function", "name": "a", "description": "d", "parameters": {"x": 1}, "strict": True,
                 "timeout_s": 1},
                {"type": "function", "timeout_s": 2,
                 "function": {"name": "b", "description": "d", "parameters": {}, "strict": False}},
            ],
            "tool_choice": {"type": "function", "name": "a"}, "temperature": 1, "max_output_tokens": 1,
            "reasoning": {"effort": "low"}, "text": {}, "max_model_calls": 1, "tool_timeout_s": 1,
        },
        "metadata": {"k": "v"},
        "items": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}], "origin": "client"},
            {"type": "message", "role": "assistant", "content": [
                {"type": "output_text", "text": "x", "annotations": [{}]}, {"type": "refusal", "refusal": "x"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]},
            {"type": "function_call", "call_id": "c", "name": "a", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "x", "is_error": False, "origin": "harness"},
        ],
    }),
    ("create_session", {"agent_id": "x"}),
    ("update_session", {"agent": {"model": "m", "tool_choice": "none"}, "metadata": {"k": None}}),
    ("fork_session", {"up_to_item_id": "x"}),
    ("post_events", {
        "type": "message", "delivery": "queue", "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "a"}},
        "data": {"role": "user", "content": [
            {"type": "input_text", "text": "x"},
            {"type": "input_image", "image_url": "x", "file_id": "y", "detail": "z"},
            {"type": "input_file", "file_data": "x", "file_id": "x", "file_url": "x", "filename": "x"}]},
    }),
    ("post_events", user("x")),
    ("post_events", {"type": "function_call_output", "data": {"call_id": "c", "output": None, "is_error": True}}),
    ("post_events", {"type": "interrupt", "data": {"response_id": "x", "clear_queue": True}}),
    ("post_events", {"events": [{"type": "function_call_output", "data": {"call_id": "c", "output": "ok"}}]}),
]  # fmt: skip

POOL: list[Any] = [
    None, True, 0, -1, 1, 1.5, 10**30, "", "x", "a b", "c" * 65, "c" * 600, [], ["x"], [None], {}, {"colour": 1},
    {"type": "x"}, {str(number): "" for number in range(17)}, {"k" * 65: "v"}, {"k": "v" * 513},
    [{"type": "function", "name": "a"}] * 129,
]  # fmt: skip


def changed(value: Any) -> Iterator[Any]:
    """
    *value* with one thing in it exchanged, taken out or put in, in every way there is here.
    """
    yield from POOL
    if isinstance(value, dict):
        yield {**value, "colour": 1}
        for key in value:
            yield {name: held for name, held in value.items() if name != key}
            for held in changed(value[key]):
                yield {**value, key: held}
    elif isinstance(value, list):
        yield value + value
        for index, element in enumerate(value):
            for held in changed(element):
                yield [*value[:index], held, *value[index + 1 :]]


@pytest.mark.parametrize("name, body", GOOD, ids=[name for name, _ in GOOD])
def test_a_body_is_valid_under_it_exactly_if_the_server_takes_it(name: str, body: Any) -> None:
    schema = body_of(name)
    READERS[name](body)
    assert faults(body, schema) == []

    check = validator(json.dumps(schema)).is_valid
    told = [(taken, one) for one in changed(body) if (taken := is_taken(name, one)) != check(one)]
    assert told == []


def test_its_examples_are_valid() -> None:
    shown = 0
    for _, _, operation in OPERATIONS:
        contents = [content_of(operation, status) for status in operation["responses"]]
        contents.append(operation.get("requestBody", {}).get("content", {}))
        for content in contents:
            media = content.get("application/json", {})
            for example in media.get("examples", {}).values():
                shown += 1
                assert faults(example["value"], media["schema"]) == [], example
    assert shown > 20
