"""
``chat``: a conversation with a server's session, or with a harness in this process.
"""

import asyncio
import contextlib
import logging
import shlex
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click
from click.core import ParameterSource

from agent_harness.cli.exits import CommandFailed, run
from agent_harness.cli.options import (
    DEFAULT_URL,
    api_option,
    config_option,
    load,
    naming_session,
    open_client,
    server_options,
)
from agent_harness.errors import AuthenticationError, ConfigError, PermissionDenied, RequestError, Unavailable

if TYPE_CHECKING:
    from agent_harness.cli.approval import Ask
    from agent_harness.cli.partners import Partner
    from agent_harness.cli.terminal import Screen
    from agent_harness.client import Client
    from agent_harness.config import Settings

__all__ = ["chat"]

INSTRUCTIONS = """\
You help with the files of one folder, by tools that run on the user's machine. Paths are relative to that folder. \
Read a file before you edit it. The user may refuse a call; then ask, or do without."""
"""Of an agent that was not named, with the coding tools."""


@attrs.frozen(kw_only=True)
class _Options:
    url: str
    api_key: str | None
    local: bool
    config: Path | None
    model: str | None
    api: str | None
    no_key: bool
    demo: bool
    agent: str | None
    session: str | None
    tools: str | None
    root: Path | None
    yes: bool
    message: str | None
    as_json: bool


@click.command()
@server_options
@click.option("--local", is_flag=True, help="Talk with a harness in this process, without a server.")
@config_option
@click.option("--model", help="The model; with --local, of agents that name none.")
@api_option
@click.option("--no-key", is_flag=True, help="With --local: the model server wants no key.")
@click.option("--demo", is_flag=True, help="With --local: the built-in demo model, no key, no network.")
@click.option("--agent", metavar="NAME", help="An agent of the settings file, by its name.")
@click.option("--session", metavar="ID", help="Go on with this session of the server.")
@click.option("--tools", type=click.Choice(["coding"]), help="Offer tools that run here, on the files of --root.")
@click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The folder that the tools work in. [default: the working directory]",
)
@click.option("--yes", is_flag=True, help="Run every call without asking.")
@click.option(
    "-m", "--message", metavar="TEXT", help="Say only this, print the answer, and end; - reads it from input."
)
@click.option("--json", "as_json", is_flag=True, help="With -m: print each event as a line of JSON.")
@click.pass_context
def chat(context: click.Context, /, **given: Any) -> None:
    """
    Talk with an agent: at a server, or with --local in this process.

    --config, --api, --no-key and --demo go with --local.

    Ctrl-C ends the running turn, also at a question; a second one leaves. At the prompt the first one warns, a second
    one leaves. Ctrl-D at the prompt leaves; at a question it means no.

    \b
    Exit code, with -m: 0 the turn completed; 1 it failed, was cut short, or
    the server cannot be reached; 2 the call or the settings are wrong, a key
    is missing; 130 it was ended by Ctrl-C. Without -m: 0 when you leave; 130
    ended by Ctrl-C without a terminal.
    """
    options = _Options(**given)
    _check(options, context)
    sys.exit(run(_chat(options)))


def _check(options: _Options, context: click.Context) -> None:
    """
    Refuse options that say nothing together.
    """

    def was_given(name: str) -> bool:
        return context.get_parameter_source(name) is ParameterSource.COMMANDLINE

    if options.local:
        refused = [f"--{name.replace('_', '-')}" for name in ("url", "api_key", "session") if was_given(name)]
        reason = "goes with a server, not with --local"
    else:
        refused = [f"--{name.replace('_', '-')}" for name in ("config", "api", "no_key", "demo") if was_given(name)]
        reason = "goes with --local; a server has its own"
        if not refused and options.session is not None:
            refused = [f"--{name}" for name in ("model", "agent") if was_given(name)]
            reason = "is for a new session, not for --session"
    if not refused and options.tools is None:
        refused, reason = [f"--{name}" for name in ("root", "yes") if was_given(name)], "goes with --tools"
    if not refused and options.as_json and options.message is None:
        refused, reason = ["--json"], "goes with -m"
    if refused:
        raise click.UsageError(f"{refused[0]} {reason}.")
    if options.agent is not None and options.model is not None and not options.local:
        raise click.UsageError("Give --agent or --model, not both.")


