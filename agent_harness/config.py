"""
Settings: frozen values, from the environment and flags. Nothing here opens, connects or imports anything.
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from agent_harness.errors import ConfigError

__all__ = [
    "DEFAULT_BASE_URL",
    "DEFAULT_MODEL",
    "Limits",
    "ProviderSettings",
    "Settings",
    "check_node",
    "load_settings",
]

DEFAULT_BASE_URL = "https://api.openai.com/v1"
DEFAULT_MODEL = "gpt-5-mini"

Api = Literal["responses", "chat"]
TransportName = Literal["aiohttp", "openai"]


@attrs.frozen(kw_only=True)
class ProviderSettings:
    """
    One model server. Times are seconds.

    Args:
        name: what agents call it by (``agent.provider``).
        api: its wire dialect.
        base_url: URL up to and including ``/v1``.
        transport: what carries requests: aiohttp's client, or the openai SDK's, which costs more.
        api_key: the key, or None; then it is read from the environment variable ``api_key_env`` at each start.
        needs_key: False for servers that want none.
        model: what an agent without a model gets.
        headers: sent with each request.
        extra_body: merged into each request body.
        connect_timeout_s, idle_timeout_s: bounds on connecting, and on silence between two events of a stream
            (comments do not count).
        max_retries, retry_base_s, retry_cap_s: retries before the first output; the wait doubles from the base, and is
            never longer than the cap, whatever ``Retry-After`` asks.
        system_role: role of the instructions in Chat Completions.
        max_tokens_field: name of the output bound in Chat Completions.
        merge_user_messages: join neighbouring user messages (for templates that demand alternating roles).
        tool_output_parts: False for servers that take only text as a tool's output.
        replay_reasoning_content: which turns' ``reasoning_content`` is sent back in Chat Completions.
    """

    name: str = "default"
    api: Api = "responses"
    base_url: str = DEFAULT_BASE_URL
    transport: TransportName = "aiohttp"
    api_key: str | None = attrs.field(default=None, repr=False)
    api_key_env: str | None = "OPENAI_API_KEY"
    needs_key: bool = True
    model: str | None = DEFAULT_MODEL
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    extra_body: Mapping[str, Any] = attrs.field(factory=dict)
    connect_timeout_s: float = 10.0
    idle_timeout_s: float = 300.0
    max_retries: int = 2
    retry_base_s: float = 0.5
    retry_cap_s: float = 30.0
    system_role: Literal["system", "developer", "user"] = "system"
    max_tokens_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    merge_user_messages: bool = False
    tool_output_parts: bool = True
    replay_reasoning_content: Literal["never", "turn", "always"] = "always"

    def key(self) -> str | None:
        """
        The key in force: ``api_key``, else what the environment variable holds, else None.
        """
        if self.api_key:
            return self.api_key
        return (os.environ.get(self.api_key_env) or None) if self.api_key_env else None


@attrs.frozen(kw_only=True)
class Limits:
    """
    Bounds of the engine and the server. Sizes are bytes (of what is kept: about), times seconds.

    Args:
        body_bytes, body_s: longest request body, and the longest time it may take to come.
        sessions: most sessions.
        items, session_bytes: most of a session's transcript; a full session takes results, but no messages.
        queued_messages: most messages that wait in a session.
        open_calls: most calls of one answer that are given to the client; the harness answers the others.
        turn_s: longest time a turn runs, waiting for results included.
        followers: most followers of a session.
        replay_events, replay_bytes: the newest events kept for followers that come back; a 64th more may be kept.
        backlog_events: most events that a follower may have yet to read; one with more, or with more bytes than are
            kept, is cut.
        replay_idle_s: how long an idle session keeps them.
        session_idle_s: how long an idle session is kept.
        ping_s: longest silence on a stream.
        grace_s: how long turns may go on when the server stops.
    """

    body_bytes: int = 16 * 1024 * 1024
    body_s: float = 60.0
    sessions: int = 10_000
    items: int = 100_000
    session_bytes: int = 256 * 1024 * 1024
    queued_messages: int = 100
    open_calls: int = 128
    turn_s: float = 24 * 3600.0
    followers: int = 1_000
    replay_events: int = 1_000
    replay_bytes: int = 64 * 1024 * 1024
    backlog_events: int = 10_000
    replay_idle_s: float = 600.0
    session_idle_s: float = 24 * 3600.0
    ping_s: float = 10.0
    grace_s: float = 3.0


@attrs.frozen(kw_only=True)
class Settings:
    """
    Everything the server is told from outside.

    Args:
        providers, default_provider: the model servers, and which of them agents get that name none.
        agents: those that sessions name by ``agent_id``.
        limits: bounds.
        host, port: where to listen.
        api_keys: bearer keys by name; without one only a loopback address is listened on, unless ``insecure``.
        allowed_hosts: Host headers that are answered; None for loopback names on a loopback address, else any.
        allowed_origins: origins of pages that may use the server.
        insecure: listen on any address without a key.
        state: the file in which sessions are kept beyond the process; None keeps them in memory only.
        node: this process's name among several behind a router; it stands in the ids of its sessions.
    """

    providers: tuple[ProviderSettings, ...] = (ProviderSettings(),)
    default_provider: str = "default"
    agents: Mapping[str, Any] = attrs.field(factory=dict)
    limits: Limits = Limits()
    host: str = "127.0.0.1"
    port: int = 8787
    api_keys: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    allowed_hosts: tuple[str, ...] | None = None
    allowed_origins: tuple[str, ...] = ()
    insecure: bool = False
    state: str | None = None
    node: str | None = None


def check_node(node: str) -> str:
    """
    *node*, if a process can be called so. It has no ``_``, which ends it in the ids of sessions.

    Raises:
        ConfigError: it cannot.
    """
    if not re.fullmatch(r"[a-z0-9-]{1,32}", node):
        raise ConfigError(f"The node is called {node!r}; a name has 1 to 32 of a-z, 0-9 and -.")
    return node


def load_settings(
    base: Settings | None = None,
    *,
    model: str | None = None,
    api: str | None = None,
    host: str | None = None,
    port: int | None = None,
    max_sessions: int | None = None,
    api_keys: Sequence[str] = (),
    allowed_hosts: Sequence[str] = (),
    allowed_origins: Sequence[str] = (),
    insecure: bool = False,
    no_key: bool = False,
    grace: float | None = None,
    state: str | None = None,
    node: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """
    Settings from flags, then *base* (what a settings file says), then the environment (``OPENAI_API_KEY``,
    ``OPENAI_BASE_URL``, ``AGENT_HARNESS_API_KEY``). Flags speak of the default provider. Keys add up.

    Raises:
        ConfigError: a value cannot be used.
    """
    if api not in (None, "responses", "chat"):
        raise ConfigError(f"--api is {api!r}; write responses or chat.")
    if max_sessions is not None and max_sessions < 1:
        raise ConfigError(f"--max-sessions is {max_sessions}; it must be at least 1.")
    if port is not None and not 0 <= port <= 65535:
        raise ConfigError(f"--port is {port}; it must be from 0 to 65535.")
    if node is not None:
        check_node(node)
    environ = os.environ if environ is None else environ
    settings = base or Settings(providers=(_provider_of_environment(environ),))
    given: dict[str, Any] = {name: value for name, value in (("model", model), ("api", api)) if value is not None}
    if no_key:
        given["needs_key"] = False
    providers = tuple(
        attrs.evolve(provider, **given) if provider.name == settings.default_provider else provider
        for provider in settings.providers
    )
    bounds: dict[str, Any] = {"sessions": max_sessions, "grace_s": grace}
    limits = attrs.evolve(settings.limits, **{name: value for name, value in bounds.items() if value is not None})
    keys = {f"flag-{number}": key for number, key in enumerate(api_keys, 1)}
    if environ.get("AGENT_HARNESS_API_KEY"):
        keys["environment"] = environ["AGENT_HARNESS_API_KEY"]
    if not all(key.strip() for key in keys.values()):
        raise ConfigError("--api-key is empty; write a key, or leave it out.")
    return attrs.evolve(
        settings,
        providers=providers,
        limits=limits,
        api_keys={**settings.api_keys, **keys},
        allowed_hosts=tuple(host.lower() for host in allowed_hosts) or settings.allowed_hosts,
        allowed_origins=tuple(allowed_origins) or settings.allowed_origins,
        insecure=insecure or settings.insecure,
        state=settings.state if state is None else state,
        node=settings.node if node is None else node,
        host=settings.host if host is None else host,
        port=settings.port if port is None else port,
    )


def _provider_of_environment(environ: Mapping[str, str]) -> ProviderSettings:
    base_url = environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL
    if not base_url.startswith(("http://", "https://")):
        raise ConfigError(f"OPENAI_BASE_URL is {base_url!r}; it must begin with http:// or https://.")
    return ProviderSettings(base_url=base_url.rstrip("/"), api_key=environ.get("OPENAI_API_KEY") or None)
