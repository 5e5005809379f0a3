"""
JSON to values, strictly: no coercion, unknown keys refused with their path, null for an optional key the same as its
absence. What is wrong is told as `InvalidRequest` with ``param`` set to the first bad path.

This file and `agent_harness.protocol.encode` are the only ones that know cattrs.
"""

import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import attrs
import cattrs
import orjson
from cattrs.errors import (
    AttributeValidationNote,
    ClassValidationError,
    ForbiddenExtraKeysError,
    IterableValidationError,
    IterableValidationNote,
)
from cattrs.gen import make_dict_structure_fn

from agent_harness.errors import InvalidRequest, forget_frames
from agent_harness.protocol.items import InputFile, InputImage, InputText, OutputText, Refusal
from agent_harness.protocol.tools import NAME_PATTERN, TOOLS_MAX, NamedChoice, Tool, ToolChoice, is_writable

__all__ = ["InnerTool", "NestedTool", "parse_json", "read"]

T = TypeVar("T")

_PART_TYPES: dict[str, type] = {
    "input_text": InputText,
    "input_image": InputImage,
    "input_file": InputFile,
    "output_text": OutputText,
    "refusal": Refusal,
}


def parse_json(body: bytes) -> Any:
    """
    *body* as strict JSON: UTF-8, no NaN, no lone surrogates, at most 1,024 levels.

    Raises:
        InvalidRequest: it is none (``invalid_json``).
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(
            f"The body is not valid JSON in UTF-8: {error}. NaN, Infinity and lone surrogates are no JSON either.",
            code="invalid_json",
        ) from None


def read(value: Any, shape: type[T], path: str = "") -> T:
    """
    *value* (parsed JSON) as a *shape*.

    Raises:
        InvalidRequest: it does not fit; ``param`` is the first bad path, below *path*.
    """
    try:
        result: T = _reader.structure(value, shape)
    except Exception as error:
        forget_frames(error)
        raise _explain(error, path) from None
    return result


def _explain(error: BaseException, path: str) -> InvalidRequest:
    """
    The first fault in cattrs' tree of them, as our error.
    """
    if isinstance(error, ClassValidationError | IterableValidationError):
        first = error.exceptions[0]
        for note in getattr(first, "__notes__", ()):
            if isinstance(note, AttributeValidationNote):
                return _explain(first, _join(path, note.name))
            if isinstance(note, IterableValidationNote):
                return _explain(first, f"{path}[{note.index}]")
        return _explain(first, path)
    if isinstance(error, ForbiddenExtraKeysError):
        field = sorted(error.extra_fields)[0]
        return InvalidRequest(
            f"{field!r} is no field that can stand here.", code="unknown_field", param=_join(path, field)
        )
    if isinstance(error, KeyError):
        return InvalidRequest(f"{path} is missing.", code="missing_field", param=path)
    if isinstance(error, InvalidRequest):
        param = _join(path, error.param) if error.param else path or None
        return InvalidRequest(error.message, code=error.code, param=param)
    return InvalidRequest(f"{path or 'The body'} has a value that cannot be used.", param=path or None)


def _join(path: str, field: str) -> str:
    if not path or field.startswith("["):
        return path + field
    return f"{path}.{field}"


def _strict(kind: str, *accepted: type) -> Callable[[Any, Any], Any]:
    def check(value: Any, _: Any) -> Any:
        if type(value) not in accepted:
            raise InvalidRequest(f"This must be {kind}, not {_name(value)}.")
        return value

    return check


def _name(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _read_literal(value: Any, shape: Any) -> Any:
    allowed = get_args(shape)
    if not isinstance(value, str) or value not in allowed:
        raise InvalidRequest(f"This must be one of {', '.join(map(repr, allowed))}.")
    return value


def _read_object(value: Any, _: Any) -> Any:
    """
    Free-form JSON: kept as it is, if it can be written again (orjson writes 254 levels).
    """
    if not isinstance(value, dict):
        raise InvalidRequest(f"This must be an object, not {_name(value)}.")
    if not is_writable(value):
        raise InvalidRequest(
            "This object cannot be kept: it is nested too deeply, or has a number over 64 bits or half a character."
        )
    return value


def _read_metadata(value: Any, _: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"This must be an object, not {_name(value)}.")
    if sum(text is not None for text in value.values()) > 16:
        raise InvalidRequest("At most 16 metadata keys are kept.")
    for key, text in value.items():
        if len(key) > 64:
            raise InvalidRequest("A metadata key has at most 64 characters.", param=key[:64])
        if text is not None and (not isinstance(text, str) or len(text) > 512):
            raise InvalidRequest("A metadata value is a string of at most 512 characters.", param=key)
    return value


def _read_parts(allowed: tuple[type, ...]) -> Callable[[Any], tuple[Any, ...]]:
    names = [kind for kind, cls in _PART_TYPES.items() if cls in allowed]

    def read_part(value: Any) -> Any:
        if not isinstance(value, dict):
            raise InvalidRequest(f"A content part is an object, not {_name(value)}.")
        if "type" not in value:
            raise InvalidRequest("type is missing.", code="missing_field", param="type")
        if value["type"] not in names:
            raise InvalidRequest(f"A part here has one of the types {', '.join(names)}.", param="type")
        part: Any = _reader.structure(value, _PART_TYPES[value["type"]])
        if isinstance(part, InputImage) and not (part.image_url or part.file_id):
            raise InvalidRequest("An image needs image_url or file_id.")
        if isinstance(part, InputFile) and not (part.file_data or part.file_id or part.file_url):
            raise InvalidRequest("A file needs file_data, file_id or file_url.")
        return part

    def read_parts(value: Any) -> tuple[Any, ...]:
        if not value:
            raise InvalidRequest("A list of parts has at least one.")
        return _read_list(value, read_part)

    return read_parts


def _read_list(value: list[Any], read_one: Callable[[Any], Any]) -> tuple[Any, ...]:
    result = []
    for index, element in enumerate(value):
        try:
            result.append(read_one(element))
        except Exception as error:
            raise _explain(error, f"[{index}]") from None
    return tuple(result)


def _read_tools(value: Any, _: Any) -> tuple[Tool, ...]:
    if not isinstance(value, list):
        raise InvalidRequest(f"tools is an array, not {_name(value)}.", code="invalid_tool")
    if len(value) > TOOLS_MAX:
        raise InvalidRequest(f"At most {TOOLS_MAX} tools can be offered.", code="invalid_tool")
    tools = _read_list(value, _read_tool)
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            raise InvalidRequest(f"Two tools are named {tool.name!r}.", code="invalid_tool", param=f"[{index}].name")
        seen.add(tool.name)
    return tools


def _read_tool(value: Any) -> Tool:
    """
    Either function shape: flat, or with a ``function`` object inside.
    """
    nested = isinstance(value, dict) and "function" in value
    try:
        tool = _read_nested_tool(value) if nested else _reader.structure(value, Tool)
        if not nested and value.get("type") != "function":
            raise InvalidRequest("A tool's type is 'function'.", param="type")
        if not NAME_PATTERN.match(tool.name):
            where = "function.name" if nested else "name"
            raise InvalidRequest("A tool's name has 1 to 64 of the characters A-Z a-z 0-9 _ -.", param=where)
        if tool.timeout_s is not None and tool.timeout_s <= 0:
            raise InvalidRequest("timeout_s is more than 0 seconds.", param="timeout_s")
    except Exception as error:
        fault = _explain(error, "")
        code = "unknown_field" if fault.code == "unknown_field" else "invalid_tool"
        raise InvalidRequest(fault.message, code=code, param=fault.param) from None
    return tool


def _read_nested_tool(value: Any) -> Tool:
    outer = _reader.structure(value, NestedTool)
    inner = outer.function
    return Tool(
        name=inner.name,
        description=inner.description,
        parameters=inner.parameters,
        strict=inner.strict,
        timeout_s=outer.timeout_s,
    )


@attrs.frozen(kw_only=True)
class InnerTool:
    """
    The function inside a nested tool.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False


