"""
The words of the contracts in `contracts`: the answers that a model is to give, and the model under check.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal

import attrs

from agent_harness.llm.base import Model
from agent_harness.protocol.items import Usage
from agent_harness.testing.strict import Dialect

__all__ = ["Answer", "Call", "Make", "Subject"]


@attrs.frozen
class Call:
    """
    A function call. ``call_id`` "" means that the upstream gives none, or one of its own making.
    """

    name: str
    arguments: str
    call_id: str = ""


@attrs.frozen(kw_only=True)
class Answer:
    """
    One answer of a script: reasoning, then a text in these pieces, then calls; each only if it is given.

    ``end`` says what comes then:

    - ``completed``, ``max_output_tokens``, ``content_filter``: what `Ended` must say
    - ``refused``: nothing of the above; the request is refused for good with *words* (a 400)
    - ``busy``: nothing of the above; the server cannot answer now and says *words* (a 503)
    - ``broken``: the connection breaks before the last piece
    - ``silent``: nothing more comes before the last piece, and the connection stays open until the model closes it

    A piece of text may end inside a character, as half a surrogate pair; where a dialect has no way to send that, the
    whole character is sent. ``usage`` is what the upstream reports, None for nothing.
    """

    think: str | None = None
    text: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    end: Literal["completed", "max_output_tokens", "content_filter", "refused", "busy", "broken", "silent"] = (
        "completed"
    )
    words: str = "No such thing."
    usage: Usage | None = None


@attrs.frozen(kw_only=True)
class Subject:
    """
    A model to be checked.

    Args:
        model: it will give the script's answers.
        dialect: the dialect of its bodies, which STRICT then judges; None for one of its own.
        open: how many requests the upstream is answering now; None if that cannot be known.
    """

    model: Model
    dialect: Dialect | None = None
    open: Callable[[], Awaitable[int]] | None = None


Make = Callable[[Sequence[Answer]], AbstractAsyncContextManager[Subject]]
