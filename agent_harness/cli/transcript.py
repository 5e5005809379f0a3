"""
A transcript for a person: one block of lines an item.
"""

import json
import time
from collections.abc import Iterator
from typing import Any

from agent_harness.cli.terminal import Screen, clean
from agent_harness.protocol.encode import to_wire
from agent_harness.protocol.items import FunctionCall, FunctionCallOutput, Message, Reasoning
from agent_harness.protocol.pages import Snapshot
from agent_harness.protocol.tolerant import UnknownEvent, UnknownItem, UnknownPart

__all__ = ["describe_call", "shorten", "show_item", "show_session", "write"]

SHOWN_LINES = 12
"""Lines of a tool's output that are shown, unless all are asked for."""


def write(value: Any) -> Any:
    """
    A value that the client read, as the JSON it was read from.
    """
    if isinstance(value, UnknownEvent | UnknownItem | UnknownPart):
        return value.data
    if isinstance(value, Snapshot) and value.items is not None:
        return {**to_wire(value), "items": [write(item) for item in value.items]}
    written = to_wire(value)
    for name in ("content", "output"):
        parts = getattr(value, name, None)
        if isinstance(parts, tuple):
            written[name] = [write(part) for part in parts]
    if hasattr(value, "item"):
        written["item"] = write(value.item)
    return written


def show_session(screen: Screen, session: Snapshot, *, full: bool) -> None:
    """
    Head and transcript.
    """
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(session.created_at))
    named = [text for text in (session.agent.name, session.agent.model) if text]
    screen.line(" · ".join([session.id, session.status, f"made {when}", *named]), "bold")
    for key, text in session.metadata.items():
        screen.line(f"{key}: {text}")
    for item in session.items or ():
        screen.line()
        show_item(screen, item, full=full)
    for action in session.required_actions:
        screen.line(f"open: {describe_call(action.name, action.arguments)}  {action.call_id}", "yellow")
    if session.last_error is not None:
        screen.line(f"failed ({session.last_error.code}): {session.last_error.message}", "red")


def show_item(screen: Screen, item: Any, *, full: bool = False) -> None:
    """
    One item.
    """
    match item:
        case Message():
            status = "" if item.status == "completed" else f" ({item.status})"
            screen.line(f"{item.role if item.origin != 'harness' else 'harness'}{status}:", "bold")
            screen.line("".join(_text_of(part) for part in item.content))
        case FunctionCall():
            screen.line(f"→ {describe_call(item.name, item.arguments)}  [{item.status}]", "cyan")
        case FunctionCallOutput():
            output = item.output if isinstance(item.output, str) else "".join(map(_text_of, item.output))
            text = output if full else shorten(output, SHOWN_LINES)
            screen.line(_indent(f"{'error: ' if item.is_error else ''}{text}"), "red" if item.is_error else "dim")
        case Reasoning():
            for part in item.summary:
                screen.line(f"· {part.text}", "dim")
        case _:
            screen.line(f"[{item.type}]", "dim")


def _text_of(part: Any) -> str:
    for name in ("text", "refusal"):
        text = getattr(part, name, None)
        if isinstance(text, str):
            return text
    return f"[{part.type}]"


def describe_call(name: str, arguments: str, most: int = 200) -> str:
    """
    A call on one line: ``name(key="value", …)``, long values cut.
    """
    try:
        given = json.loads(arguments)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        return f"{name}({_cut(arguments, most)})"
    shown = (f"{key}={_cut(json.dumps(value, ensure_ascii=False), most)}" for key, value in given.items())
    return f"{name}({', '.join(shown)})"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def shorten(text: str, most: int, width: int = 500) -> str:
    """
    The first *most* lines of *text*, each cut to *width* characters, and how many more there are.
    """
    # Cleaned first: what counts as a line must be what the terminal takes for one.
    lines = clean(text).rstrip("\n").split("\n")
    shown = [_cut(line, width) for line in lines[:most]]
    if len(lines) > most:
        shown.append(f"[{len(lines) - most:,} more lines]")
    return "\n".join(shown)


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in _lines(text))


def _lines(text: str) -> Iterator[str]:
    yield from text.rstrip("\n").split("\n")
