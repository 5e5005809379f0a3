"""
Whether an agent's tools go together with those that the messages of its session bring.
"""

from collections.abc import Iterator

from agent_harness.errors import InvalidRequest
from agent_harness.protocol.agents import Agent
from agent_harness.protocol.commands import SendMessage
from agent_harness.protocol.tools import TOOLS_MAX, NamedChoice, Tool, merge_tools
from agent_harness.protocol.transcript import Transcript

__all__ = ["brought_tools", "check_offer", "check_offers"]


def brought_tools(transcript: Transcript) -> tuple[Tool, ...]:
    """
    What the running turn's messages bring to its next model call, before which all that were steered enter.
    """
    given = [waiting.tools for waiting in transcript.steered() if waiting.tools is not None]
    return given[-1] if given else transcript.tools


def check_offer(transcript: Transcript, agent: Agent, command: SendMessage, *, steer: bool) -> None:
    """
    Refuse a message if its turn, the running one where it is to *steer* that, would offer too many tools, or if it asks
    for a function that is not offered.

    Raises:
        InvalidRequest: ``invalid_tool`` for too many; else the choice cannot be met.
    """
    brought = brought_tools(transcript) if steer and command.tools is None else command.tools or ()
    offered = [tool.name for tool in merge_tools(agent.tools, brought)]
    if len(offered) > TOOLS_MAX:
        message = f"At most {TOOLS_MAX} tools can be offered; with the agent's these are {len(offered)}."
        raise InvalidRequest(message, code="invalid_tool", param="tools")
    choice = command.tool_choice
    if choice in (None, "auto", "none"):
        return
    if not offered or (isinstance(choice, NamedChoice) and choice.name not in offered):
        names = ", ".join(offered) or "none"
        message = f"tool_choice asks for a function that is not offered; offered: {names}."
        raise InvalidRequest(message, param="tool_choice")


def check_offers(transcript: Transcript, agent_tools: tuple[Tool, ...]) -> None:
    """
    Refuse *agent_tools* if the running turn, or one that waits, would offer too many with them: each message was taken
    with the tools that the agent had then, and its turn would fail for what somebody changed meanwhile.

    Raises:
        InvalidRequest: ``invalid_tool``, with how many each of those messages brings.
    """
    over: list[str] = []
    for who, brought in _list_brought(transcript):
        count = len(merge_tools(agent_tools, brought))
        if count > TOOLS_MAX:
            over.append(f"{who} brings {len(brought)}, which makes {count}")
    if over:
        message = f"At most {TOOLS_MAX} tools can be offered at once; the agent would have {len(agent_tools)}: "
        message += f"{'; '.join(over)}. Give the agent fewer, or wait until these turns have ended."
        raise InvalidRequest(message, code="invalid_tool", param="agent.tools")


def _list_brought(transcript: Transcript) -> Iterator[tuple[str, tuple[Tool, ...]]]:
    if transcript.current is not None:
        yield f"the message of the running turn {transcript.current}", brought_tools(transcript)
    for waiting in transcript.waiting.values():
        if not waiting.steer:
            yield f"the waiting message {waiting.message.id}", waiting.tools or ()
