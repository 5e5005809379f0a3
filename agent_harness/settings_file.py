"""
The settings file, ``agent-harness.toml``: providers, named agents, limits, where to listen.

Everything in it is checked when it is read; what is wrong is told with the file, the key and the line.
"""

import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from agent_harness.config import Limits, ProviderSettings, Settings, check_node
from agent_harness.errors import ConfigError, InvalidRequest
from agent_harness.protocol.agents import Agent
from agent_harness.protocol.decode import read
from agent_harness.protocol.requests import read_agent

__all__ = ["DEFAULT_FILE", "read_settings_file"]

DEFAULT_FILE = "agent-harness.toml"
"""Read from the working directory if it is there."""


@attrs.frozen(kw_only=True)
class _Server:
    host: str = "127.0.0.1"
    port: int = 8787
    hosts: tuple[str, ...] | None = None
    origins: tuple[str, ...] = ()
    insecure: bool = False
    state: str | None = None
    node: str | None = None


@attrs.frozen(kw_only=True)
class _File:
    default_provider: str | None = None
    server: _Server = _Server()
    limits: Limits = Limits()
    keys: Mapping[str, Any] = attrs.field(factory=dict)
    providers: Mapping[str, Any] = attrs.field(factory=dict)
    agents: Mapping[str, Any] = attrs.field(factory=dict)


def read_settings_file(path: Path) -> Settings:
    """
    The settings in the file at *path*. Without a provider in it there is the one of the environment.

    Raises:
        ConfigError: the file cannot be read, or something in it is wrong; file, key and line are named.
    """
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        return _read_settings(tomllib.loads(text))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from None
    except InvalidRequest as error:
        line = _find_line(text, error.param or "")
        where = f", line {line}" if line else ""
        raise ConfigError(f"{path}{where}: {error.param}: {error.message}") from None


def _read_settings(table: dict[str, Any]) -> Settings:
    shape = read(_without_inf(table), _File)
    for name, value in attrs.asdict(shape.limits).items():
        if value <= 0 and name != "grace_s":
            raise InvalidRequest("A limit is more than 0.", param=f"limits.{name}")
    if not 0 <= shape.server.port <= 65535:
        raise InvalidRequest("A port is a number from 0 to 65535.", param="server.port")
    if shape.server.node is not None:
        try:
            check_node(shape.server.node)
        except ConfigError as error:
            raise InvalidRequest(str(error), param="server.node") from None
    providers = tuple(_read_provider(name, value) for name, value in shape.providers.items())
    names = [provider.name for provider in providers]
    default = shape.default_provider or (names[0] if names else "default")
    if names and default not in names:
        raise InvalidRequest(f"There is no such provider; there are: {', '.join(names)}.", param="default_provider")
    settings = Settings(
        default_provider=default,
        limits=shape.limits,
        host=shape.server.host,
        port=shape.server.port,
        api_keys={name: _read_key(name, value) for name, value in shape.keys.items()},
        allowed_hosts=None if shape.server.hosts is None else tuple(host.lower() for host in shape.server.hosts),
        allowed_origins=shape.server.origins,
        insecure=shape.server.insecure,
        state=shape.server.state,
        node=shape.server.node,
        agents={name: _read_named_agent(name, value, names) for name, value in shape.agents.items()},
    )
    return attrs.evolve(settings, providers=providers) if providers else settings


def _read_key(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) < 8:
        raise InvalidRequest("A key is a string of at least 8 characters.", param=f"keys.{name}")
    return value


def _read_provider(name: str, value: Any) -> ProviderSettings:
    path = f"providers.{name}"
    if not isinstance(value, dict):
        raise InvalidRequest("A provider is a table.", param=path)
    if "name" in value:
        raise InvalidRequest("The provider's name is the table's.", param=f"{path}.name")
    headers = value.get("headers", {})
    if not isinstance(headers, dict) or not all(isinstance(header, str) for header in headers.values()):
        raise InvalidRequest("headers is a table of strings.", param=f"{path}.headers")
    rest = {key: held for key, held in value.items() if key != "headers"}
    provider = attrs.evolve(read(rest, ProviderSettings, path), name=name, headers=headers)
    if not provider.base_url.startswith(("http://", "https://")):
        raise InvalidRequest("A base_url begins with http:// or https://.", param=f"{path}.base_url")
    return attrs.evolve(provider, base_url=provider.base_url.rstrip("/"))


def _read_named_agent(name: str, value: Any, providers: list[str]) -> Agent:
    agent = read_agent(value, f"agents.{name}")
    if agent.provider is not None and providers and agent.provider not in providers:
        message = f"There is no such provider; there are: {', '.join(providers)}."
        raise InvalidRequest(message, param=f"agents.{name}.provider")
    return agent


def _without_inf(value: Any) -> Any:
    """
    TOML has no null; where the wire takes null for "no bound" (``tool_timeout_s``), the file says ``inf``.
    """
    if isinstance(value, dict):
        return {key: _without_inf(held) for key, held in value.items()}
    return None if isinstance(value, float) and math.isinf(value) else value


def _find_line(text: str, path: str) -> int | None:
    """
    The line in which the key at *path* is set, or else the nearest one above it in the path.
    """
    keys = re.sub(r"\[\d+\]", "", path).split(".")
    for count in range(len(keys), 0, -1):
        wanted, table = keys[:count], []
        for number, line in enumerate(text.splitlines(), 1):
            header = re.match(r"\s*\[+\s*([^\[\]]+?)\s*\]+", line)
            if header:
                table = [part.strip().strip("\"'") for part in header[1].split(".")]
                if table[:count] == wanted:
                    return number
            key = re.match(r"\s*([\w.\"'-]+)\s*=", line)
            if key and [*table, *(part.strip("\"'") for part in key[1].split("."))] == wanted:
                return number
    return None
