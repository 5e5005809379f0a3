"""
From the events of a Responses stream to deltas. Pure: no connection, no loop.

Servers that imitate the API differ in what they leave out. So an item is known by its id, else by its ``output_index``;
a text that came in no delta is taken from the events that repeat it; and what the stream said wins over what its last
event says again. Raw reasoning (``reasoning_text``) is no summary: it is passed on as one only when its item ends with
neither a summary nor encrypted content, so that a local model's reasoning is not lost.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import orjson

from agent_harness.llm.base import (
    ArgumentsDelta,
    Delta,
    Ended,
    ItemAdded,
    ItemDone,
    RefusalDelta,
    SummaryDelta,
    TextDelta,
)
from agent_harness.llm.calls import arguments_text
from agent_harness.llm.responses_items import ItemLog, ItemType, OpenItem, StreamedText, as_index, as_item_type, as_name
from agent_harness.llm.surrogates import join_halves
from agent_harness.llm.upstream import Event, UpstreamError, read_count, read_error
from agent_harness.protocol.items import Usage

__all__ = ["AnswerReader"]

_log = logging.getLogger(__name__)

# Event type: the item it belongs to, the kind of text, the keys of the text and of its index, whether it is all of it.
_TEXTS: dict[str, tuple[ItemType, str, str, str, bool]] = {
    "response.output_text.delta": ("message", "text", "delta", "content_index", False),
    "response.output_text.done": ("message", "text", "text", "content_index", True),
    "response.refusal.delta": ("message", "refusal", "delta", "content_index", False),
    "response.refusal.done": ("message", "refusal", "refusal", "content_index", True),
    "response.function_call_arguments.delta": ("function_call", "arguments", "delta", "", False),
    "response.function_call_arguments.done": ("function_call", "arguments", "arguments", "", True),
    "response.reasoning_summary_text.delta": ("reasoning", "summary", "delta", "summary_index", False),
    "response.reasoning_summary_text.done": ("reasoning", "summary", "text", "summary_index", True),
    "response.reasoning_text.delta": ("reasoning", "raw", "delta", "content_index", False),
    "response.reasoning_text.done": ("reasoning", "raw", "text", "content_index", True),
}
_DELTAS: dict[str, Callable[[Any, str, int], Delta]] = {
    "response.output_text.delta": TextDelta,
    "response.refusal.delta": RefusalDelta,
    "response.reasoning_summary_text.delta": SummaryDelta,
    "response.function_call_arguments.delta": lambda index, delta, number: ArgumentsDelta(index, delta),
}
_PART_KINDS = {
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
    "summary_text": "summary",
    "reasoning_text": "raw",
}
_TERMINAL = frozenset({"response.completed", "response.incomplete", "response.done"})


Key = tuple[object, object, object, object]


def _find_key(event: Mapping[str, Any]) -> Key:
    """
    What events of one text have in common.
    """
    return event.get("type"), event.get("item_id"), event.get("content_index"), event.get("summary_index")


class AnswerReader:
    """
    Reads one answer. ``ended`` is set once its end marker was read, ``failure`` once it said that it failed; the deltas
    before it come first.
    """

    def __init__(self) -> None:
        self._items = ItemLog()
        # Texts by what their events call them: nearly all events are more of one that is known.
        self._known: dict[Key, tuple[OpenItem, int, StreamedText]] = {}
        self._added = 0
        self._has_cut_call = False
        self._out: list[Delta] = []
        self.ended: Ended | None = None
        self.failure: UpstreamError | None = None

    def read_all(self, events: Iterable[Event]) -> list[Delta]:
        """
        The deltas of some events, up to the end or a failure.
        """
        deltas: list[Delta] = []
        try:
            for name, event in events:
                if self._read_more(event, deltas):
                    continue
                deltas += self.read(name, event)
                if self.ended is not None:
                    break
        except UpstreamError as error:
            self.failure = error
        return deltas

    def read(self, name: str, event: Mapping[str, Any]) -> list[Delta]:
        """
        The deltas of one event; none for an event that says nothing new, or of a kind that is not known.

        Raises:
            UpstreamError: the answer failed.
        """
        kind = event.get("type")
        if not kind or not isinstance(kind, str):
            kind = name
        self._out = []
        text = _TEXTS.get(kind)
        if text is not None:
            self._read_text(event, *text)
        elif kind in _TERMINAL:
            self._read_end(kind, event)
        else:
            handler = _HANDLERS.get(kind)
            if handler is not None:
                handler(self, event)
        return self._out

    def _read_added(self, event: Mapping[str, Any]) -> None:
        value = _as_dict(event.get("item"))
        item_type = as_item_type(value.get("type"))
        if item_type is None:
            return
        item = self._items.begin(value, item_type, as_index(event.get("output_index")))
        # A message begins with its first text: one that stays empty is none.
        if not item.done and (item.type == "reasoning" or item.name):
            self._begin(item)

    def _read_done(self, event: Mapping[str, Any]) -> None:
        value = _as_dict(event.get("item"))
        item_type = as_item_type(value.get("type"))
        if item_type is not None:
            self._end(self._items.end(value, item_type, as_index(event.get("output_index"))), value)

    def _read_text(
        self,
        event: Mapping[str, Any],
        item_type: ItemType,
        kind: str,
        key: str,
        index_key: str,
        is_full: bool,
    ) -> None:
        item_id, index = as_name(event.get("item_id")), as_index(event.get(index_key))
        item = self._items.grow(item_id, item_type, as_index(event.get("output_index")))
        if item.done:
            return
        # Only where its own type says what it is: that is what the key is made of.
        if not is_full and as_name(event.get("type")) in _DELTAS and self._items.is_known(item_id, item):
            with contextlib.suppress(TypeError):
                self._known[_find_key(event)] = item, *item.part(kind, index or 0)
        if kind == "arguments":
            text = arguments_text(event.get(key))
            item.name = item.name or as_name(event.get("name"))
            if is_full and text:
                item.arguments = join_halves(text)
        else:
            text = as_name(event.get(key))
        self._say(item, kind, index or 0, text, is_full)

    def _read_more(self, event: Mapping[str, Any], deltas: list[Delta]) -> bool:
        """
        Read one more piece of a text that is known, as most events are, without looking for its item anew; whether it
        was one.
        """
        text = event.get("delta")
        if not isinstance(text, str):
            return False
        try:
            found = self._known.get(_find_key(event))
        except TypeError:
            # Something in it is a list, or an object.
            return False
        if found is None or found[0].index is None or found[0].done:
            return False
        item, number, streamed = found
        more = streamed.add(text)
        if more:
            deltas.append(_DELTAS[event["type"]](item.index, more, number))
        return True

    def _read_annotation(self, event: Mapping[str, Any]) -> None:
        item = self._items.grow(as_name(event.get("item_id")), "message", as_index(event.get("output_index")))
        if not item.done:
            number, _ = item.part("text", as_index(event.get("content_index")) or 0)
            item.annotations.setdefault(number, []).extend(_read_annotations([event.get("annotation")]))

    def _read_end(self, kind: str, event: Mapping[str, Any]) -> None:
        response = _as_dict(event.get("response"))
        status = response.get("status")
        if status == "failed":
            raise read_error(response)
        for value, item in self._items.pair(_list_items(response.get("output"))):
            self._end(item, value)
        for item in self._items.items:
            self._end(item, {})
        is_cut = kind == "response.incomplete" or status == "incomplete" or self._has_cut_call
        reason: Literal["completed", "max_output_tokens", "content_filter"] = "completed"
        if is_cut:
            given = as_name(_as_dict(response.get("incomplete_details")).get("reason"))
            reason = "content_filter" if "filter" in given else "max_output_tokens"
        self.ended = Ended(reason, _read_usage(response.get("usage")))

    def _begin(self, item: OpenItem) -> bool:
        """
        Add the item to the answer, unless it is a call whose name has not come yet. Whether it is in the answer now.
        """
        if item.index is None and (item.type != "function_call" or item.name):
            item.index = self._added
            self._added += 1
            is_call = item.type == "function_call"
            self._out.append(ItemAdded(item.index, item.type, item.call_id if is_call else "", item.name))
            held = item.parts.get(("arguments", 0))
            if held is not None and held[1].text:
                self._out.append(ArgumentsDelta(item.index, held[1].text))
        return item.index is not None

    def _say(self, item: OpenItem, kind: str, index: int, text: str, is_full: bool) -> None:
        number, streamed = item.part(kind, index)
        was_begun = item.index is not None
        more = streamed.close(text) if is_full else streamed.add(text)
        if kind == "raw" or not more or not self._begin(item) or item.index is None:
            return
        if kind == "text":
            self._out.append(TextDelta(item.index, more, number))
        elif kind == "refusal":
            self._out.append(RefusalDelta(item.index, more, number))
        elif kind == "summary":
            self._out.append(SummaryDelta(item.index, more, number))
        elif was_begun:
            # Else `_begin` has given all that was held back.
            self._out.append(ArgumentsDelta(item.index, more))

    def _end(self, item: OpenItem, value: Mapping[str, Any]) -> None:
        """
        End the item with what *value*, the whole item if it was sent, has beyond the stream.
        """
        if item.done:
            return
        if item.type == "function_call":
            self._fill_call(item, value)
        else:
            self._fill_texts(item, value)
        for (kind, index), (_, streamed) in list(item.parts.items()):
            if not streamed.closed:
                self._say(item, kind, index, "", True)
        _note_hidden(item, value)
        if item.type == "reasoning":
            self._fill_reasoning(item)
        item.done = True
        if item.type == "function_call" and not item.name:
            _log.warning("a function call without a name was ignored (call_id %r)", item.call_id)
        if item.index is not None:
            annotations = {number: tuple(found) for number, found in item.annotations.items() if found}
            self._out.append(ItemDone(item.index, item.arguments, item.hidden or None, annotations or None))

    def _fill_call(self, item: OpenItem, value: Mapping[str, Any]) -> None:
        self._has_cut_call = self._has_cut_call or value.get("status") == "incomplete"
        item.name = item.name or as_name(value.get("name"))
        if item.index is None:
            item.call_id = item.call_id or as_name(value.get("call_id"))
        text = join_halves(arguments_text(value.get("arguments")))
        # The whole text, where it was sent, is what the model wrote, even if a delta got lost.
        item.arguments = text or item.arguments
        if text:
            self._say(item, "arguments", 0, text, True)
        self._begin(item)

    def _fill_texts(self, item: OpenItem, value: Mapping[str, Any]) -> None:
        taken: dict[str, int] = {}
        for part in [*_list_parts(value.get("content")), *_list_parts(value.get("summary"))]:
            kind = _PART_KINDS.get(as_name(part.get("type")))
            if kind is None or (item.type == "reasoning") != (kind in ("summary", "raw")):
                continue
            # The first text of the item is the first that was streamed, whatever indexes were given.
            place = taken.get(kind, 0)
            taken[kind] = place + 1
            known = sorted(index for own_kind, index in item.parts if own_kind == kind)
            index = known[place] if place < len(known) else max(known, default=-1) + 1
            self._say(item, kind, index, as_name(part.get("refusal" if kind == "refusal" else "text")), True)
            annotations = _read_annotations(part.get("annotations"))
            if annotations:
                item.annotations[item.part(kind, index)[0]] = annotations

    def _fill_reasoning(self, item: OpenItem) -> None:
        self._begin(item)
        has_summary = any(streamed.text for _, streamed in item.texts("summary"))
        if has_summary or "encrypted_content" in item.hidden or item.index is None:
            return
        for number, (_, streamed) in enumerate(item.texts("raw")):
            if streamed.text:
                self._out.append(SummaryDelta(item.index, streamed.text, number))


_HANDLERS: dict[str, Callable[[AnswerReader, Mapping[str, Any]], None]] = {
    "response.output_item.added": AnswerReader._read_added,
    "response.output_item.done": AnswerReader._read_done,
    "response.output_text.annotation.added": AnswerReader._read_annotation,
}


def _note_hidden(item: OpenItem, value: Mapping[str, Any]) -> None:
    """
    Keep what the provider needs to get back, as it gave it.
    """
    keys = ("id", "encrypted_content") if item.type == "reasoning" else ("id",)
    for key in keys:
        given = as_name(value.get(key)) or (item.id if key == "id" else "")
        if given and given.isascii():
            item.hidden[key] = given


def _read_annotations(value: object) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for annotation in value if isinstance(value, list) else []:
        try:
            orjson.dumps(annotation)
        except TypeError:
            # Half a character in it, or a number too large: it could not be kept.
            continue
        if isinstance(annotation, dict):
            found.append(annotation)
    return found


def _read_usage(value: object) -> Usage:
    usage = _as_dict(value)
    return Usage(
        input_tokens=read_count(usage.get("input_tokens")),
        output_tokens=read_count(usage.get("output_tokens")),
        total_tokens=read_count(usage.get("total_tokens")),
        cached_tokens=read_count(_as_dict(usage.get("input_tokens_details")).get("cached_tokens")),
        reasoning_tokens=read_count(_as_dict(usage.get("output_tokens_details")).get("reasoning_tokens")),
    )


def _list_items(value: object) -> list[dict[str, Any]]:
    values = value if isinstance(value, list) else []
    return [item for item in values if isinstance(item, dict) and as_item_type(item.get("type"))]


def _list_parts(value: object) -> list[dict[str, Any]]:
    if isinstance(value, str):
        return [{"type": "output_text", "text": value}]
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


def _as_dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
