"""
The agent: what a session's model calls are made with.
"""

from collections.abc import Mapping
from typing import Any

import attrs
from attrs.converters import optional

from agent_harness.protocol.tools import Tool, ToolChoice, clean_json, clean_optional

__all__ = ["MAX_MODEL_CALLS", "TOOL_TIMEOUT_S", "Agent"]

MAX_MODEL_CALLS = 50
"""Default bound on the model calls of one turn."""

TOOL_TIMEOUT_S = 3600.0
"""Default time a call stays open, in seconds."""


@attrs.frozen(kw_only=True)
class Agent:
    """
    Settings of a session's model calls; None leaves a field to the provider (``model``, ``provider``: to the server).

    ``reasoning`` and ``text`` are objects of the Responses API, sent as they are; ``tool_timeout_s`` is in seconds,
    None for no deadline.
    """

    name: str | None = None
    model: str | None = attrs.field(default=None, converter=clean_optional)
    provider: str | None = None
    instructions: str | None = attrs.field(default=None, converter=clean_optional)
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    reasoning: Mapping[str, Any] | None = attrs.field(default=None, converter=optional(clean_json))
    text: Mapping[str, Any] | None = attrs.field(default=None, converter=optional(clean_json))
    max_model_calls: int = MAX_MODEL_CALLS
    tool_timeout_s: float | None = TOOL_TIMEOUT_S
