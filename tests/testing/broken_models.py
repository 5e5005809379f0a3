"""
Scripted models under the contracts: one that keeps them, and for each contract one that breaks it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import orjson

from agent_harness.errors import ModelError
from agent_harness.llm.base import Delta, Ended, ItemAdded, ItemDone, Request, Retrying, TextDelta
from agent_harness.llm.scripted import ScriptedModel, Step, call, say, think
from agent_harness.llm.surrogates import SurrogateJoiner
from agent_harness.protocol.items import Usage
from agent_harness.testing.contracts import Answer, Make, Subject
from agent_harness.testing.strict import Dialect

__all__ = ["BROKEN", "CountingModel", "HalfCharacters", "scripted"]


class CountingModel(ScriptedModel):
    """
    Knows how many of its streams are open: the nearest thing to an upstream that it has.
    """

    open = 0

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        self.open += 1
        try:
            async with contextlib.aclosing(super().stream(request)) as deltas:  # type: ignore[type-var]
                async for delta in deltas:
                    yield delta
        finally:
            self.open -= 1


def to_step(answer: Answer) -> Step | ModelError:
    """
    What the scripted model says for an answer of a contract.
    """
    if answer.end in ("refused", "busy"):
        code = "provider_rejected" if answer.end == "refused" else "provider_unavailable"
        return ModelError(answer.words, code=code)
    step = Step(())
    if answer.think is not None:
        step += think(answer.think)
    if answer.text:
        joiner = SurrogateJoiner()
        pieces = [piece for piece in [*map(joiner.feed, answer.text), joiner.flush()] if piece]
        step += say(*pieces)
    for made in answer.calls:
        step += call(made.name, made.arguments, made.call_id)
    if answer.end in ("broken", "silent"):
        last = max(place for place, part in enumerate(step.parts) if not isinstance(part, ItemAdded | ItemDone))
        broken = ModelError("The connection broke.", code="upstream_disconnected")
        return Step((*step.parts[:last], broken if answer.end == "broken" else asyncio.Event()))
    return Step((*step.parts, Ended(answer.end, answer.usage or Usage())))  # type: ignore[arg-type]


def scripted(model_class: type[CountingModel] = CountingModel, dialect: Dialect | None = None) -> Make:
    """
    Makes subjects of that class.
    """

    @asynccontextmanager
    async def make(script: Sequence[Answer]) -> AsyncIterator[Subject]:
        model = model_class([to_step(answer) for answer in script])

        async def count_open() -> int:
            return model.open

        yield Subject(model=model, dialect=dialect, open=count_open)

    return make


class Altering(CountingModel):
    """
    Says something else than its script: each delta as `alter` changes it.
    """

    def alter(self, delta: Delta) -> list[Delta]:
        return [delta]

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        async with contextlib.aclosing(super().stream(request)) as deltas:  # type: ignore[type-var]
            async for delta in deltas:
                for said in self.alter(delta):
                    yield said


class WrongIndex(Altering):
    def alter(self, delta: Delta) -> list[Delta]:
        moved: Any = delta
        return [attrs.evolve(moved, index=moved.index + 1)] if hasattr(delta, "index") else [delta]


class TextTwice(Altering):
    def alter(self, delta: Delta) -> list[Delta]:
        return [delta, delta] if isinstance(delta, TextDelta) else [delta]


class ArgumentsRewritten(Altering):
    def alter(self, delta: Delta) -> list[Delta]:
        if isinstance(delta, ItemDone) and delta.arguments is not None:
            return [attrs.evolve(delta, arguments=orjson.dumps(orjson.loads(delta.arguments)).decode())]
        return [delta]


class NeverCut(Altering):
    def alter(self, delta: Delta) -> list[Delta]:
        return [attrs.evolve(delta, reason="completed")] if isinstance(delta, Ended) else [delta]


class RawErrors(CountingModel):
    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        try:
            async for delta in super().stream(request):
                yield delta
        except ModelError as error:
            raise ConnectionError(str(error)) from error


class AsksAgainTooLate(CountingModel):
    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        try:
            async for delta in super().stream(request):
                yield delta
        except ModelError as error:
            yield Retrying(1, 0.0, str(error))
            async for delta in super().stream(request):
                yield delta


class HoldsOn(CountingModel):
    """
    Goes on in a task of its own when its stream is closed.
    """

    tasks: list[asyncio.Task[Any]]

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        self.tasks = [*getattr(self, "tasks", ()), asyncio.create_task(asyncio.Event().wait())]
        async for delta in super().stream(request):
            yield delta


class SwallowsCancellation(CountingModel):
    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        try:
            async for delta in super().stream(request):
                yield delta
        except asyncio.CancelledError:
            return


class HalfCharacters(Altering):
    def alter(self, delta: Delta) -> list[Delta]:
        return [attrs.evolve(delta, delta="\ud83d")] if isinstance(delta, TextDelta) else [delta]


class NeverGivesWay(CountingModel):
    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        step: Any = self.steps.popleft()
        for part in step.parts:
            yield part


class CountingBody(CountingModel):
    def body(self, request: Request) -> bytes:
        self.open += 1
        return orjson.dumps({"nonce": self.open})


class NoOutputs(CountingModel):
    def body(self, request: Request) -> bytes:
        items = [
            {"type": "function_call", "call_id": item.call_id, "name": item.name, "arguments": item.arguments}
            if item.type == "function_call"
            else {"role": "user", "content": "…"}
            for block in request.blocks
            for item in block.items
            if item.type != "reasoning"
        ]
        return orjson.dumps({"model": "m", "input": items, "store": False})


class SharesState(CountingModel):
    current: Any = None

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        self.current = super().stream(request)
        while True:
            try:
                delta = await anext(self.current)
            except (StopAsyncIteration, RuntimeError):
                return
            yield delta


class InventsUsage(Altering):
    def alter(self, delta: Delta) -> list[Delta]:
        return [attrs.evolve(delta, usage=Usage(input_tokens=0))] if isinstance(delta, Ended) else [delta]


BROKEN: list[tuple[int, str, type[CountingModel]]] = [
    (1, "has the index 1", WrongIndex),
    (2, "One One two two", TextTwice),
    (3, "widget_id", ArgumentsRewritten),
    (4, "ended 'completed' where the upstream ended max_output_tokens", NeverCut),
    (5, "ConnectionError", RawErrors),
    (6, "asked again after output", AsksAgainTooLate),
    (7, "is left after its stream was closed", HoldsOn),
    (7, "a cancellation became", SwallowsCancellation),
    (8, "half a character", HalfCharacters),
    (9, "nothing else ran", NeverGivesWay),
    (10, "the same request gave two bodies", CountingBody),
    (11, "No tool output found", NoOutputs),
    (12, "two at once said", SharesState),
    (13, "it reported Usage", InventsUsage),
    (14, "a cancellation at delta 1 became", SwallowsCancellation),
]
