"""
What a person sees: text made harmless for a terminal, and a screen with styles where there is something to show them.

Whatever a model, a tool or a server wrote is cleaned before it is printed: control characters could move the cursor,
set the window's title, write to the clipboard, or make one command look like another.
"""

import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, TextIO

__all__ = ["Screen", "clean", "clean_line", "dump_json", "is_plain"]

# Besides C0 (without tab and line feed), DEL and C1: what reorders text, line separators, and halves of characters.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str) -> str:
    """
    *text* with control characters made visible; tabs and line feeds stay.
    """
    return _UNSAFE.sub(_show, text.replace("\r\n", "\n"))


def clean_line(text: str) -> str:
    """
    *text* as one line.
    """
    return clean(text).replace("\n", "␊").replace("\t", " ")


def _show(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def dump_json(value: Any, indent: int | None = None) -> str:
    """
    *value* as JSON that a terminal can show: one line, unless *indent* is given.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _UNSAFE_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def is_plain(stream: TextIO | None) -> bool:
    """
    Whether *stream* is to get text alone: it is no terminal, or a simple one, or NO_COLOR is set. None, which is what a
    closed one is, is no terminal.
    """
    return stream is None or not stream.isatty() or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


class Screen:
    """
    Writes to *stream*, everything cleaned. Styles are those of rich; without it, and on a plain stream, there are none.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._console = None if is_plain(self._stream) else _make_console(self._stream)
        self.at_start = True

    def write(self, text: str, style: str = "") -> None:
        """
        Write *text* as it comes, without a line's end.
        """
        if not text:
            return
        shown = clean(text)
        self.at_start = shown.endswith("\n")
        encoding = self._stream.encoding or "utf-8"
        shown = shown.encode(encoding, "backslashreplace").decode(encoding)
        if self._console is None or not style:
            self._stream.write(shown)
            self._stream.flush()
        else:
            self._console.print(shown, style=style, end="", markup=False, highlight=False, emoji=False, soft_wrap=True)

    def line(self, text: str = "", style: str = "") -> None:
        """
        Write lines of their own.
        """
        self.start_line()
        self.write(text, style)
        self._stream.write("\n")
        self._stream.flush()
        self.at_start = True

    def start_line(self) -> None:
        """
        End the line that was begun, if one was.
        """
        if not self.at_start:
            self.write("\n")

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """
        Write a table, each cell on one line.
        """
        cleaned = [[clean_line(cell) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(heads, *cleaned, strict=True)]
        for index, row in enumerate((heads, *cleaned)):
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            self.line("  ".join(cells).rstrip(), "" if index else "bold")


def _make_console(stream: TextIO) -> Any:
    """
    A rich console, or None if rich is not installed.
    """
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=stream)
