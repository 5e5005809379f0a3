"""
A function's signature, type hints and docstring as a `Tool`, and the text of a call as its arguments.

pydantic makes the JSON schema and checks the arguments; it is imported on first use.
"""

import asyncio
import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Annotated, Any, TypeVar, overload

import attrs

from agent_harness.functions.outputs import Output, call_here, write_output
from agent_harness.protocol.tools import NAME_PATTERN, Tool

__all__ = ["InvalidArguments", "OfferedFunction", "as_tool", "read_function", "tool"]

_PLAIN = (bool, int, float, str, list, tuple, dict, Enum, type(None))
_MARK = "__agent_tool__"

F = TypeVar("F", bound=Callable[..., Any])


class InvalidArguments(ValueError):
    """
    What the model wrote does not fit the function's parameters; the message says where, for the model to read.
    """


@attrs.frozen(kw_only=True)
class _Mark:
    """
    What `tool` says about a function.
    """

    name: str | None = None
    description: str | None = None
    timeout_s: float | None = None


@overload
def tool(
    function: F, *, name: str | None = None, description: str | None = None, timeout_s: float | None = None
) -> F: ...


@overload
def tool(
    *, name: str | None = None, description: str | None = None, timeout_s: float | None = None
) -> Callable[[F], F]: ...


def tool(
    function: Any = None, *, name: str | None = None, description: str | None = None, timeout_s: float | None = None
) -> Any:
    """
    Say how a function is offered: ``@tool``, ``@tool(timeout_s=5)`` or ``tool(function, name="look_up")``.

    The function itself comes back; one that has been told already, or can hold no attribute, comes back wrapped.

    Args:
        name: in place of its ``__name__``.
        description: in place of its docstring.
        timeout_s: how long a call may stay open, in seconds.
    """
    mark = _Mark(name=name, description=description, timeout_s=timeout_s)

    def put_mark(function: Any) -> Any:
        marked = functools.partial(function) if hasattr(function, _MARK) or inspect.ismethod(function) else function
        try:
            setattr(marked, _MARK, mark)
        except (AttributeError, TypeError):
            marked = functools.partial(function)
            setattr(marked, _MARK, mark)
        return marked

    return put_mark if function is None else put_mark(function)


def as_tool(function: Callable[..., Any]) -> Tool:
    """
    The definition of a function: sync or async, a method, a `functools.partial` (what it binds is not offered) or an
    object that can be called. Parameters need type hints that pydantic knows; one without a hint takes any JSON.

    Descriptions of parameters come from ``Annotated[..., Field(description=…)]``, else from the docstring (``Args:`` or
    ``:param name:``).

    Raises:
        TypeError: the signature cannot be offered (``*args``, ``**kwargs``, a type without JSON schema, a generator).
        ValueError: the name is no name of a tool.
    """
    return read_function(function).tool


@attrs.frozen(eq=False)
class OfferedFunction:
    """
    A function that is offered. ``arguments`` is a pydantic model whose fields, in order, are ``parameters``.
    """

    function: Callable[..., Any]
    tool: Tool
    arguments: Any
    parameters: Mapping[str, inspect.Parameter]

    async def call(self, arguments: str) -> Output | BaseException:
        """
        Call it with the text of a JSON object. What it raises in a thread is returned (a coroutine cannot raise all of
        it), what it raises here is raised.
        """
        args, kwargs = self.bind(arguments)
        if _is_async(self.function):
            return write_output(await self.function(*args, **kwargs))
        done = await asyncio.to_thread(call_here, self.function, args, kwargs)
        if done.error is not None:
            return done.error
        return write_output(await done.value) if done.output is None else done.output

    def bind(self, arguments: str) -> tuple[list[Any], dict[str, Any]]:
        """
        The arguments as the function takes them. A parameter that was left out keeps its own default.

        Raises:
            InvalidArguments: they do not fit.
        """
        import pydantic

        try:
            given = self.arguments.model_validate_json(arguments.strip() or "{}")
        except pydantic.ValidationError as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
            raise InvalidArguments("; ".join(map(_describe_fault, faults))) from None
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for field, parameter in self.parameters.items():
            here = field in given.model_fields_set or isinstance(parameter.default, pydantic.fields.FieldInfo)
            if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                args.append(getattr(given, field) if here else parameter.default)
            elif here:
                kwargs[parameter.name] = getattr(given, field)
        return args, kwargs


def _describe_fault(fault: Mapping[str, Any]) -> str:
    where = ".".join(map(str, fault["loc"]))
    return f"{where}: {fault['msg']}" if where else str(fault["msg"])


def read_function(function: Any) -> OfferedFunction:
    """
    Read a function as `as_tool` describes it.

    Raises:
        TypeError, ValueError: it cannot be offered.
    """
    target, bound = _unwrap(function)
    shown = getattr(target, "__qualname__", None) or type(target).__name__
    if inspect.isclass(target) or not callable(target):
        raise TypeError(f"{shown} cannot be a tool: it is no function")
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise TypeError(f"{shown} cannot be a tool: it yields; return a list instead")
    mark = _find_mark(function)
    name = mark.name or getattr(target, "__name__", None) or type(target).__name__
    if not NAME_PATTERN.match(name):
        raise ValueError(f"{name!r} is no name of a tool (1 to 64 of A-Z a-z 0-9 _ -); give one: tool(..., name=)")
    parameters = _read_parameters(function, bound, shown)
    description, about = _read_docstring(_find_doc(target))
    arguments, schema = _make_arguments(parameters, _read_hints(target, shown), about, shown)
    offered = Tool(
        name=name,
        description=mark.description or description or None,
        parameters=schema,
        timeout_s=mark.timeout_s,
    )
    return OfferedFunction(function, offered, arguments, parameters)


