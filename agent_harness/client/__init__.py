"""
The Python client: sessions at a server, their events as values, and tools that run here.
"""

from agent_harness.client.reply import Reply
from agent_harness.client.results import Accepted, Interrupted, Result
from agent_harness.client.session import Session
from agent_harness.client.sessions import Client, Pages, Sessions
from agent_harness.client.stream import EventStream
from agent_harness.functions import Functions, as_tool, tool

__all__ = [
    "Accepted",
    "Client",
    "EventStream",
    "Functions",
    "Interrupted",
    "Pages",
    "Reply",
    "Result",
    "Session",
    "Sessions",
    "as_tool",
    "tool",
]
