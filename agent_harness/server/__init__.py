"""
Who listens: the HTTP side, on aiohttp.
"""

from agent_harness.server.app import HARNESS, make_app

__all__ = ["HARNESS", "make_app"]
