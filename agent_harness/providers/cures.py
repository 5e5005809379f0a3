"""
What a model server's refusals suggest: the provider settings that may cure them. Pure.

A cure is never believed: the check tries it, and recommends what helped.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from agent_harness.config import ProviderSettings

__all__ = ["CURES", "Cure", "advise", "find_cures"]


@attrs.frozen(kw_only=True)
class Cure:
    """
    One setting that may help.

    Args:
        field: its name in `ProviderSettings`.
        why: what it does, in words that follow the setting.
        value: the value to try, from the settings in force; None where it cannot help.
        said: words of refusals that suggest it.
        blindly: names of the probes in which it is tried even if the refusal says nothing that is known.
    """

    field: str
    why: str
    value: Callable[[ProviderSettings], Any]
    said: re.Pattern[str]
    blindly: frozenset[str] = frozenset()

    def apply(self, settings: ProviderSettings) -> ProviderSettings:
        """
        *settings* with this cure; the same where it changes nothing.
        """
        value = self.value(settings)
        changed: Mapping[str, Any] = {} if value is None else {self.field: value}
        return attrs.evolve(settings, **changed)


def _said(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.DOTALL)


def _other_api(settings: ProviderSettings) -> str:
    return "chat" if settings.api == "responses" else "responses"


def _add_version(settings: ProviderSettings) -> str | None:
    return None if re.search(r"/v\d+\w*$", settings.base_url) else f"{settings.base_url.rstrip('/')}/v1"


def _for_chat(value: Any) -> Callable[[ProviderSettings], Any]:
    return lambda settings: value if settings.api == "chat" else None


def _leave_out(name: str) -> Callable[[ProviderSettings], Any]:
    # A null takes a field out in the chat dialect only.
    return lambda settings: {**settings.extra_body, name: None} if settings.api == "chat" else None


def _include_nothing(settings: ProviderSettings) -> Any:
    return {**settings.extra_body, "include": []} if settings.api == "responses" else None


_ELSEWHERE = _said(r"HTTP 40[45]\b|unexpected endpoint|unknown (url|path|route|endpoint)")
_ALTERNATE = _said(
    r"alternat|consecutive|same role|must be followed by|roles must|after the optional system message"
    r"|expected .{0,40}assistant|multiple user|two user"
)
_UNKNOWN_ROLE = _said(
    r"(system|developer)['\"`]* ?(role|prompt|messages? (is|are) not|messages? not)"
    r"|role.{0,40}(system|developer)|(unknown|invalid|unsupported|unexpected) role"
)

CURES: tuple[Cure, ...] = (
    Cure(
        field="max_tokens_field",
        why="bounds the output by the older name",
        value=_for_chat("max_tokens"),
        said=_said(r"max_completion_tokens|ignores the bound"),
        blindly=frozenset({"text"}),
    ),
    Cure(
        field="extra_body",
        why="does not ask for usage in the stream, so that token counts stay null",
        value=_leave_out("stream_options"),
        said=_said(r"stream_options|include_usage"),
        blindly=frozenset({"text"}),
    ),
    Cure(
        field="extra_body",
        why="never sends parallel_tool_calls, whatever agents ask for",
        value=_leave_out("parallel_tool_calls"),
        said=_said(r"parallel_tool_calls|parallel tool"),
        blindly=frozenset({"tool"}),
    ),
    Cure(
        field="extra_body",
        why="does not ask for encrypted reasoning, which then is not remembered between turns",
        value=_include_nothing,
        said=_said(r"encrypted[_ ]content|\binclude\b"),
        blindly=frozenset({"text"}),
    ),
    Cure(
        field="merge_user_messages",
        why="joins neighbouring user messages, for templates that demand alternating roles",
        value=lambda settings: True,
        said=_ALTERNATE,
        blindly=frozenset({"text", "interrupt"}),
    ),
    Cure(
        field="system_role",
        why="gives the instructions as a user message",
        value=_for_chat("user"),
        said=_UNKNOWN_ROLE,
        blindly=frozenset({"text"}),
    ),
    Cure(
        field="system_role",
        why="gives the instructions as a developer message",
        value=_for_chat("developer"),
        said=_said(r"developer"),
    ),
    Cure(
        field="tool_output_parts",
        why="sends tool outputs as text only; images and files are left out",
        value=lambda settings: False,
        said=_said(r"output|content|image|multimodal|vision|string"),
        blindly=frozenset({"parts"}),
    ),
    Cure(
        field="replay_reasoning_content",
        why="does not send reasoning back",
        value=_for_chat("never"),
        said=_said(r"reasoning"),
        blindly=frozenset({"tool", "recall"}),
    ),
    Cure(field="base_url", why="is the address up to and including /v1", value=_add_version, said=_ELSEWHERE),
    Cure(field="api", why="speaks the other dialect", value=_other_api, said=_ELSEWHERE),
)
"""
What is tried, in this order: first what a refusal names, then what is tried blindly.
"""


def find_cures(probe: str, message: str, settings: ProviderSettings) -> list[Cure]:
    """
    What to try for a *probe* that failed with *message* under *settings*, the likeliest first.
    """
    able = [cure for cure in CURES if cure.apply(settings) != settings]
    named = [cure for cure in able if cure.said.search(message)]
    return named + [cure for cure in able if cure not in named and probe in cure.blindly]


_ADVICE: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        _said(r"['\"`\[. ]strict\b"),
        "The server refuses the key strict, which stands in every tool; no setting takes it out.",
    ),
    (
        _said(
            r"model.{0,200}(not found|does not exist|not exist|unknown|not supported)|(unknown|invalid|no such) model"
        ),
        "Name a model that the server has: --model NAME.",
    ),
    (
        _said(r"never called"),
        "The model may know no tools. And many servers read calls only when started for it: vLLM with"
        " --enable-auto-tool-choice --tool-call-parser NAME, SGLang with --tool-call-parser NAME, llama.cpp with"
        " --jinja, llama-cpp-python with --chat_format chatml-function-calling.",
    ),
)


def advise(message: str) -> str | None:
    """
    What to do about a failure that no setting cures; None where nothing is known.
    """
    return next((words for said, words in _ADVICE if said.search(message)), None)
