"""
From the chunks of a Chat Completions stream to deltas. Pure.

Beside the tool calls (see `calls`):

- Only the choice with index 0, or without one, counts. Chunks without choices or delta, unknown fields and values of
  unknown shapes say nothing; ``usage`` is taken from any chunk, the last one wins.
- ``content`` may be a text or a list of parts. White space is held back until other text comes: an answer of nothing
  else makes no message, since it is only what models write between calls, and some servers refuse to get it back.
- ``reasoning_content`` or ``reasoning`` becomes one reasoning item; the text is kept under that key to be given back.
  Where it was empty, the first call keeps that: DeepSeek demands the key in every answer with calls.
- ``function_call``, the form before ``tool_calls``, counts only where there is none of these: llama-cpp-python sends
  each piece in both.
- A ``finish_reason`` ends the answer. Without one it was cut: ``upstream_disconnected``, or ``upstream_invalid`` if
  there was nothing in it at all.
- Some servers call it ``tool_calls`` when the token limit cut the last call. An answer that used up the limit it was
  given and ends with arguments that are no JSON object is one cut by length.
"""

import itertools
from collections.abc import Mapping
from typing import Any, Literal

from agent_harness.llm.base import Delta, Ended, ItemAdded, ItemDone, RefusalDelta, SummaryDelta, TextDelta
from agent_harness.llm.calls import CallAssembler
from agent_harness.llm.chat_request import REASONING_KEYS
from agent_harness.llm.surrogates import SurrogateJoiner
from agent_harness.llm.upstream import read_count
from agent_harness.llm.upstream_errors import BROKEN, CUT, UpstreamError, read_error
from agent_harness.protocol.items import Usage

__all__ = ["AnswerReader", "read_usage"]

_CUTS: Mapping[str, Literal["max_output_tokens", "content_filter"]] = {
    "length": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "max_output_tokens": "max_output_tokens",
    "model_length": "max_output_tokens",  # Mistral
    "model_context_window_exceeded": "max_output_tokens",  # GLM
    "content_filter": "content_filter",
    "safety": "content_filter",  # Gemini
    "sensitive": "content_filter",  # GLM
}
# OpenRouter, vLLM and SGLang, GLM, DeepSeek: the server gave up, whatever it had said so far.
_FAILURES = frozenset({"error", "abort", "aborted", "network_error", "insufficient_system_resource"})


