"""
Equal agents held once: most sessions of a server are made with one of a few, whose tools' schemas would take more
memory than all the rest of a session at rest.
"""

import hashlib
from weakref import WeakValueDictionary

import orjson

from agent_harness.protocol.agents import Agent
from agent_harness.protocol.encode import to_wire

__all__ = ["SharedAgents"]


class SharedAgents:
    """
    The agents of living sessions, by what they are on the wire. An agent is let go with the last session that has it.
    """

    __slots__ = ("_agents",)

    def __init__(self) -> None:
        self._agents: WeakValueDictionary[bytes, Agent] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._agents)

    def find(self, agent: Agent) -> Agent:
        """
        The agent that is held and equals *agent* to the letter (1 is not 1.0, and keys have an order); *agent* itself
        if none does.
        """
        try:
            key = hashlib.blake2b(orjson.dumps(to_wire(agent)), digest_size=16).digest()
        except TypeError:
            # A program made it, with something that is no JSON.
            return agent
        found = self._agents.setdefault(key, agent)
        return found if found == agent else agent
