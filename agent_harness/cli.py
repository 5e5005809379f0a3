"""
The command line: options, signals, logging, exit codes. 0: done; 1: it failed; 2: the call or the settings are wrong.
"""

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent_harness.errors import ConfigError, ListenError
from agent_harness.version import VERSION

if TYPE_CHECKING:
    from agent_harness.config import Settings

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="agent-harness")
def main() -> None:
    """
    An agent server whose tools run on the client's side.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


@main.command()
@click.option(
    "--config", type=click.Path(path_type=Path), help="Settings file. [default: agent-harness.toml, if it exists]"
)
@click.option("--host", help="Address to listen on. [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="0 takes a free port. [default: 8787]")
@click.option("--model", help="Model of agents that name none.")
@click.option("--api", type=click.Choice(["responses", "chat"]), help="Wire dialect of the model server.")
@click.option("--max-sessions", type=click.IntRange(1), help="Most sessions held at once. [default: 10000]")
@click.option("--demo", is_flag=True, help="Answer with the built-in demo model: no key, no network.")
def serve(config: Path | None, demo: bool, **flags: Any) -> None:
    """
    Start the server.

    The model server is OPENAI_BASE_URL (OpenAI's if unset), its key OPENAI_API_KEY.
    """
    _run(_serve(config, demo, flags))


@main.command()
def demo() -> None:
    """
    Play the whole journey against a server of its own: no key, no network.
    """
    if not _run(_demo()):
        sys.exit(1)


@main.command("mock-llm")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8788, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free port.")
def mock_llm(host: str, port: int) -> None:
    """
    Start the strict mock model server.
    """
    _run(_mock_llm(host, port))


@main.group()
def providers() -> None:
    """
    Look at model servers.
    """


@providers.command("check")
@click.argument("name", required=False)
@click.option(
    "--config", type=click.Path(path_type=Path), help="Settings file. [default: agent-harness.toml, if it exists]"
)
@click.option("--model", help="Model to ask for.")
@click.option("--api", type=click.Choice(["responses", "chat"]), help="Wire dialect of the model server.")
@click.option("--base-url", help="Its address up to and including /v1.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def providers_check(name: str | None, config: Path | None, as_json: bool, **flags: Any) -> None:
    """
    Try what a harness needs of the provider NAME, and say which settings cure what its server does wrong.

    About 13 short model calls are made. Exit code 0: all is well; 1: something fails; 2: the settings are wrong.
    """
    if not _run(_check_provider(name, config, as_json, flags)):
        sys.exit(1)


def _run(coroutine: Any) -> Any:
    """
    Run a command; what is wrong with its settings is told in one line.
    """
    try:
        return asyncio.run(coroutine)
    except (ConfigError, ListenError) as error:
        click.echo(f"agent-harness: {error}", err=True)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)


def _load(config: Path | None, flags: dict[str, Any]) -> "Settings":
    """
    Settings from flags, the settings file and the environment.
    """
    from agent_harness.config import load_settings
    from agent_harness.settings_file import DEFAULT_FILE, read_settings_file

    if config is None and Path(DEFAULT_FILE).is_file():
        config = Path(DEFAULT_FILE)
    return load_settings(None if config is None else read_settings_file(config), **flags)


async def _serve(config: Path | None, demo: bool, flags: dict[str, Any]) -> None:
    from agent_harness.server import make_app
    from agent_harness.serving import serve_app
    from agent_harness.wiring import load_adapters, open_demo_harness, open_harness

    settings = _load(config, flags)
    async with open_demo_harness(settings) if demo else open_harness(settings) as harness:
        warming: list[asyncio.Task[None]] = []

        def announce(url: str) -> None:
            click.echo(f"agent-harness listens on {url}{' with the demo model' if demo else ''}")
            if not demo:
                _warn_of_missing_keys(settings)
                warming.append(asyncio.create_task(asyncio.to_thread(load_adapters)))

        await serve_app(make_app(harness), settings.host, settings.port, on_listening=announce)


def _warn_of_missing_keys(settings: "Settings") -> None:
    for provider in settings.providers:
        if provider.needs_key and provider.key() is None:
            variable = provider.api_key_env or "api_key"
            click.echo(f"No {variable} is set: turns fail with provider_auth until it is.", err=True)


async def _demo() -> bool:
    from aiohttp import web

    from agent_harness.config import Settings
    from agent_harness.demo import play_demo
    from agent_harness.server import make_app
    from agent_harness.wiring import open_demo_harness

    runner = web.AppRunner(make_app(open_demo_harness(Settings())), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        click.echo(f"A server with the demo model listens on {url}. What follows is a client's view.\n")
        return await play_demo(url, click.echo)
    finally:
        await runner.cleanup()


async def _mock_llm(host: str, port: int) -> None:
    from agent_harness.serving import serve_app
    from agent_harness.testing.mock_llm import make_mock_app

    await serve_app(
        make_mock_app(),
        host,
        port,
        on_listening=lambda url: click.echo(f"The mock model server listens on {url}; its base URL is {url}/v1"),
    )


async def _check_provider(name: str | None, config: Path | None, as_json: bool, flags: dict[str, Any]) -> bool:
    from agent_harness import providers_report as reporting
    from agent_harness.providers_check import check_provider, choose_provider

    provider = choose_provider(_load(config, {}), name, flags)

    def tell(lines: list[str]) -> None:
        if not as_json:
            click.echo("\n".join(lines))

    tell([reporting.describe_provider(provider), ""])
    report = await check_provider(provider, lambda probe: tell(reporting.describe_probe(probe)))
    tell(reporting.describe_check(report))
    if as_json:
        click.echo(json.dumps(reporting.report_json(report), indent=2, ensure_ascii=False))
    return report.is_fine
