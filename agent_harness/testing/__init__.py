"""
What testers get: a mock model server that is as strict as the real ones, fixtures, contracts for model adapters, and
servers in threads for synchronous tests. Names are resolved on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_harness.testing.contracts import check_model
    from agent_harness.testing.fixtures import make_harness, serve_harness
    from agent_harness.testing.mock_llm import make_mock_app
    from agent_harness.testing.mock_object import MockLLM
    from agent_harness.testing.threads import ThreadServer

__all__ = ["MockLLM", "ThreadServer", "check_model", "make_harness", "make_mock_app", "serve_harness"]

_HOMES = {
    "MockLLM": "mock_object",
    "ThreadServer": "threads",
    "check_model": "contracts",
    "make_harness": "fixtures",
    "make_mock_app": "mock_llm",
    "serve_harness": "fixtures",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
