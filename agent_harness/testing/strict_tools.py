"""
What the real API refuses in `tools`, `tool_choice` and the options that hang on them. Pure.

Known from OpenAI's answers: `Missing required parameter: 'tools[0].name'` for nested tools in a Responses request, and
`'parallel_tool_calls' is only allowed when 'tools' are specified` in a Chat Completions request.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from agent_harness.testing.strict_error import NAME, Dialect, check_keys, refuse, refuse_missing

__all__ = ["check_tool_settings"]

FUNCTION_KEYS = frozenset({"name", "description", "parameters", "strict"})
FLAT_TOOL_KEYS = FUNCTION_KEYS | {"type", "allowed_callers", "defer_loading", "output_schema"}


def check_tool_settings(dialect: Dialect, body: dict[str, Any]) -> None:
    """
    Refuse wrong tools, a choice that they cannot satisfy, and options that need them where there are none.

    :raises StrictError: naming the path.
    """
    check_tool_choice(dialect, body, check_tools(dialect, body))
    if dialect == "chat":
        check_chat_options(body)


def check_tools(dialect: Dialect, body: dict[str, Any]) -> set[str]:
    """
    Refuse tools in the other dialect's shape, without or with a wrong name, or with a name given twice.

    :returns: the names of the functions on offer.
    """
    tools = body.get("tools")
    if tools is None:
        return set()
    if not isinstance(tools, list):
        refuse("Invalid type: expected an array.", "tools", code="invalid_type")
    if dialect == "chat" and not tools:
        refuse("Invalid 'tools': empty array. Expected an array with minimum length 1.", "tools", code="empty_array")
    if len(tools) > 128:
        refuse("Invalid 'tools': array too long. Expected an array with maximum length 128.", "tools")
    names: set[str] = set()
    for index, tool in enumerate(tools):
        name = read_tool_name(dialect, tool, f"tools[{index}]")
        if name is None:
            continue
        if name in names:
            refuse(f"Tool names must be unique: '{name}' is offered twice.", f"tools[{index}]")
        names.add(name)
    return names


def read_tool_name(dialect: Dialect, tool: Any, at: str) -> str | None:
    """
    Check one tool and give its name; None for a tool that the provider itself would run (Responses only).
    """
    if not isinstance(tool, dict):
        refuse("Invalid type: expected an object.", at, code="invalid_type")
    if "type" not in tool:
        refuse_missing(f"{at}.type")
    if tool["type"] != "function":
        if dialect == "chat":
            refuse(f"Invalid value: '{tool['type']}'. Supported values are: 'function'.", f"{at}.type")
        return None
    function, keys = tool, FLAT_TOOL_KEYS
    if dialect == "chat":
        if not isinstance(tool.get("function"), dict):
            refuse_missing(f"{at}.function")
        check_keys(tool, {"type", "function"}, at)
        at, function, keys = f"{at}.function", tool["function"], FUNCTION_KEYS
    if "name" not in function:
        refuse_missing(f"{at}.name")
    check_keys(function, keys, at)
    name = function["name"]
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        refuse(
            f"Invalid name {name!r}: expected a string that matches '^[A-Za-z0-9_-]{{1,64}}$'.", f"{at}.name", rule=3
        )
    check_schema(function, at)
    return name


def check_schema(function: dict[str, Any], at: str) -> None:
    """
    Refuse parameters that are no object, and under `strict: true` those that leave a property optional.
    """
    schema = function.get("parameters")
    if schema is None:
        return
    if not isinstance(schema, dict):
        refuse("Invalid type: expected an object.", f"{at}.parameters", code="invalid_type")
    if function.get("strict") is not True:
        return
    properties, required = schema.get("properties") or {}, schema.get("required") or []
    if schema.get("additionalProperties") is not False or any(name not in required for name in properties):
        refuse(
            "Invalid schema: with strict, 'additionalProperties' is required to be false and every property required.",
            f"{at}.parameters",
            code="invalid_function_parameters",
        )


def check_tool_choice(dialect: Dialect, body: dict[str, Any], names: Collection[str]) -> None:
    """
    Refuse a choice that no offered tool can satisfy.
    """
    choice = body.get("tool_choice")
    if choice is None:
        return
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            refuse(f"Invalid value: '{choice}'. Supported values are: 'none', 'auto', 'required'.", "tool_choice")
        if choice == "required" and not body.get("tools"):
            refuse("Tool choice 'required' must be specified with 'tools' parameter.", "tool_choice")
        return
    if not isinstance(choice, dict):
        refuse("Invalid type: expected a string or an object.", "tool_choice", code="invalid_type")
    if choice.get("type") != "function":
        return
    holder = choice.get("function") if dialect == "chat" else choice
    name = holder.get("name") if isinstance(holder, dict) else None
    if name is None:
        refuse_missing("tool_choice.function" if dialect == "chat" else "tool_choice.name")
    if not isinstance(name, str) or name not in names:
        refuse(f"Tool choice '{name}' not found in 'tools' parameter.", "tool_choice")


def check_chat_options(body: dict[str, Any]) -> None:
    """
    Refuse options that Chat Completions allows only beside others.
    """
    if not body.get("tools"):
        for key in ("tool_choice", "parallel_tool_calls"):
            if body.get(key) is not None:
                refuse(f"Invalid value for '{key}': '{key}' is only allowed when 'tools' are specified.", key)
    if body.get("stream_options") is not None and body.get("stream") is not True:
        refuse("The 'stream_options' parameter is only allowed when 'stream' is enabled.", "stream_options")
