"""
JSON Schemas of what is sent and what is taken, read off the classes that the codec reads and writes.

What the codec adds to the classes' types is said here a second time, and a test holds the two together: bounds
(`_BOUNDS`), which tags may be left out, and the objects that are written by hand (`Turn`, `Usage`).
"""

import inspect
import re
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

import attrs

from agent_harness.engine.replies import Sent
from agent_harness.errors import ModelError
from agent_harness.protocol import events as said
from agent_harness.protocol.agents import Agent
from agent_harness.protocol.commands import OUTPUT_MAX, OutputData, SendMessage, SubmitOutput
from agent_harness.protocol.decode import InnerTool, NestedTool
from agent_harness.protocol.encode import DATED, LEFT_OUT_IF_NONE
from agent_harness.protocol.items import InputFile, InputImage, SummaryText, Usage
from agent_harness.protocol.past import PastCall, PastItem, PastOutput
from agent_harness.protocol.requests import BATCH_MAX, CreateBody
from agent_harness.protocol.tools import CALL_ID_MAX, NAME_PATTERN, TOOLS_MAX, NamedChoice, Tool, ToolChoice
from agent_harness.protocol.turns import IncompleteReason, LastError, Turn, TurnStatus

__all__ = ["ReadSchemas", "Schema", "WrittenSchemas", "describe", "nullable", "object_of"]

Schema = dict[str, Any]

_PLAIN: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}

_NAME = {"pattern": "^" + NAME_PATTERN.pattern.replace(r"\Z", "$")}
_COUNT = {"minimum": 1, "maximum": 2**64 - 1}
_SECONDS = {"exclusiveMinimum": 0}

_BOUNDS: dict[tuple[type, str], Schema] = {
    (Agent, "max_model_calls"): _COUNT,
    (Agent, "max_output_tokens"): _COUNT,
    (Agent, "tool_timeout_s"): _SECONDS,
    (Agent, "tools"): {"maxItems": TOOLS_MAX},
    (SendMessage, "tools"): {"maxItems": TOOLS_MAX},
    (Tool, "name"): _NAME,
    (Tool, "timeout_s"): _SECONDS,
    (InnerTool, "name"): _NAME,
    (NestedTool, "timeout_s"): _SECONDS,
    (OutputData, "output"): {"maxLength": OUTPUT_MAX},
    (PastOutput, "output"): {"maxLength": OUTPUT_MAX},
    (PastCall, "call_id"): {"minLength": 1, "maxLength": CALL_ID_MAX},
    (PastCall, "name"): _NAME,
}

_METADATA: Schema = {
    "type": "object",
    "maxProperties": 16,
    "propertyNames": {"maxLength": 64},
    "additionalProperties": {"type": ["string", "null"], "maxLength": 512},
}

_LEFT_OUT: dict[Any, tuple[str, ...]] = {**LEFT_OUT_IF_NONE, Sent: ("waiting_for",)}

_NEEDS_ONE: dict[type, tuple[str, ...]] = {
    InputImage: ("image_url", "file_id"),
    InputFile: ("file_data", "file_id", "file_url"),
}
"""Parts that need at least one of these, and not as empty text."""


def describe(thing: Any) -> str:
    """
    The docstring of a class or function in Markdown, its lines joined to paragraphs.
    """
    text = re.sub(r"\bNone\b", "null", inspect.getdoc(thing) or "").replace("``", "`")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


class _Schemas:
    """
    Turns types into schemas; attrs classes become components, which `components` collects by name.
    """

    one_of = "oneOf"
    """The keyword for unions of which exactly one member fits."""

    def __init__(self, components: dict[str, Schema]) -> None:
        self.components = components
        self._names: dict[Any, str] = {}

    def schema(self, shape: Any) -> Schema:
        """
        The schema of a type.
        """
        if shape is Any:
            return {}
        if shape in _PLAIN:
            return {"type": _PLAIN[shape]}
        origin = get_origin(shape)
        if origin is Literal:
            values = get_args(shape)
            kind = _PLAIN[type(values[0])]
            return {"type": kind, "const": values[0]} if len(values) == 1 else {"type": kind, "enum": list(values)}
        if origin is tuple:
            return {"type": "array", "items": self.schema(get_args(shape)[0])}
        if origin is Mapping:
            value = self.schema(get_args(shape)[1])
            return {"type": "object", "additionalProperties": value} if value else {"type": "object"}
        if origin in (Union, types.UnionType):
            return self._union([arg for arg in get_args(shape) if arg is not type(None)], type(None) in get_args(shape))
        return {"$ref": f"#/components/schemas/{self._component(shape)}"}

    def _union(self, members: list[Any], optional: bool) -> Schema:
        schema = self.schema(members[0])
        if len(members) > 1:
            schema = {"anyOf": [self.schema(member) for member in members]}
            if all(map(_tag, members)):
                refs = {_tag(member): option["$ref"] for member, option in zip(members, schema["anyOf"], strict=True)}
                if len(refs) == len(members):
                    schema = {self.one_of: schema["anyOf"]}
                    schema["discriminator"] = {"propertyName": "type", "mapping": refs}
        return nullable(schema) if optional else schema

    def _component(self, cls: type) -> str:
        """
        The name of the component for *cls*, made when it is first asked for.
        """
        if cls not in self._names:
            self._names[cls] = name = self._name(cls)
            self.components[name] = {}
            self.components[name] = {"description": describe(cls), **self.object(cls)}
        return self._names[cls]

    def _name(self, cls: type) -> str:
        return cls.__name__

    def object(self, cls: Any) -> Schema:
        """
        The schema of an attrs class.
        """
        raise NotImplementedError


