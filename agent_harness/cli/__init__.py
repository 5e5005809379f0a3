"""
The command line: options, signals, logging, exit codes. One file for each group of commands; what they do is imported
when they do it.
"""

import logging

import click

from agent_harness.cli.chat import chat
from agent_harness.cli.exits import Commands
from agent_harness.cli.providers import providers
from agent_harness.cli.serve import demo, mock_llm, serve
from agent_harness.cli.sessions import sessions
from agent_harness.logs import setup_logs
from agent_harness.version import VERSION

__all__ = ["main"]


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="agent-harness")
def main() -> None:
    """
    An agent server whose tools run on the client's side.

    \b
    Exit codes, of every command:
      0    done
      1    it failed: a port in use, a server or provider that cannot be
           reached or refuses, an unknown session, a turn that did not end well
      2    the call or the settings are wrong: options, settings file, a
           missing key
      130  ended by Ctrl-C

    What went wrong stands in one line on standard error.
    """
    setup_logs(json=False, level=logging.WARNING)


for _command in (serve, demo, mock_llm, providers, sessions, chat):
    main.add_command(_command)