@attrs.frozen(kw_only=True)
class NestedTool:
    """
    A tool in the shape of Chat Completions.
    """

    type: Literal["function"]
    function: InnerTool
    timeout_s: float | None = None


def _read_tool_choice(value: Any, _: Any) -> Any:
    if isinstance(value, str) and value in ("auto", "none", "required"):
        return value
    if isinstance(value, dict) and value.get("type") == "function":
        inner = value.get("function")
        named = inner if isinstance(inner, dict) and set(value) == {"type", "function"} else value
        if set(named) - {"type"} == {"name"} and isinstance(named["name"], str):
            return NamedChoice(named["name"])
    raise InvalidRequest("tool_choice is 'auto', 'none', 'required' or {\"type\": \"function\", \"name\": ...}.")


def _is_literal(shape: Any) -> bool:
    return get_origin(shape) is Literal


def _is_union(shape: Any) -> bool:
    return get_origin(shape) in (Union, types.UnionType)


def _read_union(shape: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    """
    The unions that occur: ``X | None``, ``str | parts``, ``str | parts | None``.
    """
    members = [member for member in get_args(shape) if member is not type(None)]
    optional = len(members) < len(get_args(shape))
    parts = next((member for member in members if get_origin(member) is tuple), None) if str in members else None

    def read_value(value: Any, _: Any) -> Any:
        if value is None and optional:
            return None
        if parts is not None and isinstance(value, list):
            return _read_parts(get_args(get_args(parts)[0]))(value)
        if len(members) == 1:
            return converter.structure(value, members[0])
        if isinstance(value, str):
            return value
        raise InvalidRequest(f"This must be a string or an array of parts, not {_name(value)}.")

    return read_value


def _is_tuple(shape: Any) -> bool:
    return get_origin(shape) is tuple


def _read_tuple(shape: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    """
    ``tuple[X, ...]``: an array and nothing else that can be walked through.
    """
    element = get_args(shape)[0]

    def read_array(value: Any, _: Any) -> Any:
        if not isinstance(value, list):
            raise InvalidRequest(f"This must be an array, not {_name(value)}.")
        return _read_list(value, lambda one: converter.structure(one, element))

    return read_array


def _read_class(cls: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    """
    An attrs class: null for an optional key counts as absent, except where null is a value of its own.
    """
    plain = make_dict_structure_fn(cls, converter, _cattrs_forbid_extra_keys=True)
    droppable = {field.name for field in attrs.fields(cls) if field.default is not attrs.NOTHING} - {"tool_timeout_s"}

    def read_instance(value: Any, shape: Any) -> Any:
        if not isinstance(value, dict):
            raise InvalidRequest(f"This must be an object, not {_name(value)}.")
        return plain({key: held for key, held in value.items() if held is not None or key not in droppable}, shape)

    return read_instance


def _one_of(shapes: tuple[Any, ...]) -> Callable[[Any], bool]:
    return lambda shape: any(shape == candidate for candidate in shapes)


def _make_reader() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=True)
    converter.register_structure_hook(str, _strict("a string", str))
    converter.register_structure_hook(int, _strict("an integer", int))
    converter.register_structure_hook(float, _strict("a number", int, float))
    converter.register_structure_hook(bool, _strict("true or false", bool))
    converter.register_structure_hook_func(_is_literal, _read_literal)
    converter.register_structure_hook_factory(_is_union, _read_union)
    converter.register_structure_hook_factory(_is_tuple, _read_tuple)
    converter.register_structure_hook_factory(attrs.has, _read_class)
    for shapes, hook in (
        ((Mapping[str, Any],), _read_object),
        ((Mapping[str, str], Mapping[str, str | None]), _read_metadata),
        ((tuple[Tool, ...],), _read_tools),
        ((ToolChoice, ToolChoice | None), _read_tool_choice),
    ):
        converter.register_structure_hook_func(_one_of(shapes), hook)
    return converter


_reader = _make_reader()
