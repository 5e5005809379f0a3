"""
How many tools an agent may get while messages that brought their own run or wait.
"""

from __future__ import annotations

import pytest

from agent_harness.errors import InvalidRequest
from agent_harness.protocol.items import InputText, Message
from agent_harness.protocol.offers import brought_tools, check_offers
from agent_harness.protocol.tools import TOOLS_MAX, Tool
from agent_harness.protocol.transcript import Transcript, Waiting
from agent_harness.protocol.turns import Turn


def tools(count: int, prefix: str = "t") -> tuple[Tool, ...]:
    return tuple(Tool(name=f"{prefix}{number}") for number in range(count))


def transcript(running: tuple[Tool, ...] | None, *waiting: tuple[tuple[Tool, ...] | None, bool]) -> Transcript:
    """
    A transcript whose running turn brought these tools (None: none runs), and the messages that wait: tools, steered.
    """
    made = Transcript()
    if running is not None:
        made.open_turn(Turn(id="resp_0", status="in_progress", created_at=1), message("msg_0"), running, None)
    for number, (brought, steer) in enumerate(waiting, 1):
        turn = None if steer else Turn(id=f"resp_{number}", status="queued", created_at=1)
        made.wait(Waiting(message(f"msg_{number}"), steer, brought, None), turn)
    return made


def message(id: str) -> Message:
    return Message(id=id, role="user", content=(InputText("hi"),), origin="client", created_at=1)


def refusal(made: Transcript, agent: tuple[Tool, ...]) -> str:
    with pytest.raises(InvalidRequest) as caught:
        check_offers(made, agent)
    assert (caught.value.code, caught.value.param) == ("invalid_tool", "agent.tools")
    return caught.value.message


def test_any_tools_go_where_nothing_runs() -> None:
    check_offers(transcript(None), tools(TOOLS_MAX))


def test_tools_that_just_fit_beside_those_of_the_running_and_waiting_turns_are_taken() -> None:
    made = transcript(tools(100), (tools(100), False), (None, False), ((), False))

    check_offers(made, tools(28, "a"))


def test_tools_of_one_name_count_once() -> None:
    check_offers(transcript(tools(100), (tools(128), False)), tools(128))


def test_refusal_names_each_message_and_how_many_tools_it_brings() -> None:
    text = refusal(transcript(tools(101), (tools(5), False), (tools(100), False)), tools(100, "a"))

    assert "running turn resp_0 brings 101, which makes 201" in text
    assert "msg_2 brings 100, which makes 200" in text
    assert "msg_1" not in text


def test_steered_tools_count_in_place_of_those_they_will_replace() -> None:
    made = transcript(tools(101), (tools(20, "s"), True), (None, True))

    assert brought_tools(made) == tools(20, "s")
    check_offers(made, tools(100, "a"))
    assert "resp_0 brings 20, which makes 129" in refusal(made, tools(109, "a"))
