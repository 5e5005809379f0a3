"""
The one place that turns settings into models, adapters loaded by name and only when needed.
"""

from collections.abc import Mapping

from agent_harness.config import ProviderSettings, Settings
from agent_harness.engine.harness import Harness
from agent_harness.errors import ConfigError
from agent_harness.llm.base import Model
from agent_harness.server.auth import LOOPBACK_HOSTS, Access
from agent_harness.store.base import Store

__all__ = ["load_adapters", "make_access", "make_model", "make_models", "open_demo_harness", "open_harness"]


def make_model(settings: ProviderSettings) -> Model:
    """
    The adapter for a provider. Importing its transport is left to its first call, or to `load_adapters`.
    """
    if settings.api == "chat":
        from agent_harness.llm.chat import ChatModel

        return ChatModel(settings)
    from agent_harness.llm.responses import ResponsesModel

    return ResponsesModel(settings)


def make_models(settings: Settings) -> Mapping[str, Model]:
    """
    A model for each provider of the settings, by name.
    """
    return {provider.name: make_model(provider) for provider in settings.providers}


def make_access(settings: Settings) -> Access:
    """
    Who may come in, by *settings*.

    Raises:
        ConfigError: without a key, only a loopback address may be listened on.
    """
    loopback = settings.host.strip("[]").lower() in ("localhost", "::1") or settings.host.startswith("127.")
    if not loopback and not settings.api_keys and not settings.insecure:
        raise ConfigError(
            f"Listening on {settings.host} lets others in: give --api-key (or AGENT_HARNESS_API_KEY, or [keys] in the "
            "settings file), or say --insecure."
        )
    hosts = settings.allowed_hosts
    if hosts is None and loopback:
        hosts = tuple(dict.fromkeys((*LOOPBACK_HOSTS, settings.host.lower())))
    return Access(keys=settings.api_keys, hosts=hosts, origins=settings.allowed_origins)


def load_adapters(settings: Settings) -> None:
    """
    Import what the providers' adapters need (of the openai SDK most of a second): call it in a thread, so that no loop
    waits for it.
    """
    from agent_harness.llm.upstream import load_transport

    for provider in settings.providers:
        make_model(provider)
        load_transport(provider)


def open_harness(settings: Settings) -> Harness:
    """
    A harness with the models of *settings*; close it with ``await aclose()`` or use it with ``async with``, which takes
    up the sessions in the state file, if there is one (`Harness.restore`).
    """
    return Harness(
        make_models(settings),
        default_provider=settings.default_provider,
        limits=settings.limits,
        agents=settings.agents,
        store=_open_store(settings),
        node=settings.node,
    )


def _open_store(settings: Settings) -> Store | None:
    if settings.state is None:
        return None
    from agent_harness.store.sqlite import SqliteStore

    return SqliteStore(settings.state)


def open_demo_harness(settings: Settings) -> Harness:
    """
    A harness whose only model is the built-in demo's, under the bounds of *settings*.
    """
    from agent_harness.llm.scripted import DemoModel

    return Harness(
        {settings.default_provider: DemoModel()},
        default_provider=settings.default_provider,
        limits=settings.limits,
        store=_open_store(settings),
        node=settings.node,
    )
