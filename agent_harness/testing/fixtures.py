"""
What the fixtures of the pytest plugin are made of, for fixtures of one's own with another scope.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
from aiohttp import web

from agent_harness.config import Settings
from agent_harness.engine.harness import Harness
from agent_harness.errors import ModelError
from agent_harness.llm.base import Delta, ItemAdded, Request, TextDelta
from agent_harness.llm.scripted import ScriptedModel, Step
from agent_harness.protocol.items import InputText, Message
from agent_harness.server import make_app
from agent_harness.testing.mock_object import MockLLM
from agent_harness.testing.mock_script import shorten
from agent_harness.testing.threads import ThreadServer
from agent_harness.wiring import make_models, open_harness

__all__ = ["CheckedModel", "HarnessServer", "make_harness", "serve_harness"]


@attrs.frozen
class HarnessServer:
    """
    A server on a real socket; ``url`` is where it is, without ``/v1`` and without a slash at the end.
    """

    url: str

    def __str__(self) -> str:
        return self.url


@contextmanager
def serve_harness(settings: Settings) -> Iterator[HarnessServer]:
    """
    A harness of *settings*, served from a thread of its own on a free port.
    """

    async def make() -> web.Application:
        return make_app(open_harness(settings))

    with ThreadServer(make) as server:
        yield HarnessServer(server.url)


def make_harness(mock: MockLLM, scripted: ScriptedModel | None = None) -> Harness:
    """
    A harness with the providers ``default`` (*mock*, over HTTP) and, if it is given, ``scripted``; close it.
    """
    models = dict(make_models(mock.settings()))
    return Harness(models if scripted is None else {**models, "scripted": scripted})


class CheckedModel(ScriptedModel):
    """
    A scripted model that knows which of its steps nobody asked for, and which calls found none.
    """

    def __init__(self, steps: Iterable[Any] = ()) -> None:
        super().__init__(steps)
        self.lacking: list[int] = []

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        """
        The next step of the script.

        Raises:
            ModelError: the script says so, or has no step left.
        """
        if not self.steps:
            self.lacking.append(len(self.requests))
        async for delta in super().stream(request):
            yield delta

    def problems(self) -> list[str]:
        """
        What does not fit, one line each.
        """
        done = len(self.requests) - len(self.lacking)
        left = list(enumerate(self.steps, done + 1))
        lines = [f"scripted_model: step {number} ({_describe(step)}) was never asked for" for number, step in left]
        for index in self.lacking:
            said = shorten(_user_text(self.requests[index]))
            lines.append(f"scripted_model: model call {index + 1} (user text {said}) had no step left")
        return lines


def _describe(step: Any) -> str:
    if isinstance(step, ModelError):
        return f"error {step.code}"
    if not isinstance(step, Step):
        return "a function"
    names = [f"call {part.name}" for part in step.parts if isinstance(part, ItemAdded) and part.name]
    text = "".join(part.delta for part in step.parts if isinstance(part, TextDelta))
    return " ".join([*([f"say {shorten(text)}"] if text else []), *names]) or "an answer"


def _user_text(request: Request) -> str:
    said = [block.items[0] for block in request.blocks if block.is_user]
    if not said or not isinstance(said[-1], Message):
        return ""
    return "".join(part.text for part in said[-1].content if isinstance(part, InputText))
