"""
``sessions``: what a server holds.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent_harness.cli.exits import run
from agent_harness.cli.options import naming_session, open_client, server_options

if TYPE_CHECKING:
    from agent_harness.protocol.pages import Snapshot

__all__ = ["sessions"]


@click.group()
def sessions() -> None:
    """
    Look at the sessions of a server.

    Exit code 0: done; 1: the server cannot be reached or refuses, or has no such session; 2: the call is wrong.
    """


@sessions.command("list")
@server_options
@click.option("--limit", type=click.IntRange(1), help="Most sessions to list. [default: all]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value: an array of sessions without items.")
def list_sessions(url: str, api_key: str | None, limit: int | None, as_json: bool) -> None:
    """
    List the sessions, the newest first.
    """
    from agent_harness.cli.terminal import Screen, dump_json
    from agent_harness.cli.transcript import write

    found = run(_list(url, api_key, limit))
    if as_json:
        click.echo(dump_json([write(session) for session in found], indent=2))
        return
    rows = [
        (session.id, session.status, _when(session.updated_at), session.agent.model or "-", session.agent.name or "-")
        for session in found
    ]
    Screen().table(("ID", "STATUS", "UPDATED", "MODEL", "AGENT"), rows)


@sessions.command("show")
@click.argument("session_id", metavar="ID")
@server_options
@click.option("--full", is_flag=True, help="Show tool outputs whole.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value: the session with its items.")
def show_one(session_id: str, url: str, api_key: str | None, full: bool, as_json: bool) -> None:
    """
    Show the transcript of the session ID.
    """
    from agent_harness.cli.terminal import Screen, dump_json
    from agent_harness.cli.transcript import show_session, write

    session = run(_get(url, api_key, session_id))
    if as_json:
        click.echo(dump_json(write(session), indent=2))
    else:
        show_session(Screen(), session, full=full)


@sessions.command("export")
@click.argument("session_id", metavar="ID")
@server_options
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write to this file, whole or not at all. [default: standard output]",
)
def export(session_id: str, url: str, api_key: str | None, output: Path | None) -> None:
    """
    Print the settled items of the session ID, one JSON object a line.

    What a running turn has not finished is left out.
    """
    run(_export(url, api_key, session_id, output))


def _when(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


async def _list(url: str, api_key: str | None, limit: int | None) -> "list[Snapshot]":
    found = []
    async with open_client(url, api_key) as client:
        async for session in client.sessions.list(page_size=min(limit or 100, 100)):
            found.append(session)
            if len(found) == limit:
                break
    return found


async def _get(url: str, api_key: str | None, session_id: str) -> "Snapshot":
    async with open_client(url, api_key) as client:
        with naming_session(session_id):
            return await (await client.sessions.get(session_id)).snapshot()


async def _export(url: str, api_key: str | None, session_id: str, output: Path | None) -> None:
    from agent_harness.cli.files import write_whole
    from agent_harness.cli.terminal import dump_json
    from agent_harness.cli.transcript import write

    # All of it first: nothing is written of a session that cannot be read to its end.
    async with open_client(url, api_key) as client:
        with naming_session(session_id):
            items = [item async for item in client.sessions.items(session_id)]
    text = "".join(f"{dump_json(write(item))}\n" for item in items)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_whole(output, text)
