"""
The tools. Their docstrings are what the model reads of them.
"""

import asyncio
import os
import re
from collections.abc import Callable
from typing import Any

from agent_harness.coding.grep import search_texts
from agent_harness.coding.patterns import matches, read_pattern
from agent_harness.coding.roots import Parts, Root
from agent_harness.coding.shell import run_command

__all__ = ["CHANGING", "CodingTools", "FileRefused"]

CHANGING = frozenset({"write_file", "edit_file", "run_bash"})
"""The tools that change something, or may: a person should be asked before they run."""

FILE_MAX = 10_000_000
"""Largest file that is read or written, in bytes."""

READ_MAX = 100_000
"""Most that one call of read_file gives, in characters."""

FOUND_MAX = 500
"""Most files, or lines, that one search gives."""

SEEN_MAX = 200_000
"""Most files and folders that one search looks at."""

SEARCHED_MAX = 50_000_000
"""Most that one search by content reads, in bytes."""

LINE_MAX = 500
"""Longest line that a search by content gives, in characters."""

SEARCH_TIMEOUT_S = 20.0
BASH_TIMEOUT_MAX_S = 600.0

SKIPPED = (".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules")
"""Folders that searches leave out, unless they begin there."""


class FileRefused(ValueError):
    """
    A file that is binary, or an edit that does not fit; nothing was changed.
    """


