"""
Items: what the transcript keeps. Frozen; a change of status makes a new value with the same id.

Field names and part shapes are those of the OpenAI Responses API; ``origin``, ``created_at`` (Unix seconds) and
``response_id`` (the turn) are ours.
"""

import os
from collections.abc import Mapping
from typing import Any, Literal

import attrs

from agent_harness.protocol.tools import clean_json, clean_optional, clean_text

__all__ = [
    "CallStatus",
    "FunctionCall",
    "FunctionCallOutput",
    "InputFile",
    "InputImage",
    "InputText",
    "Item",
    "Message",
    "Origin",
    "OutputText",
    "Part",
    "Provenance",
    "Reasoning",
    "Refusal",
    "SummaryText",
    "Usage",
    "make_id",
]

Origin = Literal["client", "model", "harness"]
CallStatus = Literal["in_progress", "action_required", "completed", "failed", "incomplete"]
MessageStatus = Literal["queued", "in_progress", "completed", "incomplete", "cancelled"]


def make_id(prefix: str) -> str:
    """
    A new random id such as ``fc_5f0c…`` (96 bits, unguessable).
    """
    return f"{prefix}_{os.urandom(12).hex()}"


def _clean_notes(notes: tuple[Mapping[str, Any], ...]) -> tuple[Mapping[str, Any], ...]:
    return tuple(map(clean_json, notes)) if notes else notes


def _clean_output(output: "str | tuple[Part, ...]") -> "str | tuple[Part, ...]":
    return clean_text(output) if isinstance(output, str) else output


@attrs.frozen
class InputText:
    """
    Text from the client's side.
    """

    text: str = attrs.field(converter=clean_text)
    type: Literal["input_text"] = "input_text"


@attrs.frozen
class InputImage:
    """
    An image by URL (``data:`` too) or by the provider's file id.
    """

    image_url: str | None = attrs.field(default=None, converter=clean_optional)
    file_id: str | None = attrs.field(default=None, converter=clean_optional)
    detail: str | None = attrs.field(default=None, converter=clean_optional)
    type: Literal["input_image"] = "input_image"


@attrs.frozen
class InputFile:
    """
    A file by content (``file_data``, base64), URL or the provider's file id.
    """

    file_data: str | None = attrs.field(default=None, converter=clean_optional)
    file_id: str | None = attrs.field(default=None, converter=clean_optional)
    file_url: str | None = attrs.field(default=None, converter=clean_optional)
    filename: str | None = attrs.field(default=None, converter=clean_optional)
    type: Literal["input_file"] = "input_file"


@attrs.frozen
class OutputText:
    """
    Text the model wrote; ``annotations`` as the provider gave them.
    """

    text: str = attrs.field(converter=clean_text)
    annotations: tuple[Mapping[str, Any], ...] = attrs.field(default=(), converter=_clean_notes)
    type: Literal["output_text"] = "output_text"


@attrs.frozen
class Refusal:
    """
    What the model said instead of an answer.
    """

    refusal: str = attrs.field(converter=clean_text)
    type: Literal["refusal"] = "refusal"


@attrs.frozen
class SummaryText:
    """
    One part of a reasoning summary.
    """

    text: str = attrs.field(converter=clean_text)
    type: Literal["summary_text"] = "summary_text"


Part = InputText | InputImage | InputFile | OutputText | Refusal


@attrs.frozen
class Provenance:
    """
    What a provider needs to get back of its own item: never shown to clients, sent to that provider and model only.

    ``data`` is the adapter's own business (Responses: ``id`` and ``encrypted_content``).
    """

    provider: str
    model: str
    data: Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Message:
    """
    Something said. ``origin`` tells who: the client, the model, or the harness itself.
    """

    id: str
    role: Literal["user", "assistant"]
    content: tuple[Part, ...]
    origin: Origin
    status: MessageStatus = "completed"
    response_id: str | None = None
    created_at: int
    type: Literal["message"] = "message"
    provenance: Provenance | None = attrs.field(default=None, repr=False)


@attrs.frozen(kw_only=True)
class FunctionCall:
    """
    A call the model made. ``arguments`` is text; once announced it is the text of a JSON object.
    """

    id: str
    call_id: str
    name: str
    arguments: str
    status: CallStatus
    response_id: str | None = None
    created_at: int
    type: Literal["function_call"] = "function_call"
    provenance: Provenance | None = attrs.field(default=None, repr=False)


@attrs.frozen(kw_only=True)
class FunctionCallOutput:
    """
    The answer to a call, as it was posted. With ``is_error`` the model reads it behind ``Error: ``.
    """

    id: str
    call_id: str
    output: str | tuple[Part, ...] = attrs.field(converter=_clean_output)
    is_error: bool = False
    origin: Origin = "client"
    status: Literal["completed"] = "completed"
    response_id: str | None = None
    created_at: int
    type: Literal["function_call_output"] = "function_call_output"


@attrs.frozen(kw_only=True)
class Reasoning:
    """
    The model's reasoning as far as it is shown: a summary. The rest is in ``provenance``.
    """

    id: str
    summary: tuple[SummaryText, ...] = ()
    status: Literal["in_progress", "completed", "incomplete"]
    response_id: str | None = None
    created_at: int
    type: Literal["reasoning"] = "reasoning"
    provenance: Provenance | None = attrs.field(default=None, repr=False)


Item = Message | FunctionCall | FunctionCallOutput | Reasoning


@attrs.frozen
class Usage:
    """
    Tokens, as the provider reported them; None where it did not.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None

    def __add__(self, other: "Usage") -> "Usage":
        """
        Sum field by field; a field is None only where neither side reported it.
        """
        return Usage(
            _add(self.input_tokens, other.input_tokens),
            _add(self.output_tokens, other.output_tokens),
            _add(self.total_tokens, other.total_tokens),
            _add(self.cached_tokens, other.cached_tokens),
            _add(self.reasoning_tokens, other.reasoning_tokens),
        )


def _add(left: int | None, right: int | None) -> int | None:
    if left is None or right is None:
        return right if left is None else left
    return left + right
