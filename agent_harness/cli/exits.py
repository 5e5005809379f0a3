"""
How commands end: an exit code, and one line if something is wrong.
"""

import asyncio
import contextlib
import errno
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TextIO, TypeVar

import click

from agent_harness.cli.terminal import clean_line
from agent_harness.errors import ConfigError, ListenError, RequestError

__all__ = ["FAILED", "INTERRUPTED", "MISUSED", "CommandFailed", "Commands", "fail", "run"]

FAILED = 1
MISUSED = 2
INTERRUPTED = 130

T = TypeVar("T")

_UNWRITABLE = (errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC, errno.ENXIO, errno.EPIPE)
"""What writing to standard output can fail with."""


class CommandFailed(Exception):
    """
    Ends a command with this line.
    """


def run(coroutine: Coroutine[Any, Any, T], make_loop: Callable[[], asyncio.AbstractEventLoop] | None = None) -> T:
    """
    Run a command, on a loop of *make_loop* if it is given; what is wrong ends the process with one line.
    """
    try:
        with asyncio.Runner(loop_factory=make_loop) as runner:
            return runner.run(coroutine)
    except ConfigError as error:
        fail(str(error), MISUSED)
    except (CommandFailed, ListenError) as error:
        fail(str(error))
    except RequestError as error:
        # Whoever answers in other words than ours may be somebody else.
        hint = " Check the address, --url." if error.code.startswith("http_") else ""
        fail(error.message + hint)
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
    with contextlib.suppress(OSError):
        click.echo(f"agent-harness: {clean_line(' '.join(message.split()))}", err=True)
    sys.exit(code)


class Commands(click.Group):
    """
    Commands that end with one line where their output cannot be written; quietly, if nobody reads it any more.
    """

    def main(self, *args: Any, **extra: Any) -> Any:
        """
        Run the command that the words name.
        """
        _open_streams()
        try:
            try:
                return super().main(*args, **extra)
            finally:
                sys.stdout.flush()
        except OSError as error:
            if error.errno not in _UNWRITABLE or error.filename is not None:
                raise
            _give_up(sys.stdout)
            if error.errno == errno.EPIPE:
                sys.exit(FAILED)
            fail(f"The output cannot be written: {error.strerror}.")
        finally:
            _give_up_unless_written(sys.stderr)


def _open_streams() -> None:
    """
    Where a standard stream was closed: an output that refuses what is written, as a closed one does, and none for
    errors. So nothing else can get its number, either.
    """
    if sys.stdout is None:
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _give_up(stream: TextIO) -> None:
    """
    Let what is left in the stream go nowhere: at its end Python would try once more, and complain.
    """
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _give_up_unless_written(stream: TextIO) -> None:
    try:
        stream.flush()
    except OSError:
        _give_up(stream)
