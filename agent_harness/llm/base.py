"""
The contract between the turn and whatever answers it.

A `Model` takes a `Request` and yields `Delta` values. In words:

1. An answer is a list of items: messages, function calls, reasoning. Each begins with `ItemAdded`, whose ``index``
   counts 0, 1, 2 … in the answer's own order, and may be followed, interleaved with other items, by its deltas and one
   `ItemDone`. Nothing is said of an index before its `ItemAdded` or after its `ItemDone`.
2. The deltas of an item, joined, are all of its text. An adapter whose upstream sends a text only at the end of an item
   yields it as one delta.
3. A call is added only when its ``name`` is known. ``call_id`` is what the upstream gave, or "" when it gave none: the
   session decides which id is used. ``arguments`` of `ItemDone` is the full text as the model wrote it (an upstream
   that sends an object is turned into text here); None means: the joined deltas. The session judges whether it is an
   object.
4. The last value of an answer that ended by itself is exactly one `Ended`. A stream that stops without it was cut: the
   adapter raises `ModelError` with ``upstream_disconnected``; if it forgets to, the turn does it.
5. Failures are raised as `agent_harness.errors.ModelError`, with a code of that class and the provider's words. Nothing
   else is raised, whatever the upstream sent; anything else that escapes fails the turn as ``internal_error``.
6. Retries are the adapter's: only before its first `ItemAdded`, each announced by one `Retrying` before the wait.
7. The stream is closed (``aclose``) or its task cancelled at any moment; it then lets go of the upstream at once and
   swallows no cancellation.
8. Text holds no lone surrogates.
9. A model that computes its deltas without waiting for anything gives way to the event loop between two of them.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import attrs

from agent_harness.protocol.blocks import Block
from agent_harness.protocol.items import Usage
from agent_harness.protocol.tools import Tool, ToolChoice

__all__ = [
    "ArgumentsDelta",
    "Delta",
    "Ended",
    "ItemAdded",
    "ItemDone",
    "Model",
    "RefusalDelta",
    "Request",
    "RequestCache",
    "Retrying",
    "SummaryDelta",
    "TextDelta",
]


@attrs.define(eq=False)
class RequestCache:
    """
    One session's past as request bytes: what an adapter encoded once and need not encode again.

    ``key`` says for which provider, model and dialect; ``count`` how many blocks of the request ``data`` holds, joined
    by commas. Closed blocks never change, so an adapter only ever appends. Belongs to the session; the adapter fills
    it. ``ids`` are the provider's own item ids in ``data``, for an adapter that must send none twice. ``parts`` is how
    many outputs that are more than text the first ``parts_count`` blocks hold, whatever the key.
    """

    key: tuple[str, ...] = ()
    count: int = 0
    data: bytearray = attrs.field(factory=bytearray, repr=False)
    ids: set[str] = attrs.field(factory=set, repr=False)
    parts: int = 0
    parts_count: int = 0

    def reset(self, key: tuple[str, ...]) -> None:
        """
        Forget everything and hold bytes for *key* from now on.
        """
        self.key, self.count, self.data, self.ids = key, 0, bytearray(), set()


@attrs.frozen(kw_only=True)
class Request:
    """
    One model call. ``blocks[:closed]`` will begin every later request of the session too; the rest may still grow.
    """

    session_id: str
    provider: str
    model: str | None
    blocks: Sequence[Block]
    closed: int = 0
    instructions: str | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    reasoning: Mapping[str, Any] | None = None
    text: Mapping[str, Any] | None = None
    cache: RequestCache = attrs.field(factory=RequestCache, eq=False, repr=False)


@attrs.frozen
class ItemAdded:
    """
    An item of the answer begins. ``call_id`` and ``name`` are for function calls.
    """

    index: int
    type: Literal["message", "function_call", "reasoning"]
    call_id: str = ""
    name: str = ""


@attrs.frozen
class TextDelta:
    """
    More text of a message.
    """

    index: int
    delta: str
    content_index: int = 0


@attrs.frozen
class RefusalDelta:
    """
    More of a refusal, a content part of a message.
    """

    index: int
    delta: str
    content_index: int = 0


@attrs.frozen
class ArgumentsDelta:
    """
    More of a call's arguments, as written.
    """

    index: int
    delta: str


@attrs.frozen
class SummaryDelta:
    """
    More of a reasoning summary.
    """

    index: int
    delta: str
    summary_index: int = 0


@attrs.frozen
class ItemDone:
    """
    An item is whole. ``hidden`` is what this provider needs to get it back (it becomes the item's provenance);
    ``annotations`` belong to the message's text parts, by content index.
    """

    index: int
    arguments: str | None = None
    hidden: Mapping[str, Any] | None = None
    annotations: Mapping[int, tuple[Mapping[str, Any], ...]] | None = None


@attrs.frozen
class Retrying:
    """
    The upstream failed before any output; it is asked again after ``delay_s`` seconds. ``attempt`` counts from 1.
    """

    attempt: int
    delay_s: float
    reason: str


@attrs.frozen
class Ended:
    """
    The answer ended by itself. Any ``reason`` but ``completed`` means that it was cut there.
    """

    reason: Literal["completed", "max_output_tokens", "content_filter"] = "completed"
    usage: Usage = Usage()


Delta = ItemAdded | TextDelta | RefusalDelta | ArgumentsDelta | SummaryDelta | ItemDone | Retrying | Ended


class Model(Protocol):
    """
    Something that answers. The contract is this module's docstring.

    ``default_model`` is what a request without a model gets, None where the provider has no such thing.
    """

    @property
    def default_model(self) -> str | None: ...

    def stream(self, request: Request) -> AsyncIterator[Delta]:
        """
        Answer *request*; see the contract above.

        Raises:
            ModelError: the call failed.
        """
        ...

    def body(self, request: Request) -> bytes:
        """
        The JSON body that `stream` would send upstream: no keys, no headers. Pure.
        """
        ...
