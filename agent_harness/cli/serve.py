"""
``serve``, ``demo`` and ``mock-llm``: the commands that listen.
"""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent_harness.cli.exits import FAILED, MISUSED, fail, run
from agent_harness.cli.options import api_option, config_option, load
from agent_harness.logs import setup_logs

if TYPE_CHECKING:
    from agent_harness.config import Settings

__all__ = ["demo", "mock_llm", "serve"]


@click.command()
@config_option
@click.option("--host", help="Address to listen on. [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="0 takes a free port. [default: 8787]")
@click.option("--model", help="Model of agents that name none.")
@api_option
@click.option("--max-sessions", type=click.IntRange(1), help="Most sessions held at once. [default: 10000]")
@click.option("--no-key", is_flag=True, help="The model server wants no key.")
@click.option("--api-key", "api_keys", multiple=True, help="Let in who sends this key; may be given several times.")
@click.option("--allow-host", "allowed_hosts", multiple=True, help="Host header to answer to, without port.")
@click.option("--origin", "allowed_origins", multiple=True, help="Origin whose pages may use the server.")
@click.option("--insecure", is_flag=True, help="Listen on any address without a key.")
@click.option(
    "--grace", type=click.FloatRange(0), help="Seconds that turns have to end when the server stops. [default: 3]"
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="From which level on log lines are written.",
)
@click.option("--log-json", is_flag=True, help="Write the log as one JSON object a line.")
@click.option("--state", type=click.Path(dir_okay=False), help="File that sessions are kept in; without, in memory.")
@click.option("--node", help="Name of this process among several behind a router; part of its sessions' ids.")
@click.option("--uvloop", is_flag=True, help="Run on uvloop, which the extra `fast` brings.")
@click.option("--demo", is_flag=True, help="Answer with the built-in demo model: no key, no network.")
def serve(config: Path | None, demo: bool, log_level: str, log_json: bool, uvloop: bool, **flags: Any) -> None:
    """
    Start the server.

    The model server is OPENAI_BASE_URL (OpenAI's if unset), its key OPENAI_API_KEY. AGENT_HARNESS_API_KEY is a key that
    lets in, like --api-key.
    """
    setup_logs(json=log_json, level=log_level.upper())
    make_loop = _find_uvloop() if uvloop else None
    run(_serve(config, demo, flags), make_loop)


@click.command()
def demo() -> None:
    """
    Play the whole journey against a server of its own: no key, no network.
    """
    if not run(_demo()):
        sys.exit(FAILED)


@click.command("mock-llm")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8788, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free port.")
def mock_llm(host: str, port: int) -> None:
    """
    Start the strict mock model server.
    """
    run(_mock_llm(host, port))


def _find_uvloop() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        from uvloop import new_event_loop
    except ImportError:
        fail("--uvloop needs uvloop: pip install 'agent-harness[fast]'. It does not run on Windows.", MISUSED)
    return new_event_loop


async def _serve(config: Path | None, demo: bool, flags: dict[str, Any]) -> None:
    from agent_harness.server import make_app
    from agent_harness.serving import serve_app
    from agent_harness.wiring import load_adapters, make_access, open_demo_harness, open_harness

    settings = load(config, flags)
    access = make_access(settings)
    async with open_demo_harness(settings) if demo else open_harness(settings) as harness:

        def announce(url: str) -> None:
            # What really runs, not what was asked for.
            loop = " (uvloop)" if type(asyncio.get_running_loop()).__module__.startswith("uvloop") else ""
            click.echo(f"agent-harness listens on {url}{' with the demo model' if demo else ''}{loop}")
            if not demo:
                _warn_of_missing_keys(settings)

        await serve_app(
            make_app(harness, access),
            settings.host,
            settings.port,
            on_listening=announce,
            warm=lambda: None if demo else load_adapters(settings),
            on_stopping=harness.drain,
        )


def _warn_of_missing_keys(settings: "Settings") -> None:
    for provider in settings.providers:
        if provider.needs_key and provider.key() is None:
            variable = provider.api_key_env or "api_key"
            hint = "start again with it, or with --no-key if the model server wants none."
            click.echo(f"No {variable} is set: turns will fail with provider_auth; {hint}", err=True)


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
