"""
Who listens: the HTTP side, on aiohttp.
"""

from agent_harness.server.app import HARNESS, init_app, make_app
from agent_harness.server.auth import Access

__all__ = ["HARNESS", "Access", "init_app", "make_app"]
