"""
Tools for work on the files of one folder, as plain Python functions; they run wherever the client is.

Knows neither sessions nor HTTP nor terminals: `agent-harness chat --tools coding` asks a person before it calls them,
and so should whoever else uses them.
"""

from agent_harness.coding.roots import PathRefused, Root
from agent_harness.coding.tools import CHANGING, CodingTools, FileRefused

__all__ = ["CHANGING", "CodingTools", "FileRefused", "PathRefused", "Root"]
