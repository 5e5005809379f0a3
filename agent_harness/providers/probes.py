"""
The probes of a model server: turns of an in-process harness, each probe in a session of its own.

A probe returns what it saw, in sentences, and raises `ProbeFailed` where the server did not do what the harness needs.
"""

import secrets
from collections.abc import Awaitable, Callable

import attrs

from agent_harness.protocol.agents import Agent
from agent_harness.protocol.items import InputImage, InputText
from agent_harness.protocol.tools import CALL_ID_MAX, NamedChoice, ToolChoice
from agent_harness.providers.talk import TOOL, ProbeFailed, Rest, Talk, Watched

__all__ = ["CHOICES", "PROBES", "Probe"]

CHOICES: tuple[ToolChoice, ...] = (NamedChoice(TOOL.name), "required", "auto")
"""What brings a model to call the tool, the surest first."""

OUTPUT_BOUND = 1024
SMALL_BOUND = 16

AGENT = Agent(
    instructions="You are a helpful assistant. Answer in one short sentence.",
    max_output_tokens=OUTPUT_BOUND,
    parallel_tool_calls=False,
)
# One red pixel.
IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)


async def _probe_text(talk: Talk) -> list[str]:
    rest = await talk.say("Say hello.")
    if not rest.text and rest.status == "completed":
        raise ProbeFailed("unexpected", "The server answered without a text.")
    many = talk.model.pieces != 1
    says = [f"The answer came in {talk.model.pieces} piece{'s' if many else ''}."]
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
    if counted == SMALL_BOUND:
        return [f"An output bound of {SMALL_BOUND} tokens is kept, but the cut answer is called complete."]
    if (counted or 0) > SMALL_BOUND or len(rest.text) > 12 * SMALL_BOUND:
        size = f"{counted} tokens" if counted else f"{len(rest.text)} characters"
        raise ProbeFailed("unexpected", f"The server ignores the bound on output: {SMALL_BOUND} tokens gave {size}.")
    return ["The answer was too short to tell whether an output bound is kept."]


async def _call_tool(talk: Talk) -> list[str]:
    """
    Bring the model to call the tool, by force if the server can. A tool_choice that does not help is not tried again.
    """
    says: list[str] = []
    while True:
        choice = talk.choices[0]
        name = choice if isinstance(choice, str) else "by name"
        try:
            rest = await talk.say("Use lookup_widget to find the color of widget 42.", choice=choice)
            problem = f"is ignored: the server answered {rest.text[:80]!r}"
        except ProbeFailed as failure:
            if "tool_choice" not in failure.message or len(talk.choices) == 1:
                raise
            problem, rest = f"is refused: {failure.message}", Rest("failed", "", ())
        if rest.calls:
            return [*says, f"A tool_choice {name} brings the call.", *_describe_calls(talk.model)]
        if talk.model.call_ids:
            raise ProbeFailed("unexpected", f"The call cannot be run: the turn ended {rest.status}.")
        if len(talk.choices) == 1:
            raise ProbeFailed("unexpected", f"The tool was never called; the server answered {rest.text[:80]!r}.")
        says.append(f"A tool_choice {name} {problem}.")
        talk.choices.pop(0)


def _describe_calls(model: Watched) -> list[str]:
    says = []
    if len(model.call_ids) > 1:
        says.append(f"The model made {len(model.call_ids)} calls at once, although told to make one at a time.")
    longest = max(map(len, model.call_ids))
    if not all(model.call_ids):
        says.append("Calls come without ids; the harness makes them.")
    elif longest > CALL_ID_MAX:
        says.append(f"Call ids have {longest} characters, over the {CALL_ID_MAX} allowed; the harness makes others.")
    return says


async def _probe_tool(talk: Talk) -> list[str]:
    says = await _call_tool(talk)
    color = _make_color()
    rest = await talk.answer(f'{{"color": "{color}"}}')
    if rest.status == "cancelled":
        return [*says, "The model calls the tool again whatever it returns: it is weak, or outputs are dropped."]
    return [*says, _describe_recall(rest, color, "its result")]


async def _probe_recall(talk: Talk) -> list[str]:
    await _call_tool(talk)
    color = _make_color()
    await talk.answer(f'{{"color": "{color}"}}')
    rest = await talk.say("Which color did the lookup give?")
    return [_describe_recall(rest, color, "the result of the turn before")]


async def _probe_parts(talk: Talk) -> list[str]:
    await _call_tool(talk)
    await talk.answer((InputText("The widget is red. Here is a picture of it."), InputImage(image_url=IMAGE)))
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
