"""
Options that several commands have, and what is made of them.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from agent_harness.cli.exits import CommandFailed
from agent_harness.errors import NotFound

if TYPE_CHECKING:
    from agent_harness.client import Client
    from agent_harness.config import Settings

__all__ = ["DEFAULT_URL", "api_option", "config_option", "load", "naming_session", "open_client", "server_options"]

DEFAULT_URL = "http://127.0.0.1:8787"

F = TypeVar("F", bound=Callable[..., Any])

config_option = click.option(
    "--config", type=click.Path(path_type=Path), help="Settings file. [default: agent-harness.toml, if it exists]"
)
api_option = click.option("--api", type=click.Choice(["responses", "chat"]), help="Wire dialect of the model server.")


def _check_url(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if not value.startswith(("http://", "https://")) or not value.partition("://")[2].strip("/"):
        raise click.BadParameter(f"{value!r} is no address; write it as {DEFAULT_URL}.")
    if value.rstrip("/").endswith("/v1"):
        raise click.BadParameter(f"{value!r} ends in /v1; leave that out.")
    return value


def server_options(command: F) -> F:
    """
    ``--url`` and ``--api-key``: the server that is asked.
    """
    url = click.option(
        "--url",
        envvar="AGENT_HARNESS_URL",
        default=DEFAULT_URL,
        show_default=True,
        callback=_check_url,
        help="The server, with a path if it has one, without /v1; also $AGENT_HARNESS_URL.",
    )
    key = click.option(
        "--api-key", envvar="AGENT_HARNESS_API_KEY", help="Its key, if it wants one; also $AGENT_HARNESS_API_KEY."
    )
    return url(key(command))


def load(config: Path | None, flags: dict[str, Any]) -> "Settings":
    """
    Settings from flags, the settings file and the environment.

    Raises:
        ConfigError: they cannot be used.
    """
    from agent_harness.config import load_settings
    from agent_harness.settings_file import DEFAULT_FILE, read_settings_file

    if config is None and Path(DEFAULT_FILE).is_file():
        config = Path(DEFAULT_FILE)
    return load_settings(None if config is None else read_settings_file(config), **flags)


def open_client(url: str, api_key: str | None, patience_s: float = 1.0) -> "Client":
    """
    A client of the server; by itself not patient, since a person waits.
    """
    from agent_harness.client import Client

    return Client(url, api_key, patience_s=patience_s)


@contextlib.contextmanager
def naming_session(session_id: str | None) -> Iterator[None]:
    """
    Say which session it is that a server does not have.
    """
    try:
        yield
    except NotFound as error:
        if error.code != "unknown_session" or session_id is None:
            raise
        raise CommandFailed(f"There is no session {session_id}; it may have been deleted.") from None
