"""
The probes of a model server: turns of an in-process harness, each in a session of its own, each wait bounded.

A probe returns what it saw, in sentences, and raises `ProbeFailed` where the server did not do what the harness needs.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
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
from agent_harness.protocol.items import InputImage, InputText, Message, OutputText, Refusal
from agent_harness.protocol.tools import CALL_ID_MAX, NamedChoice, Tool, ToolChoice
from agent_harness.protocol.turns import RequiredAction

__all__ = ["PROBES", "Probe", "ProbeFailed", "Talk", "Watched"]

TURN_S = 120.0
"""Longest wait for one turn to end or to ask for its tool, in seconds."""

OUTPUT_BOUND = 1024
SMALL_BOUND = 16

TOOL = Tool(
    name="lookup_widget",
    description="Look up a widget by id and return its color.",
    parameters={
        "type": "object",
        "properties": {"widget_id": {"type": "integer", "description": "Widget id, e.g. 42."}},
        "required": ["widget_id"],
    },
)
AGENT = Agent(
    instructions="You are a helpful assistant. Answer in one short sentence.",
    max_output_tokens=OUTPUT_BOUND,
    parallel_tool_calls=False,
)
# One red pixel.
IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
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
    One session with the server.
    """

    def __init__(self, harness: Harness, model: Watched, agent: Agent = AGENT) -> None:
        self.model = model
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

    async def answer(self, call: RequiredAction, output: str | tuple[Any, ...]) -> Rest:
        """
        Answer a call, and wait until the turn rests.

        Raises:
            ProbeFailed: the turn failed, or did not rest in time.
        """
        self._session.submit([OutputData(call_id=call.call_id, output=output)], ["data"])
        return await self.rest()

    async def interrupt(self) -> bool:
        """
        Interrupt the running turn; False where it was over already.
        """
        interrupted = (await self._session.interrupt(Interrupt())).interrupted
        if interrupted:
            await self._wait(lambda event: _is_rest(event))
        return interrupted

    async def wait_for_text(self) -> None:
        """
        Wait for the first text, or the turn's rest.
        """
        await self._wait(lambda event: isinstance(event, said.OutputTextDelta) or _is_rest(event))

    async def rest(self) -> Rest:
        """
        Wait until the turn rests.

        Raises:
            ProbeFailed: the turn failed, or did not rest in time.
        """
        await self._wait(_is_rest)
        session = self._session
        turn = session.transcript.turns[self._turn_id]
        if turn.error is not None:
            raise ProbeFailed(turn.error.code, turn.error.message, unreachable=self.model.is_unreachable)
        own = [item for item in session.transcript.items() if item.response_id == turn.id]
        spoken = [part for item in own if isinstance(item, Message) and item.origin == "model" for part in item.content]
        text = "".join(_text_of(part) for part in spoken)
        status = "waiting" if session.status == "waiting" else turn.status
        return Rest(status, text, session.transcript.required_actions())

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


def _is_rest(event: said.Event) -> bool:
    return isinstance(event, said.SessionStatus) and event.status != "running"


def _text_of(part: object) -> str:
    if isinstance(part, OutputText):
        return part.text
    return part.refusal if isinstance(part, Refusal) else ""


# The probes.


async def _probe_text(talk: Talk) -> list[str]:
    rest = await talk.say("Say hello.")
    if not rest.text and rest.status == "completed":
        raise ProbeFailed("unexpected", "The server answered without a text.")
    says = [f"The answer came in {talk.model.pieces} pieces."]
    if talk.model.pieces == 1 and len(rest.text) > 80:
        says = ["The answer came in one piece: the server does not stream."]
    if rest.status == "incomplete":
        says.append(f"It was cut at {OUTPUT_BOUND} tokens.")
    return [*says, _describe_usage(talk.model)]


async def _probe_bound(talk: Talk) -> list[str]:
    rest = await talk.say("Count from 1 to 100 in words.")
    counted = talk.model.ends[-1].usage.output_tokens
    if rest.status == "incomplete":
        return [f"An output bound of {SMALL_BOUND} tokens is kept."]
    if (counted or 0) > SMALL_BOUND or len(rest.text) > 12 * SMALL_BOUND:
        size = f"{counted} tokens" if counted else f"{len(rest.text)} characters"
        raise ProbeFailed("unexpected", f"The server ignores the bound on output: {SMALL_BOUND} tokens gave {size}.")
    return ["The answer was too short to tell whether an output bound is kept."]