class CodingTools:
    """
    Tools for the files below *root*. Nothing outside is read or written by them, except by `run_bash`, whose commands
    merely start there.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Root(root)

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """
        All of them, to be offered with a message.
        """
        return (
            self.read_file, self.write_file, self.edit_file, self.glob_files, self.grep_files, self.run_bash,
        )  # fmt: skip

    def read_file(self, path: str, first_line: int = 1, line_count: int = 2000) -> str:
        """
        Read a text file.

        Args:
            path: Relative to the root folder.
            first_line: Where to begin, counted from 1.
            line_count: How many lines to read.
        """
        text = self._read_text(path)
        if not text:
            return "[the file is empty]"
        lines = re.findall(r"[^\n]*\n|[^\n]+", text)
        begin = max(1, first_line)
        if begin > len(lines):
            raise FileRefused(f"{path} has {len(lines)} lines; there is no line {begin}.")
        chosen = lines[begin - 1 : begin - 1 + max(1, line_count)]
        given, end = "".join(chosen), begin - 1 + len(chosen)
        if len(given) > READ_MAX:
            given = given[:READ_MAX]
            end = begin + given.count("\n")
            return f"{given}\n[cut in line {end} of {len(lines)}, after {READ_MAX:,} characters]"
        return given if end == len(lines) else f"{given}[lines {begin} to {end} of {len(lines)}]"

    def write_file(self, path: str, content: str) -> str:
        """
        Write a text file, whole: a new one, or in place of the one that is there. Folders are made as needed.

        Args:
            path: Relative to the root folder.
            content: All of the file.
        """
        return f"wrote {self._write_text(self.root.locate(path), content)} bytes to {path}"

    def edit_file(self, path: str, old_text: str, new_text: str) -> str:
        """
        Replace one passage of a text file. The old text must stand in the file exactly so, blanks and line breaks
        included, and exactly once: give as many lines around as it takes.

        Args:
            path: Relative to the root folder.
            old_text: What is replaced.
            new_text: What stands there then.
        """
        if not old_text:
            raise FileRefused("old_text is empty; write_file makes a new file.")
        if old_text == new_text:
            raise FileRefused("old_text and new_text are the same.")
        parts = self.root.locate(path)
        text = self._read_text(path, parts)
        at = text.find(old_text)
        if at < 0:
            hint = " The file's lines end with \\r\\n." if "\r\n" in text and "\r\n" not in old_text else ""
            raise FileRefused(f"old_text does not stand in {path}; read the file again and copy it exactly.{hint}")
        if text.find(old_text, at + 1) >= 0:
            raise FileRefused(f"old_text stands in {path} more than once; give more of the lines around it.")
        self._write_text(parts, text[:at] + new_text + text[at + len(old_text) :])
        return f"edited {path}, line {text.count(chr(10), 0, at) + 1}"

    def glob_files(self, pattern: str, path: str = ".") -> str:
        """
        List the files whose path fits a pattern.

        Args:
            pattern: Such as src/**/*.py; one without a slash is looked for at any depth. Relative to path.
            path: The folder to look in, relative to the root folder.
        """
        found, note = self._find(path, pattern)
        listed = ["/".join(parts) for parts in found[:FOUND_MAX]]
        if len(found) > FOUND_MAX:
            note += f"\n[{len(found) - FOUND_MAX:,} more files fit]"
        return ("\n".join(listed) or "[no file fits]") + note

    async def grep_files(self, pattern: str, path: str = ".", files: str = "**", ignore_case: bool = False) -> str:
        """
        Find the lines of text files in which a regular expression (Python's) matches, as path:line number:line.

        Args:
            pattern: The regular expression.
            path: A folder or a file, relative to the root folder.
            files: Which files, as for glob_files.
            ignore_case: Whether large and small letters are the same.
        """
        texts, note = await asyncio.to_thread(self._gather, path, files)
        found = await search_texts(
            pattern,
            texts,
            ignore_case=ignore_case,
            most=FOUND_MAX + 1,
            width=LINE_MAX,
            timeout_s=SEARCH_TIMEOUT_S,
        )
        lines = [f"{name}:{number}:{line}" for name, number, line in found[:FOUND_MAX]]
        if len(found) > FOUND_MAX:
            note += f"\n[only the first {FOUND_MAX} lines]"
        return ("\n".join(lines) or "[no line fits]") + note

    async def run_bash(self, command: str, timeout_s: float = 60) -> str:
        """
        Run a command with bash, in the root folder, without input. What it leaves in the background is ended
        when it is over.

        Args:
            command: The command.
            timeout_s: How many seconds it may take, 600 at most.
        """
        bounded = min(max(0.1, timeout_s), BASH_TIMEOUT_MAX_S)
        return await run_command(command, self.root.path, bounded)

    # How it is done.

    def _read_text(self, path: str, parts: Parts | None = None) -> str:
        data = self.root.read(self.root.locate(path) if parts is None else parts, FILE_MAX)
        text = _decode(data)
        if text is None:
            raise FileRefused(f"{path} is binary ({len(data):,} bytes) and is not shown.")
        return text

    def _write_text(self, parts: Parts, text: str) -> int:
        data = text.encode()
        if len(data) > FILE_MAX:
            raise FileRefused(f"That would be {len(data):,} bytes, over {FILE_MAX:,}.")
        self.root.replace(parts, data)
        return len(data)

    def _find(self, path: str, pattern: str) -> tuple[list[Parts], str]:
        """
        The files below *path* that fit, and a note if not all was looked at.
        """
        start, wanted = self.root.locate(path), read_pattern(pattern)
        found: list[Parts] = []
        for seen, entry in enumerate(self.root.walk(start, SKIPPED)):
            if seen >= SEEN_MAX:
                return found, f"\n[stopped after {SEEN_MAX:,} files; look in a smaller folder]"
            if entry.is_file and matches(entry.parts[len(start) :], wanted):
                found.append(entry.parts)
        return found, ""

    def _gather(self, path: str, files: str) -> tuple[list[tuple[str, str]], str]:
        """
        Names and contents of the text files that are to be searched, and a note if not all are.
        """
        try:
            found, note = self._find(path, files)
        except NotADirectoryError:
            return [(path, self._read_text(path))], ""
        texts, size = [], 0
        for parts in found:
            try:
                data = self.root.read(parts, FILE_MAX)
            except (OSError, ValueError):
                continue
            text = _decode(data)
            if text is not None:
                texts.append(("/".join(parts), text))
                size += len(data)
            if size > SEARCHED_MAX:
                return texts, f"{note}\n[stopped after {SEARCHED_MAX:,} bytes; look in a smaller folder]"
        return texts, note


def _decode(data: bytes) -> str | None:
    """
    *data* as text; None if it is none.
    """
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