def _unwrap(function: Any) -> tuple[Any, set[str]]:
    """
    What a partial (of a partial …) calls, and the keywords it binds.
    """
    bound: set[str] = set()
    while isinstance(function, functools.partial):
        bound |= set(function.keywords)
        function = function.func
    return function, bound


def _find_mark(function: Any) -> _Mark:
    while not hasattr(function, _MARK) and isinstance(function, functools.partial):
        function = function.func
    mark = getattr(function, _MARK, None)
    return mark if isinstance(mark, _Mark) else _Mark()


def _find_doc(target: Any) -> str:
    if not inspect.isroutine(target):
        return inspect.getdoc(type(target).__call__) or inspect.getdoc(type(target)) or ""
    return inspect.getdoc(target) or ""


def _is_async(function: Any) -> bool:
    target, _ = _unwrap(function)
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(getattr(target, "__call__", None))  # noqa: B004


def _read_parameters(function: Any, bound: set[str], shown: str) -> dict[str, inspect.Parameter]:
    """
    The parameters that are offered, under the names of the model's fields: a parameter's own name could be one that
    pydantic keeps for itself.
    """
    try:
        signature = inspect.signature(function)
    except ValueError as error:
        raise TypeError(f"{shown} cannot be a tool: {error}") from None
    offered = [parameter for name, parameter in signature.parameters.items() if name not in bound]
    for parameter in offered:
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise TypeError(f"{shown} cannot be a tool: {parameter} has no schema; name each parameter")
    return {f"p{index}": parameter for index, parameter in enumerate(offered)}


def _read_hints(target: Any, shown: str) -> dict[str, Any]:
    called = target if inspect.isroutine(target) else type(target).__call__
    try:
        return typing.get_type_hints(called, include_extras=True)
    except NameError as error:
        raise TypeError(f"{shown} cannot be a tool: a type hint cannot be resolved ({error})") from None
    except TypeError:
        return {}


def _make_arguments(
    parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any], about: Mapping[str, str], shown: str
) -> tuple[Any, dict[str, Any] | None]:
    """
    The pydantic model of the arguments, and its JSON schema: None if there are none.
    """
    import pydantic

    fields = {field: _make_field(parameter, hints.get(parameter.name, Any)) for field, parameter in parameters.items()}
    try:
        model = pydantic.create_model("Arguments", __config__={"extra": "forbid"}, **fields)
        schema = model.model_json_schema(schema_generator=_schema_generator())
    except (pydantic.errors.PydanticUserError, pydantic.errors.PydanticSchemaGenerationError) as error:
        reason = str(error).partition("\n")[0]
        raise TypeError(f"{shown} cannot be a tool: a parameter has no JSON schema ({reason})") from None
    if not parameters:
        return model, None
    del schema["title"]
    for name, property_ in schema["properties"].items():
        if name in about:
            property_.setdefault("description", about[name])
    return model, schema


def _make_field(parameter: inspect.Parameter, hint: Any) -> Any:
    """
    A parameter's type, and what else pydantic is to know: its name, and what stands in for it.
    """
    from pydantic import Field
    from pydantic.fields import FieldInfo

    name, default = parameter.name, parameter.default
    if isinstance(default, FieldInfo):
        return Annotated[hint, default], Field(alias=name)
    if default is inspect.Parameter.empty:
        return hint, Field(alias=name)
    if isinstance(default, _PLAIN):
        return hint, Field(default, alias=name)
    # A copy may be impossible, and JSON has no word for it.
    return hint, Field(default_factory=lambda: default, alias=name)


@functools.cache
def _schema_generator() -> Any:
    """
    Titles repeat the names, and cost tokens in each request.
    """
    from pydantic.json_schema import GenerateJsonSchema

    class SchemaWithoutTitles(GenerateJsonSchema):
        ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

    return SchemaWithoutTitles


_HEADING = re.compile(r"(Args|Arguments|Parameters|Returns?|Raises|Yields|Examples?|Notes?):\s*\Z")
_ENTRY = re.compile(r"(\s+)\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)\Z")
_FIELD = re.compile(r":(?:param(?:\s+[^:]*?)?\s+(\w+)|\w+[^:]*):\s*(.*)\Z")


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """
    What stands before the sections, and what ``Args:`` or ``:param name:`` say of each parameter.
    """
    description: list[str] = []
    about: dict[str, list[str]] = {}
    section, name, indent = "", "", ""
    for line in text.splitlines():
        if heading := _HEADING.match(line):
            section, name, indent = heading[1], "", ""
        elif field := _FIELD.match(line):
            section, name = ":", field[1] or ""
            about.setdefault(name, []).append(field[2])
        elif section and line and not line[0].isspace():
            section, name = "", ""
            description.append(line)
        elif not section:
            description.append(line)
        elif (
            section in ("Args", "Arguments", "Parameters")
            and (entry := _ENTRY.match(line))
            and indent in ("", entry[1])
        ):
            indent, name = entry[1], entry[2]
            about.setdefault(name, []).append(entry[3])
        elif name:
            about[name].append(line.strip())
    about.pop("", None)
    return "\n".join(description).strip(), {key: " ".join(filter(None, lines)) for key, lines in about.items()}