async def _call_tool(talk: Talk) -> tuple[RequiredAction, list[str]]:
    """
    Bring the model to call the tool, by force if the server can.
    """
    text = "Use lookup_widget to find the color of widget 42."
    says = ["tool_choice by name is followed."]
    try:
        rest = await talk.say(text, choice=NamedChoice(TOOL.name))
    except ProbeFailed as failure:
        if "tool_choice" not in failure.message:
            raise
        says = [f"tool_choice by name is refused ({failure.message}); agents must do with auto."]
        rest = await talk.say(text, choice="auto")
    if not rest.calls:
        if any(talk.model.call_ids):
            raise ProbeFailed("unexpected", f"The call cannot be run: the turn ended {rest.status}.")
        raise ProbeFailed("unexpected", f"The tool was never called; the server answered {rest.text[:80]!r}.")
    longest = max(map(len, talk.model.call_ids))
    if not all(talk.model.call_ids):
        says.append("Calls come without ids; the harness makes them.")
    elif longest > CALL_ID_MAX:
        says.append(
            f"Call ids have {longest} characters, more than the {CALL_ID_MAX} allowed; the harness makes others."
        )
    return rest.calls[0], says


async def _probe_tool(talk: Talk) -> list[str]:
    call, says = await _call_tool(talk)
    color = _make_color()
    rest = await talk.answer(call, f'{{"color": "{color}"}}')
    return [*says, _describe_recall(rest, color, "its result")]


async def _probe_recall(talk: Talk) -> list[str]:
    call, _ = await _call_tool(talk)
    color = _make_color()
    await talk.answer(call, f'{{"color": "{color}"}}')
    rest = await talk.say("Which color did the lookup give?")
    return [_describe_recall(rest, color, "the result of the turn before")]


async def _probe_parts(talk: Talk) -> list[str]:
    call, _ = await _call_tool(talk)
    await talk.answer(call, (InputText("The widget is red. Here is a picture of it."), InputImage(image_url=IMAGE)))
    return ["A tool's output may be a list of parts, with images."]


async def _probe_parked(talk: Talk) -> list[str]:
    await _call_tool(talk)
    await talk.interrupt()
    rest = await talk.say("Never mind the widget. Say hello.")
    return [f"A turn that waited for its tool was interrupted; the next one {rest.status}."]


async def _probe_interrupt(talk: Talk) -> list[str]:
    where = "while it streamed"
    talk.send("Write a long story about a widget.")
    await talk.wait_for_text()
    if not await talk.interrupt():
        # It was faster than we are: end the next one before its first word.
        where = "before its first word"
        talk.send("Write another one.")
        await talk.interrupt()
    rest = await talk.say("Thank you. Now say hello.")
    return [f"A turn was interrupted {where}; the next one {rest.status}."]


def _make_color() -> str:
    return f"ultramarine-{secrets.token_hex(2)}"


def _describe_recall(rest: Rest, color: str, what: str) -> str:
    if color in rest.text:
        return f"The answer repeats {what}."
    words = rest.text[:80] or "nothing"
    return f"The answer does not repeat {what}: the model is weak, or the server's template drops outputs ({words!r})."


def _describe_usage(model: Watched) -> str:
    usage = model.ends[-1].usage
    if usage.input_tokens is None and usage.output_tokens is None:
        return "No usage is reported: token counts stay null."
    return f"Usage is reported: {usage.input_tokens} tokens in, {usage.output_tokens} out."


@attrs.frozen(kw_only=True)
class Probe:
    """
    One probe.

    Args:
        name: its name in the report.
        title: the same in words.
        run: plays it.
        needs: the probe without which it makes no sense.
        is_optional: a failure of it is only told.
        agent: what its session's agent is.
    """

    name: str
    title: str
    run: Callable[[Talk], Awaitable[list[str]]]
    needs: str | None = "text"
    is_optional: bool = False
    agent: Agent = AGENT


PROBES: tuple[Probe, ...] = (
    Probe(name="text", title="a text turn", run=_probe_text, needs=None),
    Probe(
        name="bound",
        title="a bound on output",
        run=_probe_bound,
        is_optional=True,
        agent=attrs.evolve(AGENT, max_output_tokens=SMALL_BOUND),
    ),
    Probe(name="tool", title="a tool turn", run=_probe_tool),
    Probe(name="recall", title="a recall turn", run=_probe_recall, needs="tool"),
    Probe(name="interrupt", title="a turn after an interrupt", run=_probe_interrupt),
    Probe(name="parked", title="a turn after an interrupt that left a call", run=_probe_parked, needs="tool"),
    Probe(name="parts", title="a tool output with an image", run=_probe_parts, needs="tool", is_optional=True),
)
"""
All of them, in order.
"""
