"""
How commands end: an exit code, and one line if something is wrong.
"""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, NoReturn, TypeVar

import click

from agent_harness.cli.terminal import clean_line
from agent_harness.errors import ConfigError, ListenError, RequestError

__all__ = ["FAILED", "INTERRUPTED", "MISUSED", "CommandFailed", "fail", "run"]

FAILED = 1
MISUSED = 2
INTERRUPTED = 130

T = TypeVar("T")


class CommandFailed(Exception):
    """
    Ends a command with this line.
    """


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """
    Run a command; what is wrong ends the process with one line.
    """
    try:
        return asyncio.run(coroutine)
    except ConfigError as error:
        fail(str(error), MISUSED)
    except (CommandFailed, ListenError) as error:
        fail(str(error))
    except RequestError as error:
        fail(error.message)
    except ConnectionError as error:
        if isinstance(error, BrokenPipeError):
            raise  # click ends quietly when nobody reads what is printed
        fail(f"{error} Start a server with `agent-harness serve`, or name another with --url.")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def fail(message: str, code: int = FAILED) -> NoReturn:
    """
    End the process with one line.
    """
    click.echo(f"agent-harness: {clean_line(' '.join(message.split()))}", err=True)
    sys.exit(code)
