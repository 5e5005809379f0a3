"""
Rule 6: reasoning items and item ids in a Responses request, judged by what the server itself answered before.

Pure. OpenAI answers 400 with `Item 'rs_…' of type 'reasoning' was provided without its required following item.` and
`Item 'fc_…' of type 'function_call' was provided without its required 'reasoning' item: 'rs_…'.`, and it refuses
references to items that were not stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from agent_harness.testing.strict_error import refuse
from agent_harness.testing.strict_shapes import item_type

__all__ = ["AnswerLog", "check_reasoning"]


@attrs.define
class AnswerLog:
    """
    The output items of the answers given in one session: ids, call ids and texts, in stream order.
    """

    by_id: dict[str, tuple[tuple[dict[str, Any], ...], int]] = attrs.field(factory=dict)

    def remember(self, items: Sequence[dict[str, Any]]) -> None:
        """
        Keep one answer's output items (Responses shape). An id that comes again stands for the newer answer.
        """
        answer = tuple(items)
        for position, item in enumerate(answer):
            if isinstance(item.get("id"), str):
                self.by_id[item["id"]] = (answer, position)

    def find(self, item_id: Any) -> tuple[tuple[dict[str, Any], ...], int] | None:
        """
        Give the answer in which an item with this id stood and its position there; None if no answer had it.
        """
        return self.by_id.get(item_id) if isinstance(item_id, str) else None


def check_reasoning(items: Sequence[dict[str, Any]], log: AnswerLog, *, stored: bool) -> None:
    """
    Refuse reasoning without what it led to, ids without their reasoning, and references to what was not stored.

    `stored` is false for a request with `store: false`. Items of answers that `log` does not know are held to
    what can be told without it.

    :raises StrictError: for rule 6.
    """
    seen: set[str] = set()
    for index, item in enumerate(items):
        at = f"input[{index}]"
        kind = item_type(item)
        if kind == "item_reference" and (not stored or log.find(item.get("id")) is None):
            refuse(f"Item with id '{item.get('id')}' not found. Items are not persisted.", at, rule=6, code="not_found")
        if kind == "reasoning":
            if not stored and not item.get("encrypted_content"):
                refuse(
                    f"Item with id '{item['id']}' not found. Items are not persisted when `store` is set to false: "
                    "without its encrypted_content it is a bare reference.",
                    at,
                    rule=6,
                    code="not_found",
                )
            check_follower(item, items[index + 1] if index + 1 < len(items) else None, log, at)
        elif isinstance(item.get("id"), str):
            check_leader(item, kind, seen, log, at)
        if isinstance(item.get("id"), str):
            seen.add(item["id"])


def check_follower(item: dict[str, Any], follower: dict[str, Any] | None, log: AnswerLog, at: str) -> None:
    """
    Refuse a reasoning item that is not followed by a later item of the same answer.
    """
    message = f"Item '{item['id']}' of type 'reasoning' was provided without its required following item."
    known = log.find(item["id"])
    if follower is None:
        refuse(message, at, rule=6, code=None)
    if known is None:
        made_by_model = item_type(follower) in ("reasoning", "function_call") or follower.get("role") == "assistant"
        if not made_by_model:
            refuse(message, at, rule=6, code=None)
        return
    answer, position = known
    if not any(is_same(told, follower) for told in answer[position + 1 :]):
        refuse(message, at, rule=6, code=None)


def check_leader(item: dict[str, Any], kind: str, seen: set[str], log: AnswerLog, at: str) -> None:
    """
    Refuse an item sent with its id when the reasoning that led to it is not earlier in the request.
    """
    known = log.find(item["id"])
    if known is None:
        return
    answer, position = known
    needed = next((told["id"] for told in reversed(answer[:position]) if told.get("type") == "reasoning"), None)
    if needed is not None and needed not in seen:
        refuse(
            f"Item '{item['id']}' of type '{kind}' was provided without its required 'reasoning' item: '{needed}'.",
            at,
            rule=6,
            code=None,
        )


def is_same(told: dict[str, Any], item: dict[str, Any]) -> bool:
    """
    Say whether a request's item is the one that an answer held: by id, else by call id, else by text.
    """
    if told.get("type") != item_type(item):
        return False
    if "id" in item:
        return bool(item["id"] == told.get("id"))
    if told["type"] == "function_call":
        return bool(item.get("call_id") == told.get("call_id"))
    return item.get("role") == "assistant" and read_text(item) == read_text(told)


def read_text(item: dict[str, Any]) -> str:
    """
    Give a message's text, its parts joined.
    """
    content = item.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", part.get("refusal", ""))) for part in parts if isinstance(part, dict))
