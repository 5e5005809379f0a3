"""
``serve``, ``demo`` and ``mock-llm``: the commands that listen.
"""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent_harness.cli.exits import FAILED, run
from agent_harness.cli.options import api_option, config_option, load

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
@click.option("--demo", is_flag=True, help="Answer with the built-in demo model: no key, no network.")
def serve(config: Path | None, demo: bool, **flags: Any) -> None:
    """
    Start the server.

    The model server is OPENAI_BASE_URL (OpenAI's if unset), its key OPENAI_API_KEY.
    """
    run(_serve(config, demo, flags))


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


async def _serve(config: Path | None, demo: bool, flags: dict[str, Any]) -> None:
    from agent_harness.server import make_app
    from agent_harness.serving import serve_app
    from agent_harness.wiring import load_adapters, open_demo_harness, open_harness

    settings = load(config, flags)
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
