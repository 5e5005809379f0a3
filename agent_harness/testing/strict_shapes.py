"""
What the real API refuses by a request's shape alone: roles, content parts, unknown keys, ids and statuses. Pure.
"""

from __future__ import annotations

from typing import Any

from agent_harness.testing.strict_error import Dialect, check_keys, refuse, refuse_missing
from agent_harness.testing.strict_tools import check_tool_settings

__all__ = ["check_shape", "item_type", "list_items"]

STATUSES = ("in_progress", "completed", "incomplete")
ROLES: dict[str, tuple[str, ...]] = {
    "responses": ("user", "assistant", "system", "developer"),
    "chat": ("user", "assistant", "system", "developer", "tool"),
}
PARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "responses": {
        "assistant": ("output_text", "refusal"),
        "*": ("input_text", "input_image", "input_file"),
    },
    "chat": {
        "assistant": ("text", "refusal"),
        "user": ("text", "image_url", "input_audio", "file"),
        "*": ("text",),
    },
}
# openai.types.responses.response_input_item_param: what each type of item may hold.
ITEM_KEYS: dict[str, frozenset[str]] = {
    "message": frozenset({"type", "id", "role", "content", "status", "phase"}),
    "function_call": frozenset({"type", "id", "call_id", "name", "arguments", "status", "namespace", "caller"}),
    "function_call_output": frozenset({"type", "id", "call_id", "output", "status", "caller"}),
    "reasoning": frozenset({"type", "id", "summary", "content", "encrypted_content", "status"}),
    "item_reference": frozenset({"type", "id"}),
}
# `reasoning*` is no key of OpenAI's, but servers that imitate it ask for it back.
MESSAGE_KEYS = frozenset(
    {"role", "content", "name", "refusal", "audio", "tool_calls", "tool_call_id"}
    | {"reasoning", "reasoning_content", "reasoning_details"}
)


def list_items(dialect: Dialect, body: dict[str, Any]) -> list[Any]:
    """
    Give the request's items: the array `input` or `messages`; a string `input` is one user message.
    """
    value = body.get("input" if dialect == "responses" else "messages")
    if isinstance(value, str):
        return [{"role": "user", "content": value}] if value else []
    return value if isinstance(value, list) else []


def item_type(item: dict[str, Any]) -> str:
    """
    Give the type of a Responses item: without `type` it is a message if it has a role, else a bare reference.
    """
    kind = item.get("type")
    if kind is None:
        return "message" if "role" in item else "item_reference"
    return str(kind)


def check_shape(dialect: Dialect, body: dict[str, Any]) -> None:
    """
    Refuse what is wrong with the request whatever its items say to each other.

    :raises StrictError: naming the path of the first value that is wrong.
    """
    if not isinstance(body.get("model"), str) or not body["model"]:
        refuse("you must provide a model parameter", "model", code="missing_required_parameter")
    check_list(dialect, body)
    check_tool_settings(dialect, body)
    if dialect == "responses" and body.get("previous_response_id") is not None:
        refuse("Previous response not found: this server keeps none.", "previous_response_id", code="not_found")
    for index, item in enumerate(list_items(dialect, body)):
        at = f"{'input' if dialect == 'responses' else 'messages'}[{index}]"
        if not isinstance(item, dict):
            refuse("Invalid type: expected an object.", at, code="invalid_type")
        if dialect == "responses":
            check_item(item, at)
        else:
            check_message(item, at)


def check_list(dialect: Dialect, body: dict[str, Any]) -> None:
    """
    Refuse a request with nothing to answer: no messages, or neither input nor instructions.
    """
    key = "input" if dialect == "responses" else "messages"
    value = body.get(key)
    if value is not None and not isinstance(value, list) and not (dialect == "responses" and isinstance(value, str)):
        refuse("Invalid type: expected an array.", key, code="invalid_type")
    if value:
        return
    if dialect == "chat":
        refuse(f"Invalid '{key}': empty array. Expected an array with minimum length 1.", key, code="empty_array")
    if not body.get("instructions"):
        refuse("One of 'input' or 'instructions' must be provided.", key, code="missing_required_parameter")