async def _chat(options: _Options) -> int:
    from agent_harness.cli.conversation import Conversation, say_once
    from agent_harness.cli.keyboard import Interrupts, Keyboard
    from agent_harness.cli.terminal import Screen
    from agent_harness.cli.turns import TurnView

    text = _read_message(options.message)
    out = Screen(sys.stdout)
    # With one message, standard output is for the answer alone.
    aside = out if text is None else Screen(sys.stderr)
    interrupts = Interrupts()
    # A process may have no standard input at all.
    has_input = sys.stdin is not None
    if text is None and not has_input:
        raise ConfigError("There is no standard input to read messages from; give one with -m.")
    interactive = text is None or (has_input and sys.stdin.isatty() and options.message != "-")
    keyboard = Keyboard(aside, interrupts) if interactive else None
    tools = _make_tools(options, aside, None if keyboard is None else keyboard.ask)
    own = {function.__name__ for function in tools}
    async with _open_partner(options, tools) as partner:
        with interrupts:
            if text is not None:
                if partner.resumable and options.session is None:
                    aside.line(f"Session {partner.session_id}", "dim")
                view = TurnView(out, aside, own)
                return await say_once(partner, text, interrupts, view, aside, out if options.as_json else None)
            assert keyboard is not None
            resume_with = _resume_with(options, partner.session_id)
            conversation = Conversation(partner, out, keyboard, interrupts, own, resume_with)
            return await conversation.hold(resumed=options.session is not None)


def _resume_with(options: _Options, session_id: str) -> str:
    """
    The command that goes on with the session, for a shell; without the key, which is nobody else's to see, and --yes.
    """
    words = ["agent-harness", "chat", "--session", session_id]
    if options.url.rstrip("/") != DEFAULT_URL:
        words += ["--url", options.url]
    if options.tools is not None:
        words += ["--tools", options.tools]
    if options.root is not None:
        words += ["--root", str(options.root)]
    return shlex.join(words)


def _read_message(given: str | None) -> str | None:
    text = given
    if given == "-":
        text = "" if sys.stdin is None else sys.stdin.buffer.read().decode(errors="replace")
        # The end of the last line, which a shell puts there, is none of the message's.
        text = text.removesuffix("\n").removesuffix("\r")
    if text is not None and not text.strip():
        raise ConfigError("The message is empty; give one with -m, or on standard input with -m -.")
    return text


def _make_tools(options: _Options, screen: "Screen", ask: "Ask | None") -> list[Callable[..., Any]]:
    if options.tools is None:
        return []
    from agent_harness.cli.approval import Supervisor
    from agent_harness.coding import CodingTools

    return Supervisor(screen, ask, allow_all=options.yes).watch(CodingTools(options.root or Path.cwd()))


@contextlib.asynccontextmanager
async def _open_partner(options: _Options, tools: list[Callable[..., Any]]) -> "AsyncIterator[Partner]":
    from agent_harness.cli.partners import AtServer, InProcess

    if not options.local:
        async with open_client(options.url, options.api_key) as client:
            # Whether there is a server at all is told soon; one that was there may come back.
            await _check_server(client)
        async with open_client(options.url, options.api_key, patience_s=30.0) as client:
            with naming_session(options.session):
                partner = await AtServer.open(client, tools, session_id=options.session, body=_session_body(options))
            yield partner
        return

    from agent_harness.wiring import load_adapters, open_demo_harness, open_harness

    # How a turn ended is told by the conversation; log lines would run into it.
    logging.getLogger("agent_harness").setLevel(logging.ERROR)
    settings = load(options.config, {"model": options.model, "api": options.api, "no_key": options.no_key})
    if not options.demo:
        _check_key(settings, options.agent)
    async with open_demo_harness(settings) if options.demo else open_harness(settings) as harness:
        warming = None if options.demo else asyncio.create_task(asyncio.to_thread(load_adapters, settings))
        try:
            yield InProcess.open(harness, tools, _session_body(options))
        finally:
            if warming is not None:
                warming.cancel()


async def _check_server(client: "Client") -> None:
    """
    Raises:
        CommandFailed: what answers there is no agent-harness.
        RequestError, ConnectionError: nobody answers, or we are not let in.
    """
    try:
        health: Any = await client.health()
    except (AuthenticationError, PermissionDenied, Unavailable):
        raise
    except RequestError as error:
        said = error.message.rstrip(".")
    else:
        if isinstance(health, dict) and "status" in health and "version" in health:
            return
        said = "/health gives something else"
    raise CommandFailed(f"What answers there is no agent-harness server ({said}). Check the address, --url.")


def _session_body(options: _Options) -> dict[str, Any]:
    if options.agent is not None:
        return {"agent_id": options.agent}
    agent: dict[str, Any] = {"name": "chat"}
    if options.model is not None:
        agent["model"] = options.model
    if options.tools is not None:
        agent["instructions"] = INSTRUCTIONS
    return {"agent": agent}


def _check_key(settings: "Settings", agent: str | None) -> None:
    """
    Raises:
        ConfigError: the provider that will be asked needs a key and has none.
    """
    named = settings.agents.get(agent) if agent is not None else None
    wanted = (named.provider if named is not None else None) or settings.default_provider
    for provider in settings.providers:
        if provider.name == wanted and provider.needs_key and provider.key() is None:
            variable = provider.api_key_env or f"api_key of the provider {provider.name}"
            raise ConfigError(f"No {variable} is set; set it, or say --no-key if the model server wants none.")
