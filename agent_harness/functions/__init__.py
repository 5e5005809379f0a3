"""
Python functions as tools: their definitions, and a runner that answers calls with them.

Knows neither sessions nor HTTP: the client uses it, and the engine for calls in process.
"""

from agent_harness.functions.runner import Functions
from agent_harness.functions.signature import as_tool, tool

__all__ = ["Functions", "as_tool", "tool"]