def check_item(item: dict[str, Any], at: str) -> None:
    """
    Check one item of a Responses request: type, keys, id, status, and a message's role and parts.
    """
    kind = item_type(item)
    if kind not in ITEM_KEYS:
        refuse(f"Invalid value: '{kind}'. Supported values are: {', '.join(sorted(ITEM_KEYS))}.", f"{at}.type")
    check_keys(item, ITEM_KEYS[kind], at)
    if "id" in item and (not isinstance(item["id"], str) or not 0 < len(item["id"]) <= 64):
        refuse("Invalid id: expected a string with 1 to 64 characters.", f"{at}.id")
    if "status" in item and item["status"] not in STATUSES:
        refuse(f"Invalid value: {item['status']!r}. Supported values are: {', '.join(STATUSES)}.", f"{at}.status")
    if kind == "message":
        check_role("responses", item, at)
        check_content("responses", item.get("content"), item["role"], f"{at}.content")
    elif kind == "reasoning":
        for key, wanted in (("id", str), ("summary", list)):
            if not isinstance(item.get(key), wanted):
                refuse_missing(f"{at}.{key}")


def check_message(item: dict[str, Any], at: str) -> None:
    """
    Check one message of a Chat Completions request: role, keys, content, and the shape of its calls.
    """
    check_role("chat", item, at)
    check_keys(item, MESSAGE_KEYS, at)
    calls = item.get("tool_calls")
    if "tool_calls" in item:
        if item["role"] != "assistant":
            refuse("'tool_calls' is only allowed for messages with role 'assistant'.", f"{at}.tool_calls")
        if not isinstance(calls, list) or not calls:
            refuse("Invalid 'tool_calls': expected an array with minimum length 1.", f"{at}.tool_calls")
        for index, call in enumerate(calls):
            check_call(call, f"{at}.tool_calls[{index}]")
    if item.get("content") is None and item["role"] == "assistant" and (calls or item.get("refusal")):
        return
    if item.get("content") == []:
        refuse("Invalid 'content': empty array. Expected an array with minimum length 1.", f"{at}.content")
    if item["role"] != "tool":  # a tool's output has a rule of its own
        check_content("chat", item.get("content"), item["role"], f"{at}.content")


def check_call(call: Any, at: str) -> None:
    """
    Check the shape of one entry of `tool_calls`: `{"id", "type": "function", "function": {"name", "arguments"}}`.
    """
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        refuse_missing(f"{at}.function")
    if call.get("type") != "function":
        refuse(f"Invalid value: {call.get('type')!r}. Supported values are: 'function'.", f"{at}.type")
    check_keys(call, {"id", "type", "function"}, at)
    check_keys(call["function"], {"name", "arguments"}, f"{at}.function")


def check_role(dialect: Dialect, item: dict[str, Any], at: str) -> None:
    """
    Refuse a role that the dialect does not know.
    """
    role = item.get("role")
    if not isinstance(role, str) or role not in ROLES[dialect]:
        known = ", ".join(f"'{name}'" for name in ROLES[dialect])
        refuse(f"Invalid value: {role!r}. Supported values are: {known}.", f"{at}.role")


def check_content(dialect: Dialect, content: Any, role: str, at: str) -> None:
    """
    Refuse content that is neither a string nor a list of the parts which messages of this role may have.
    """
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        shown = "null" if content is None else type(content).__name__
        refuse(f"Invalid value for 'content': expected a string or an array, got {shown}.", at, code="invalid_type")
    known = PARTS[dialect].get(role, PARTS[dialect]["*"])
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in known:
            refuse(f"Invalid value: {kind!r}. Supported values are: {', '.join(known)}.", f"{at}[{index}].type")
        if kind.endswith("text") and not isinstance(part.get("text"), str):
            refuse_missing(f"{at}[{index}].text")
