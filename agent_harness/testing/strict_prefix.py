"""
Rule 9: the items of a session's last good request are the byte-identical beginning of the next one's. Pure.

Providers cache prompts by prefix; a request that rewrites its past pays for all of it again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from agent_harness.testing.strict_error import Dialect, refuse
from agent_harness.testing.strict_reasoning import read_text
from agent_harness.testing.strict_shapes import item_type

__all__ = ["PastRequest", "check_prefix", "slice_items"]

WHITESPACE = re.compile(r"[ \t\n\r]*")
DECODER = json.JSONDecoder()


@attrs.frozen
class PastRequest:
    """
    What rule 9 compares: a request's dialect, its model, its items and the exact text of each.
    """

    dialect: Dialect
    model: Any
    items: Sequence[Any]
    slices: Sequence[str]


def check_prefix(past: PastRequest, new: PastRequest, *, drop_reasoning: bool, merge_user_messages: bool) -> None:
    """
    Refuse a request that does not begin with the past one's items. After a change of dialect or model it need not.

    With `drop_reasoning` the comparison looks past reasoning, with `merge_user_messages` past the text of the past
    request's last user message.

    :raises StrictError: for rule 9.
    """
    if (past.dialect, past.model) != (new.dialect, new.model):
        return
    key = "input" if new.dialect == "responses" else "messages"
    before = list(list_comparable(past, drop_reasoning=drop_reasoning))
    after = list(list_comparable(new, drop_reasoning=drop_reasoning))
    last_user = max((place for place, (_, role, _) in enumerate(before) if role == "user"), default=None)
    for place, (index, _, text) in enumerate(before):
        if place >= len(after):
            refuse(f"item {index} of the last request answered 200 is gone.", f"{key}[{index}]", rule=9)
        at, role, now = after[place]
        if now == text or (merge_user_messages and place == last_user and role == "user"):
            continue
        refuse(
            f"not byte for byte what the last request answered 200 held: {show_change(text, now)}",
            f"{key}[{at}]",
            rule=9,
        )


def show_change(text: str, now: str) -> str:
    """
    Quote two texts around the first character in which they differ.
    """
    same = next((at for at, (a, b) in enumerate(zip(text, now, strict=False)) if a != b), min(len(text), len(now)))
    start = max(0, same - 40)
    return f"at character {same} …{text[start : same + 40]}… became …{now[start : same + 40]}…"


def list_comparable(request: PastRequest, *, drop_reasoning: bool) -> Iterator[tuple[int, Any, str]]:
    """
    Give `(index, role, text)` of the items that are compared: all but Chat Completions' leading system messages.

    With `drop_reasoning` reasoning is left out, and an item's text is its content without what hangs on reasoning.
    """
    leading = request.dialect == "chat"
    for index, (item, text) in enumerate(zip(request.items, request.slices, strict=False)):
        leading = leading and item["role"] in ("system", "developer")
        if leading or (drop_reasoning and item_type(item) == "reasoning"):
            continue
        yield index, item.get("role"), strip_reasoning(item) if drop_reasoning else text


def strip_reasoning(item: dict[str, Any]) -> str:
    """
    Give an item's text without item id, status and reasoning; an assistant message's content as plain text.
    """
    dropped = ("id", "status", "type", "phase", "reasoning", "reasoning_content", "reasoning_details")
    kept = {key: value for key, value in item.items() if key not in dropped}
    if item.get("role") == "assistant":
        kept["content"] = read_text(item)
    return json.dumps(kept, sort_keys=True)


def slice_items(raw: bytes, key: str) -> tuple[str, ...]:
    """
    Give the exact text of each item of the array under `key` of a JSON object; empty where `key` holds no array.

    `raw` must be valid JSON in UTF-8, which makes equal text the same as equal bytes.

    :raises StrictError: for rule 8, when the body is nested deeper than can be read.
    """
    text = raw.decode()
    found: tuple[str, ...] = ()
    at = skip_space(text, skip_space(text, 0) + 1)
    try:
        while text[at] != "}":
            name, at = DECODER.raw_decode(text, at)
            at = skip_space(text, skip_space(text, at) + 1)
            if name == key:
                found, at = slice_array(text, at)
            else:
                at = DECODER.raw_decode(text, at)[1]
            at = skip_space(text, at)
            if text[at] == ",":
                at = skip_space(text, at + 1)
    except RecursionError:
        refuse("We could not parse the JSON body of your request: nested too deep.", None, rule=8, code="invalid_json")
    return found


def slice_array(text: str, at: int) -> tuple[tuple[str, ...], int]:
    """
    Give the texts of the array's items that begins at `at`, and where it ends; no items where another value stands.
    """
    if text[at] != "[":
        return (), DECODER.raw_decode(text, at)[1]
    slices: list[str] = []
    at = skip_space(text, at + 1)
    while text[at] != "]":
        end = DECODER.raw_decode(text, at)[1]
        slices.append(text[at:end])
        at = skip_space(text, end)
        if text[at] == ",":
            at = skip_space(text, at + 1)
    return tuple(slices), at + 1


def skip_space(text: str, at: int) -> int:
    """
    Give the index of the first character from `at` on that is not JSON whitespace.
    """
    match = WHITESPACE.match(text, at)
    return match.end() if match else at
