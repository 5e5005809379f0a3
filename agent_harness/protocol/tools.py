"""
Tools the client offers, and what may be done with the calls a model makes of them.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any, Literal

import attrs
import orjson
from attrs.converters import optional

__all__ = [
    "CALL_ID_MAX",
    "NAME_PATTERN",
    "NO_ARGUMENTS",
    "TOOLS_MAX",
    "NamedChoice",
    "Tool",
    "ToolChoice",
    "clean_call_id",
    "clean_json",
    "clean_name",
    "clean_optional",
    "clean_text",
    "is_writable",
    "merge_tools",
    "read_arguments",
]

NAME_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
"""What the OpenAI API takes as a function's name."""

CALL_ID_MAX = 64
"""Longest call_id the Responses API takes back, in characters."""

TOOLS_MAX = 128
"""Most tools that can be offered at once."""

NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}
"""The JSON schema of a tool without parameters."""

_NO_ARGUMENTS_STRICT: Mapping[str, Any] = {**NO_ARGUMENTS, "additionalProperties": False, "required": []}


def clean_text(text: str) -> str:
    """
    *text* as it is kept: U+0000 and lone surrogates, which no provider takes, become U+FFFD.
    """
    if text.isascii():
        return text.replace("\0", "\ufffd") if "\0" in text else text
    text = text.replace("\0", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def clean_optional(text: str | None) -> str | None:
    """
    `clean_text` of what may be absent.
    """
    return clean_text(text) if isinstance(text, str) else text


def clean_json(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """
    Free-form JSON as it is kept: every string in it, names too, becomes what `clean_text` makes of it, and a number
    that is none becomes null. *value* itself where nothing has to change.
    """
    try:
        # The escape of a NUL, or a text about one: looking for it costs a fraction of walking.
        if b"\\u0000" not in orjson.dumps(value):
            return value
    except TypeError:
        pass
    cleaned: Mapping[str, Any] = _clean_held(value)
    return cleaned


def _clean_held(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {clean_text(str(name)): _clean_held(held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [_clean_held(held) for held in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@attrs.frozen(kw_only=True)
class Tool:
    """
    A function the client can run. ``parameters`` is a JSON schema, None for a function without arguments;
    ``timeout_s`` is how long a call may stay open, in seconds, None for what the agent says.
    """

    name: str
    description: str | None = attrs.field(default=None, converter=clean_optional)
    parameters: Mapping[str, Any] | None = attrs.field(default=None, converter=optional(clean_json))
    strict: bool = False
    timeout_s: float | None = None
    type: Literal["function"] = "function"

    @property
    def schema(self) -> Mapping[str, Any]:
        """
        The JSON schema that a model is sent: without parameters that of no arguments, in the closed form that providers
        want where ``strict`` is asked for.
        """
        if self.parameters is not None:
            return self.parameters
        return _NO_ARGUMENTS_STRICT if self.strict else NO_ARGUMENTS


@attrs.frozen
class NamedChoice:
    """
    A tool_choice that asks for one function by name.
    """

    name: str
    type: Literal["function"] = "function"


ToolChoice = Literal["auto", "none", "required"] | NamedChoice


def merge_tools(agent: tuple[Tool, ...], message: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """
    What a turn offers: the agent's tools and the message's, the message's winning on a name.
    """
    if not (agent and message):
        return agent or message
    taken = {tool.name for tool in message}
    return (*(tool for tool in agent if tool.name not in taken), *message)


def is_writable(value: Any) -> bool:
    """
    Whether free-form JSON can be written again wherever it will stand: orjson writes 254 levels, and what stands around
    *value* in events, snapshots and requests takes some of them.
    """
    for _ in range(16):
        value = [value]
    try:
        orjson.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def clean_name(name: str) -> str:
    """
    *name* in the form a request may carry: other characters become ``_``, at most 64 are kept.

    A name that had to be changed is no tool's name; the call is kept under the cleaned one and answered with an error.
    """
    if NAME_PATTERN.match(name):
        return name
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "unnamed"


def clean_call_id(given: str, taken: Mapping[str, object], salt: str) -> str:
    """
    The call_id under which a call is known from now on.

    *given* itself where it has 1 to 64 characters, all of which can be kept, and is not in *taken*; else one made from
    it by a hash, so that two long ids with one beginning stay apart. *salt* (the item's id) makes it unguessable.
    """
    if 0 < len(given) <= CALL_ID_MAX and clean_text(given) == given and given not in taken:
        return given
    digest = hashlib.sha256(f"{salt}\0{given}".encode(errors="surrogatepass")).hexdigest()
    return f"call_{digest[:24]}"


def read_arguments(raw: str) -> tuple[str, str | None]:
    """
    The arguments of a call as they are kept, and what is wrong with them (None: nothing).

    The text of a JSON object is kept to the letter. Nothing at all and ``null`` mean no arguments. A JSON string that
    holds an object is unwrapped; raw control characters and lone surrogates inside strings are escaped or replaced.
    Anything else is wrapped as ``{"invalid_arguments": raw}``, which a provider takes back and the model can recognise.
    """
    if _is_object(raw):
        return raw, None
    if raw.strip() in ("", "null"):
        return "{}", None
    try:
        value = json.loads(raw, strict=False, parse_constant=_refuse_constant)
        if isinstance(value, str):
            value = json.loads(value, strict=False, parse_constant=_refuse_constant)
        if isinstance(value, dict):
            return clean_text(json.dumps(value, ensure_ascii=False, allow_nan=False)), None
        problem = f"they are {_kind(value)}, not a JSON object"
    except (ValueError, RecursionError) as error:
        problem = f"they are not valid JSON ({error})"
    return orjson.dumps({"invalid_arguments": clean_text(raw)}).decode(), problem


def _is_object(raw: str) -> bool:
    try:
        return isinstance(orjson.loads(raw), dict) and "\0" not in raw
    except ValueError:
        return False


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _kind(value: object) -> str:
    if value is None:
        return "null"
    return {list: "an array", bool: "a boolean", str: "a string"}.get(type(value), "a number")
