"""
What a function returned, as the output of a call.
"""

import inspect
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import attrs

from agent_harness.protocol.commands import OutputData
from agent_harness.protocol.decode import read
from agent_harness.protocol.encode import to_wire
from agent_harness.protocol.items import InputFile, InputImage, InputText
from agent_harness.protocol.tools import clean_text

__all__ = ["Done", "Output", "call_here", "write_output"]

Output = str | tuple[InputText | InputImage | InputFile, ...]

_PARTS = (InputText, InputImage, InputFile)
_PART_TYPES = ("input_text", "input_image", "input_file")


@attrs.frozen(eq=False)
class Done:
    """
    What a call in a thread came to. Errors are values there: some cannot pass through a future.
    """

    value: Any = None
    output: Output | None = None
    error: BaseException | None = None


def call_here(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Done:
    try:
        value = function(*args, **kwargs)
        return Done(value) if inspect.isawaitable(value) else Done(output=write_output(value))
    except (Exception, SystemExit) as error:
        return Done(error=error)


def write_output(value: Any) -> Output:
    """
    What a function returned, as an output: text as it is, None as nothing, parts as parts, anything else as JSON.
    """
    if value is None:
        return ""
    if isinstance(value, str) and not isinstance(value, Enum):
        return clean_text(value)
    if isinstance(value, _PARTS):
        value = [value]
    if isinstance(value, list | tuple) and value and all(map(_is_part, value)):
        parts = [part if isinstance(part, Mapping) else to_wire(part) for part in value]
        read_back = read({"call_id": "", "output": parts}, OutputData).output
        assert isinstance(read_back, tuple)
        return read_back
    import pydantic_core

    return clean_text(pydantic_core.to_json(value, fallback=_fall_back, inf_nan_mode="strings").decode())


def _is_part(value: Any) -> bool:
    return isinstance(value, _PARTS) or (isinstance(value, Mapping) and value.get("type") in _PART_TYPES)


def _fall_back(value: Any) -> Any:
    if attrs.has(type(value)):
        return {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")
