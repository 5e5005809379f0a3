"""
Sessions with equal agents hold one.
"""

import gc
from typing import Any

from agent_harness.config import Limits
from agent_harness.engine.harness import Harness
from agent_harness.engine.sharing import SharedAgents
from agent_harness.llm.scripted import ScriptedModel
from agent_harness.protocol.agents import Agent
from agent_harness.protocol.requests import read_update
from agent_harness.protocol.tools import Tool


def body(**fields: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    return {
        "instructions": "Be brief.",
        "tools": [{"type": "function", "name": "look", "parameters": schema}],
        **fields,
    }


async def test_sessions_that_are_made_alike_share_their_agent_and_a_change_is_its_sessions_own() -> None:
    async with Harness({"default": ScriptedModel()}, limits=Limits()) as harness:
        one, two = await harness.create_session(body()), await harness.create_session(body())
        other = await harness.create_session(body(temperature=1.0))
        assert one.agent is two.agent
        assert other.agent is not one.agent and other.agent.temperature == 1.0
        one.update(read_update({"agent": {"instructions": "Be long."}}))
        assert (one.agent.instructions, two.agent.instructions) == ("Be long.", "Be brief.")


def test_agents_are_one_only_to_the_letter() -> None:
    """
    A request is made of them byte by byte: what is equal in Python is not always the same JSON.
    """
    shared = SharedAgents()
    first = shared.find(Agent(tools=(Tool(name="f", parameters={"a": 1, "b": 2}),)))
    assert shared.find(Agent(tools=(Tool(name="f", parameters={"a": 1, "b": 2}),))) is first
    for parameters in ({"a": 1.0, "b": 2}, {"b": 2, "a": 1}, {"a": True, "b": 2}):
        other = Agent(tools=(Tool(name="f", parameters=parameters),))
        assert shared.find(other) is other
    odd = Agent(tools=(Tool(name="f", parameters={"a": object()}),))
    assert shared.find(odd) is odd


def test_an_agent_is_let_go_with_the_last_that_has_it() -> None:
    shared = SharedAgents()
    kept = [shared.find(Agent(name="a")), shared.find(Agent(name="a"))]
    assert len(shared) == 1
    kept.clear()
    gc.collect()
    assert len(shared) == 0