class WrittenSchemas(_Schemas):
    """
    Schemas of what the server writes: every field is there, but for those that are left out instead of null.
    """

    def object(self, cls: Any) -> Schema:
        """
        The schema of what `agent_harness.protocol.encode` makes of an instance.
        """
        if cls is Usage:
            return self._usage()
        if cls is Turn:
            return self._turn()
        left_out = _LEFT_OUT.get(cls, ())
        fields = {field.name: field.type for field in attrs.fields(cls) if field.name != "provenance"}
        properties = {
            name: self.schema(_without_none(kind) if name in left_out else kind) for name, kind in fields.items()
        }
        if cls is LastError:
            properties["code"] = {"type": "string", "enum": list(ModelError.codes)}
        return object_of(properties, set(properties) - set(left_out))

    def event(self, cls: Any) -> Schema:
        """
        The schema of an event as the JSON of a frame.
        """
        head: Schema = {"type": {}, "seq": {"type": "integer", "minimum": 0}}
        if cls in DATED:
            head["at"] = {"type": "number"}
        schema = self.object(cls)
        properties = head | schema["properties"]
        return {"description": describe(cls), **object_of(properties, {*head, *schema["required"]})}

    def events(self) -> Schema:
        """
        The union of all events, each of them a component.
        """
        refs = {}
        for cls in get_args(said.Event):
            self.components[cls.__name__] = self.event(cls)
            refs[_tag(cls)] = f"#/components/schemas/{cls.__name__}"
        discriminator = {"propertyName": "type", "mapping": refs}
        return {"oneOf": [{"$ref": ref} for ref in refs.values()], "discriminator": discriminator}

    def page(self, row: Any) -> Schema:
        """
        The schema of a page of *row*.
        """
        properties: Schema = {
            "object": {"type": "string", "const": "list"},
            "data": {"type": "array", "items": self.schema(row)},
            "first_id": {"type": ["string", "null"]},
            "last_id": {"type": ["string", "null"]},
            "has_more": {"type": "boolean"},
        }
        return object_of(properties, set(properties))

    def _name(self, cls: type) -> str:
        return "Response" if cls is Turn else cls.__name__

    def _usage(self) -> Schema:
        tokens = {field.name: self.schema(field.type) for field in attrs.fields(Usage)}
        properties = {name: tokens[name] for name in ("input_tokens", "output_tokens", "total_tokens")}
        for outer, inner in (("input_tokens_details", "cached_tokens"), ("output_tokens_details", "reasoning_tokens")):
            properties[outer] = object_of({inner: tokens[inner]}, {inner})
        return object_of(properties, set(properties))

    def _turn(self) -> Schema:
        fields = {field.name: self.schema(field.type) for field in attrs.fields(Turn)}
        reason = object_of({"reason": self.schema(IncompleteReason)}, {"reason"})
        properties = {
            "id": fields["id"],
            "object": {"type": "string", "const": "response"},
            "status": self.schema(TurnStatus),
            **{name: fields[name] for name in ("model", "created_at", "completed_at", "usage", "error")},
            "incomplete_details": nullable(reason),
        }
        return object_of(properties, set(properties))


