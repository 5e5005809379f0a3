"""
Commands: what a client asks, in the shape it is posted in.
"""

from collections.abc import Mapping
from typing import Any, Literal

import attrs
from attrs.converters import optional

from agent_harness.protocol.agents import Agent
from agent_harness.protocol.items import InputFile, InputImage, InputText, Item
from agent_harness.protocol.tools import Tool, ToolChoice, clean_text

__all__ = [
    "OUTPUT_MAX",
    "Command",
    "CreateSession",
    "Delivery",
    "ForkSession",
    "InputPart",
    "Interrupt",
    "InterruptData",
    "MessageData",
    "OutputData",
    "SendMessage",
    "SubmitOutput",
    "UpdateSession",
]

OUTPUT_MAX = 10_000_000
"""Longest string a client may post as an output, in characters."""

InputPart = InputText | InputImage | InputFile
Delivery = Literal["queue", "steer", "reject"]


def _clean_content(content: str | tuple[InputPart, ...]) -> str | tuple[InputPart, ...]:
    return clean_text(content) if isinstance(content, str) else content


@attrs.frozen(kw_only=True)
class MessageData:
    """
    What the user says.
    """

    content: str | tuple[InputPart, ...] = attrs.field(converter=_clean_content)
    role: Literal["user"] = "user"


@attrs.frozen(kw_only=True)
class SendMessage:
    """
    Say something. ``tools`` are offered in the turn it starts, and only there.
    """

    data: MessageData
    tools: tuple[Tool, ...] | None = None
    tool_choice: ToolChoice | None = None
    delivery: Delivery = "queue"
    type: Literal["message"] = "message"


@attrs.frozen(kw_only=True)
class OutputData:
    """
    The result of a call; ``output`` None is the empty text.
    """

    call_id: str
    output: str | tuple[InputPart, ...] | None = attrs.field(converter=optional(_clean_content))
    is_error: bool = False


@attrs.frozen(kw_only=True)
class SubmitOutput:
    """
    Answer an open call.
    """

    data: OutputData
    type: Literal["function_call_output"] = "function_call_output"


@attrs.frozen(kw_only=True)
class InterruptData:
    """
    Which turn to stop (None: whichever runs), and whether waiting messages are dropped.
    """

    response_id: str | None = None
    clear_queue: bool = False


@attrs.frozen(kw_only=True)
class Interrupt:
    """
    Stop the running turn.
    """

    data: InterruptData = InterruptData()
    type: Literal["interrupt"] = "interrupt"


@attrs.frozen(kw_only=True)
class CreateSession:
    """
    Make a session, from a transcript if ``items`` are given.
    """

    agent: Agent = Agent()
    agent_id: str | None = None
    metadata: Mapping[str, str] = attrs.field(factory=dict)
    items: tuple[Item, ...] = ()


@attrs.frozen(kw_only=True)
class UpdateSession:
    """
    Change fields of the agent (name to new value) and keys of the metadata (None takes a key away).
    """

    agent: Mapping[str, Any] = attrs.field(factory=dict)
    metadata: Mapping[str, str | None] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class ForkSession:
    """
    Copy a session up to and including an item (None: all).
    """

    up_to_item_id: str | None = None


Command = SendMessage | SubmitOutput | Interrupt
