"""
What a session answers to commands, and what it needs of the harness around it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from agent_harness.config import Limits
from agent_harness.engine.watch import Watch
from agent_harness.llm.base import Model
from agent_harness.protocol.turns import RequiredAction

if TYPE_CHECKING:
    from agent_harness.engine.journal import Journal

__all__ = ["Accepted", "Interrupted", "Sent", "SessionHost"]


class SessionHost(Protocol):
    """
    What a session needs of the harness around it.
    """

    limits: Limits
    default_provider: str
    draining: bool
    watch: Watch
    journal: "Journal | None"
    parked: asyncio.Event

    def find_model(self, provider: str) -> Model:
        """
        The model of a provider; raises ModelError (``provider_not_found``).
        """

    def spawn(
        self, coroutine: Coroutine[Any, Any, None], left: Callable[[asyncio.Task[None]], None]
    ) -> asyncio.Task[None]:
        """
        Run a turn in a task of its own; *left* is called when it is over.
        """


@attrs.frozen(kw_only=True)
class Sent:
    """
    The answer to a message; ``waiting_for`` only when it is queued.
    """

    queued: bool
    item_id: str
    response_id: str
    seq: int
    waiting_for: tuple[RequiredAction, ...] | None = None


@attrs.frozen(kw_only=True)
class Accepted:
    """
    The answer to a result.
    """

    accepted: bool = True
    duplicate: bool
    item_id: str
    call_id: str
    seq: int


@attrs.frozen(kw_only=True)
class Interrupted:
    """
    The answer to an interrupt; ``dropped`` are the item ids of messages that no longer wait.
    """

    interrupted: bool
    response_id: str | None
    dropped: tuple[str, ...]
    seq: int