class ReadSchemas(_Schemas):
    """
    Schemas of what the server takes: no other fields, and null for one that may be left out.
    """

    # Says the same of these, and generators of bad bodies can negate it.
    one_of = "anyOf"

    def schema(self, shape: Any) -> Schema:
        """
        The schema of a type, with the codec's own readings of metadata, tools and parts.
        """
        if shape == PastItem:
            return {"anyOf": [self.schema(member) for member in get_args(PastItem)]}
        if shape in (Mapping[str, str], Mapping[str, str | None]):
            return dict(_METADATA)
        if shape == tuple[Tool, ...]:
            return {"type": "array", "items": {"anyOf": [super().schema(Tool), super().schema(NestedTool)]}}
        if shape in (ToolChoice, ToolChoice | None):
            return self._tool_choice(optional=shape != ToolChoice)
        return super().schema(shape)

    def object(self, cls: Any) -> Schema:
        """
        The schema of what `agent_harness.protocol.decode` makes an instance of.
        """
        properties, required = {}, set()
        for field in attrs.fields(cls):
            must = field.default is attrs.NOTHING or (field.name == "type" and cls is not SummaryText)
            properties[field.name] = self._field(cls, field, must)
            if must:
                required.add(field.name)
        schema = object_of(properties, required) | {"additionalProperties": False}
        if cls in _NEEDS_ONE:
            filled = {"type": "string", "minLength": 1}
            schema["anyOf"] = [object_of({name: filled}, {name}) for name in _NEEDS_ONE[cls]]
        if cls is CreateBody:
            both = object_of({"agent": {"type": "object"}, "agent_id": {"type": "string"}}, {"agent", "agent_id"})
            schema["not"] = both
        return schema

    def batch(self) -> Schema:
        """
        The schema of a batch of results.
        """
        results = {"type": "array", "items": self.schema(SubmitOutput), "minItems": 1, "maxItems": BATCH_MAX}
        return object_of({"events": results}, {"events"}) | {"additionalProperties": False}

    def patch(self) -> Schema:
        """
        The schema of a change: fields of an agent and keys of metadata.
        """
        properties = {"agent": nullable(self.schema(Agent)), "metadata": nullable(dict(_METADATA))}
        return object_of(properties, set()) | {"additionalProperties": False}

    def _field(self, cls: Any, field: Any, must: bool) -> Schema:
        kind = tuple[PastItem, ...] if (cls, field.name) == (CreateBody, "items") else field.type
        schema = self.schema(kind)
        bound = dict(_BOUNDS.get((cls, field.name), {}))
        options = schema.get("anyOf", [])
        for option in options:
            if str in get_args(kind) and option.get("type") == "array":
                # Content and outputs: a list of parts has at least one.
                option["minItems"] = 1
        if bound:
            options[0].update(bound) if "maxLength" in bound and options else schema.update(bound)
        return schema if must else nullable(schema)

    def _tool_choice(self, optional: bool) -> Schema:
        name: Schema = {"type": "string"}
        kind = {"type": "string", "const": "function"}
        flat = object_of({"type": kind, "name": name}, {"type", "name"}) | {"additionalProperties": False}
        inner = object_of({"name": name}, {"name"}) | {"additionalProperties": False}
        nested = object_of({"type": kind, "function": inner}, {"type", "function"}) | {"additionalProperties": False}
        words = next(arg for arg in get_args(ToolChoice) if arg is not NamedChoice)
        schema: Schema = {"anyOf": [super().schema(words), flat, nested]}
        return nullable(schema) if optional else schema

    def _name(self, cls: type) -> str:
        # What is taken and what is written differ, where both are called the same.
        return f"{cls.__name__}Param" if cls.__name__ in self.components else cls.__name__


def object_of(properties: Mapping[str, Schema], required: set[str]) -> Schema:
    """
    The schema of an object; *required* in the order of *properties*.
    """
    schema: Schema = {"type": "object", "properties": dict(properties)}
    if required:
        schema["required"] = [name for name in properties if name in required]
    return schema


def nullable(schema: Schema) -> Schema:
    """
    *schema*, or null.
    """
    if "enum" in schema and None not in schema["enum"]:
        return schema | {"type": [schema["type"], "null"], "enum": [*schema["enum"], None]}
    if "type" in schema and "const" not in schema:
        return schema if isinstance(schema["type"], list) else schema | {"type": [schema["type"], "null"]}
    options = schema["anyOf"] if set(schema) == {"anyOf"} else [schema]
    return schema if {"type": "null"} in options else {"anyOf": [*options, {"type": "null"}]}


def _without_none(shape: Any) -> Any:
    return Union[tuple(arg for arg in get_args(shape) if arg is not type(None))]  # noqa: UP007


def _tag(cls: Any) -> str:
    """
    The value of a class's ``type``; "" without one.
    """
    field = attrs.fields_dict(cls).get("type") if attrs.has(cls) else None
    return field.default if field is not None and isinstance(field.default, str) else ""
