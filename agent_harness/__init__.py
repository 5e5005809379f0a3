"""
An agent server whose tools run on the client's side.

Public names are resolved on first use; importing this package loads nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_harness.config import Limits, ProviderSettings, Settings, load_settings
    from agent_harness.engine.harness import Harness
    from agent_harness.engine.session import Session
    from agent_harness.errors import HarnessError, ModelError, RequestError
    from agent_harness.version import VERSION
    from agent_harness.wiring import open_demo_harness, open_harness

__all__ = [
    "Harness",
    "HarnessError",
    "Limits",
    "ModelError",
    "ProviderSettings",
    "RequestError",
    "Session",
    "Settings",
    "VERSION",
    "load_settings",
    "open_demo_harness",
    "open_harness",
]

_HOMES = {
    "VERSION": "version",
    "Harness": "engine.harness",
    "HarnessError": "errors",
    "Limits": "config",
    "ModelError": "errors",
    "ProviderSettings": "config",
    "RequestError": "errors",
    "Session": "engine.session",
    "Settings": "config",
    "load_settings": "config",
    "open_demo_harness": "wiring",
    "open_harness": "wiring",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
