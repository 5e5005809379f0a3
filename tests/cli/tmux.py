"""
A real terminal: a program in tmux, what is on its screen, and keys pressed.
"""

import os
import secrets
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from tests.processes import environment

__all__ = ["Terminal", "open_terminal"]

WAIT_S = 15.0
"""Longest wait for something to show, in seconds: a program starts in it, on a machine that may be busy."""

POLL_S = 0.02
"""tmux tells nobody when a screen changes, so it is looked at again and again; nothing else here is polled."""


@attrs.frozen
class Terminal:
    """
    A terminal of 120 × 200 with one program in it.
    """

    server: str

    def screen(self) -> str:
        """
        What stands on it, lines without the blanks at their ends.
        """
        text = self._tmux("capture-pane", "-p", "-t", "main")
        return "\n".join(line.rstrip() for line in text.splitlines()).rstrip("\n")

    def styled_screen(self) -> str:
        """
        The same with the sequences that style it.
        """
        return self._tmux("capture-pane", "-e", "-p", "-t", "main")

    def wait_for(self, text: str, times: int = 1) -> str:
        """
        The screen once *text* stands there, so many *times*.
        """
        return self._wait(lambda screen: screen.count(text) >= times, text)

    def wait_for_end(self) -> str:
        """
        The screen once the program has ended, and its exit code.
        """
        return self._wait(lambda screen: "exit code " in screen, "the program's end")

    def type(self, text: str) -> None:
        """
        Type *text* and Enter.
        """
        self._tmux("send-keys", "-t", "main", "-l", "--", text)
        self.press("Enter")

    def press(self, *keys: str) -> None:
        """
        Press keys, by tmux's names for them (``C-c``), at once.
        """
        self._tmux("send-keys", "-t", "main", *keys)

    def _wait(self, is_there: Callable[[str], bool], what: str) -> str:
        deadline = time.monotonic() + WAIT_S
        while not is_there(screen := self.screen()):
            assert time.monotonic() < deadline, f"{what!r} never showed:\n{screen}"
            time.sleep(POLL_S)
        return screen

    def _tmux(self, *arguments: str) -> str:
        ran = subprocess.run(["tmux", "-L", self.server, *arguments], capture_output=True, text=True, timeout=WAIT_S)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout


@contextmanager
def open_terminal(command: Sequence[str], folder: Path, **variables: str) -> Iterator[Terminal]:
    """
    Run *command* in a terminal of its own; its screen stays after its end.
    """
    server = f"agent-harness-{secrets.token_hex(6)}"
    line = f'{shlex.join(command)}; echo "exit code $?"; cat'
    kept = {name: value for name, value in environment(**variables).items() if not name.startswith("TMUX")}
    subprocess.run(
        ["tmux", "-L", server, "-f", os.devnull, "new-session", "-d", "-s", "main", "-x", "120", "-y", "200", line],
        cwd=folder, env={"LANG": "C.UTF-8", **kept}, check=True, timeout=WAIT_S,
    )  # fmt: skip
    try:
        yield Terminal(server)
    finally:
        subprocess.run(["tmux", "-L", server, "kill-server"], capture_output=True, timeout=WAIT_S)
