"""
Files that a command writes: whole, or not at all.
"""

import contextlib
import os
import secrets
import stat
from pathlib import Path

from agent_harness.cli.exits import CommandFailed

__all__ = ["write_whole"]


def write_whole(path: Path, text: str) -> None:
    """
    Write *text* to the file *path*, or through a link to the file it leads to; until all of it is written the file
    stays as it was. What is no plain file (a pipe, say) is written as it is.

    Raises:
        CommandFailed: it cannot be written.
    """
    try:
        target = Path(os.path.realpath(path))
        mode = target.stat().st_mode if target.exists() else None
        if mode is not None and not stat.S_ISREG(mode):
            target.write_text(text, encoding="utf-8")
            return
        _replace(target, text, mode)
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error.strerror}.") from None


def _replace(target: Path, text: str, mode: int | None) -> None:
    temporary = target.with_name(f".agent-harness-{secrets.token_hex(8)}")
    try:
        with temporary.open("x", encoding="utf-8", newline="") as file:
            if mode is not None:
                os.chmod(temporary, stat.S_IMODE(mode))
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