class AnswerReader:
    """
    Makes deltas of the chunks of one answer. Pure.

    Args:
        limit: the bound on output tokens that was asked for.

    Attributes:
        finished: a ``finish_reason`` was read.
        has_usage: the usage was read.
        failure: the server said that it gave up.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.finished = False
        self.has_usage = False
        self._limit = limit
        self._usage = Usage()
        self._seen = False
        self._finish = ""
        self.failure: UpstreamError | None = None
        self._indexes = itertools.count()
        self._calls = CallAssembler(self._indexes)
        self._has_tool_calls = False
        self._message: int | None = None
        self._held: dict[str, list[str]] = {"text": [], "refusal": []}
        self._parts: dict[str, int] = {}
        self._joiners = {"text": SurrogateJoiner(), "refusal": SurrogateJoiner(), "reasoning": SurrogateJoiner()}
        self._reasoning: int | None = None
        self._reasoning_key: str | None = None
        self._thoughts: list[str] = []

    def feed(self, chunk: Mapping[str, Any]) -> list[Delta]:
        """
        What *chunk* adds to the answer.
        """
        deltas: list[Delta] = []
        self._read_usage(chunk)
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("index") in (0, None, "0"):
                self._read_choice(choice, deltas)
        return deltas

    def end(self) -> list[Delta]:
        """
        What is left to say when no chunk comes any more, `Ended` last.

        Raises:
            UpstreamError: the answer did not end by itself.
        """
        if self.failure is not None:
            raise self.failure
        if not self.finished:
            if not self._seen:
                raise BROKEN.error("The model server's answer had nothing in it.")
            raise CUT.error("The model server's answer stopped before its end (no finish_reason).")
        deltas: list[Delta] = []
        self._think(self._joiners["reasoning"].flush(), None, deltas)
        self._say(self._joiners["text"].flush(), "text", deltas)
        self._say(self._joiners["refusal"].flush(), "refusal", deltas)
        deltas += self._calls.finish()
        cut = _CUTS.get(self._finish)
        if cut is None and self._ran_out():
            cut = "max_output_tokens"
        if cut is not None:
            # Nothing of a cut answer is called whole.
            return [*deltas, Ended(cut, self._usage)]
        return [*deltas, *self._items_done(), Ended("completed", self._usage)]

    def _ran_out(self) -> bool:
        used = self._usage.output_tokens
        return self._limit is not None and used is not None and used >= self._limit and self._calls.ends_cut()

    def _items_done(self) -> list[ItemDone]:
        calls = self._calls.indexes()
        key, holder = self._reasoning_key, self._reasoning
        hidden = None if key is None else {key: "".join(self._thoughts)}
        if holder is None and key == "reasoning_content":
            holder = min(calls, default=None)
        indexes = [index for index in (self._message, self._reasoning, *calls) if index is not None]
        return [ItemDone(index, hidden=hidden if index == holder else None) for index in sorted(indexes)]

    def _read_usage(self, holder: Mapping[str, Any]) -> None:
        given = holder.get("usage")
        if isinstance(given, dict) and given:
            self._usage = read_usage(given)
            self.has_usage = True

    def _read_choice(self, choice: dict[str, Any], deltas: list[Delta]) -> None:
        self._seen = True
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            # A server that does not stream sends the whole message in one chunk; others repeat it at the end.
            begun = self._message is not None or self._reasoning is not None or self._calls.indexes()
            delta = None if begun else choice.get("message")
        if isinstance(delta, dict):
            self._read_delta(delta, deltas)
        self._read_usage(choice)  # Moonshot's place for it
        if choice.get("finish_reason"):
            self._read_finish(choice)

    def _read_delta(self, delta: dict[str, Any], deltas: list[Delta]) -> None:
        for key in REASONING_KEYS:
            text = delta.get(key)
            if isinstance(text, str):
                self._think(self._joiners["reasoning"].feed(text), key, deltas)
                if text:
                    break  # some servers send the same text under both keys
        content = delta.get("content")
        if isinstance(content, str):
            self._say(self._joiners["text"].feed(content), "text", deltas)
        elif content:
            self._read_parts(content, deltas)
        refusal = delta.get("refusal")
        if isinstance(refusal, str):
            self._say(self._joiners["refusal"].feed(refusal), "refusal", deltas)
        if delta.get("tool_calls"):
            self._has_tool_calls = True
            deltas += self._calls.feed(delta["tool_calls"])
        elif delta.get("function_call") and not self._has_tool_calls:
            deltas += self._calls.feed_function_call(delta["function_call"])

    def _read_parts(self, content: Any, deltas: list[Delta]) -> None:
        for part in content if isinstance(content, list) else [content]:
            if isinstance(part, str):
                part = {"text": part}
            if not isinstance(part, dict):
                continue
            thought = part.get("thinking")
            if isinstance(thought, list):  # Mistral
                thought = "".join(_string(inner.get("text")) for inner in thought if isinstance(inner, dict))
            self._think(self._joiners["reasoning"].feed(_string(thought)), None, deltas)
            self._say(self._joiners["text"].feed(_string(part.get("text"))), "text", deltas)
            self._say(self._joiners["refusal"].feed(_string(part.get("refusal"))), "refusal", deltas)

    def _say(self, text: str, kind: Literal["text", "refusal"], deltas: list[Delta]) -> None:
        if not text:
            return
        if kind not in self._parts:
            held = self._held[kind]
            held.append(text)
            if text.isspace():
                return
            text = "".join(held)
            if self._message is None:
                self._message = next(self._indexes)
                deltas.append(ItemAdded(self._message, "message"))
            self._parts[kind] = len(self._parts)
        assert self._message is not None
        said = TextDelta if kind == "text" else RefusalDelta
        deltas.append(said(self._message, text, self._parts[kind]))

    def _think(self, text: str, key: str | None, deltas: list[Delta]) -> None:
        if key is not None and (self._reasoning_key is None or (text and not self._thoughts)):
            self._reasoning_key = key
        if not text:
            return
        self._thoughts.append(text)
        if self._reasoning is None:
            if text.isspace():
                return
            text = "".join(self._thoughts)
            self._reasoning = next(self._indexes)
            deltas.append(ItemAdded(self._reasoning, "reasoning"))
        deltas.append(SummaryDelta(self._reasoning, text))

    def _read_finish(self, choice: dict[str, Any]) -> None:
        given = choice["finish_reason"]
        reason = given.lower() if isinstance(given, str) else "stop"
        self.finished = True
        if reason in _FAILURES:
            words = f"The model server gave up inside its answer (finish_reason {reason!r})."
            self.failure = UpstreamError(words, code="provider_unavailable", retryable=True)
            if choice.get("error"):
                self.failure = read_error(choice["error"])
        elif self._finish not in _CUTS:
            # Once cut, always cut, whatever a later chunk says.
            self._finish = reason


def read_usage(given: Mapping[str, Any]) -> Usage:
    """
    The tokens of a ``usage`` object; what is missing or no count is None.
    """
    prompt, completion = given.get("prompt_tokens_details"), given.get("completion_tokens_details")
    cached = read_count(prompt.get("cached_tokens")) if isinstance(prompt, dict) else None
    if cached is None:
        # DeepSeek's and Moonshot's names.
        cached = read_count(given.get("prompt_cache_hit_tokens", given.get("cached_tokens")))
    return Usage(
        input_tokens=read_count(given.get("prompt_tokens")),
        output_tokens=read_count(given.get("completion_tokens")),
        total_tokens=read_count(given.get("total_tokens")),
        cached_tokens=cached,
        reasoning_tokens=read_count(completion.get("reasoning_tokens")) if isinstance(completion, dict) else None,
    )


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""
