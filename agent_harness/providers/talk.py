"""
A conversation with a model server through an in-process harness, each wait bounded, and what is seen of it: what the
probes are made of.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import attrs

from agent_harness.engine.harness import Harness
from agent_harness.engine.session import Session
from agent_harness.errors import ModelError
from agent_harness.llm.base import Delta, Ended, ItemAdded, Model, Request, TextDelta
from agent_harness.protocol import events as said
from agent_harness.protocol.agents import Agent
from agent_harness.protocol.commands import CreateSession, Interrupt, MessageData, OutputData, SendMessage
from agent_harness.protocol.items import Message, OutputText, Refusal
from agent_harness.protocol.tools import Tool, ToolChoice
from agent_harness.protocol.turns import RequiredAction

__all__ = ["TOOL", "ProbeFailed", "Rest", "Talk", "Watched"]

TURN_S = 120.0
"""Longest wait for one turn to end or to ask for its tool, in seconds."""

MAX_ROUNDS = 3
"""How often a model that calls its tool again and again is answered."""

TOOL = Tool(
    name="lookup_widget",
    description="Look up a widget by id and return its color.",
    parameters={
        "type": "object",
        "properties": {"widget_id": {"type": "integer", "description": "Widget id, e.g. 42."}},
        "required": ["widget_id"],
    },
)


class ProbeFailed(Exception):
    """
    The server did not do what the harness needs.

    Args:
        code: the turn's error code; ``timeout`` where it came to no rest, ``unexpected`` where it went well but not as
            it should.
        message: in the server's words where it gave some.
        unreachable: whether the server could not be asked at all.
    """

    def __init__(self, code: str, message: str, *, unreachable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.unreachable = unreachable


class Watched:
    """
    A model, and what came from it: ids of calls, how many pieces of text, the ends of answers, the last failure.
    """

    def __init__(self, model: Model) -> None:
        self.default_model = model.default_model
        self.call_ids: list[str] = []
        self.pieces = 0
        self.ends: list[Ended] = []
        self.failure: ModelError | None = None
        self._model = model

    def body(self, request: Request) -> bytes:
        """
        The model's own.
        """
        return self._model.body(request)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """
        The model's own, noted down.
        """
        stream: Any = self._model.stream(request)
        async with aclosing(stream):
            try:
                async for delta in stream:
                    self._note(delta)
                    yield delta
            except ModelError as error:
                self.failure = error
                raise

    async def aclose(self) -> None:
        """
        Close the model.
        """
        close = getattr(self._model, "aclose", None)
        if close is not None:
            await close()

    @property
    def is_unreachable(self) -> bool:
        """
        Whether the last failure came before any answer: it goes back to an exception that is no HTTP status.
        """
        cause = None if self.failure is None else self.failure.__cause__
        is_connect = self.failure is not None and self.failure.code == "provider_unavailable"
        return is_connect and cause is not None and not hasattr(cause, "status_code")

    def _note(self, delta: Delta) -> None:
        if isinstance(delta, ItemAdded) and delta.type == "function_call":
            self.call_ids.append(delta.call_id)
        elif isinstance(delta, TextDelta):
            self.pieces += 1
        elif isinstance(delta, Ended):
            self.ends.append(delta)


@attrs.frozen
class Rest:
    """
    Where a turn came to rest: its status, what it said so far, the calls that wait.
    """

    status: str
    text: str
    calls: tuple[RequiredAction, ...]


class Talk:
    """
    One session with the server. ``choices`` are the tool choices left to try; all talks of a check share them.
    """

    def __init__(self, harness: Harness, model: Watched, agent: Agent, choices: list[ToolChoice]) -> None:
        self.model = model
        self.choices = choices
        self._session: Session = harness.create(CreateSession(agent=agent))
        self._events = self._follow()
        self._turn_id = ""

    async def say(self, text: str, *, choice: ToolChoice | None = None) -> Rest:
        """
        Send a message, with the tool if there is a *choice*, and wait until its turn rests.

        Raises:
            ProbeFailed: the turn failed, or did not rest in time.
        """
        self.send(text, choice=choice)
        return await self.rest()

    def send(self, text: str, *, choice: ToolChoice | None = None) -> None:
        """
        Send a message.
        """
        tools = None if choice is None else (TOOL,)
        message = SendMessage(data=MessageData(content=text), tools=tools, tool_choice=choice)
        self._turn_id = self._session.send(message).response_id

    async def answer(self, output: str | tuple[Any, ...]) -> Rest:
        """
        Answer every call that waits, and those that the model makes again; a model that cannot stop is interrupted.

        Raises:
            ProbeFailed: the turn failed, or did not rest in time.
        """
        rest = Rest("waiting", "", ())
        for _ in range(MAX_ROUNDS):
            calls = [action.call_id for action in self._session.transcript.required_actions()]
            results = [OutputData(call_id=call_id, output=output) for call_id in calls]
            self._session.submit_all(results, ["data"] * len(results))
            rest = await self.rest()
            if not rest.calls:
                return rest
        await self.interrupt()
        return Rest("cancelled", rest.text, ())

    async def interrupt(self) -> bool:
        """
        Interrupt the running turn; False where it was over already.
        """
        interrupted = (await self._session.interrupt(Interrupt())).interrupted
        if interrupted:
            await self._wait(self._is_rest)
        return interrupted

    async def wait_for_text(self) -> None:
        """
        Wait for the first text, or the turn's rest.
        """
        await self._wait(lambda event: isinstance(event, said.TextDelta) or self._is_rest(event))

    async def rest(self) -> Rest:
        """
        Wait until the turn rests.

        Raises:
            ProbeFailed: the turn failed, or did not rest in time.
        """
        await self._wait(self._is_rest)
        session = self._session
        turn = session.transcript.turns[self._turn_id]
        if turn.error is not None:
            raise ProbeFailed(turn.error.code, turn.error.message, unreachable=self.model.is_unreachable)
        own = [item for item in session.transcript.items() if item.response_id == turn.id]
        spoken = [part for item in own if isinstance(item, Message) and item.origin == "model" for part in item.content]
        text = "".join(_text_of(part) for part in spoken)
        status = "waiting" if session.status == "waiting" else turn.status
        return Rest(status, text, session.transcript.required_actions())

    def _is_rest(self, event: said.Event) -> bool:
        if isinstance(event, said.TERMINAL_EVENTS):
            return event.response.id == self._turn_id
        return isinstance(event, said.SessionStatus) and (event.status, event.response_id) == ("waiting", self._turn_id)

    async def _wait(self, wanted: Callable[[said.Event], bool]) -> None:
        try:
            async with asyncio.timeout(TURN_S):
                async for event in self._events:
                    if wanted(event):
                        return
        except TimeoutError:
            raise ProbeFailed("timeout", f"The turn did not come to rest within {TURN_S:g} s.") from None

    async def _follow(self) -> AsyncIterator[said.Event]:
        follower = self._session.follow("0")
        while events := await follower.take():
            for published in events:
                if published.numbered:
                    yield published.event


def _text_of(part: object) -> str:
    if isinstance(part, OutputText):
        return part.text
    return part.refusal if isinstance(part, Refusal) else ""
