"""
Who listens: the HTTP side, on aiohttp.
"""

from agent_harness.server.app import HARNESS, init_app, make_app

__all__ = ["HARNESS", "init_app", "make_app"]
