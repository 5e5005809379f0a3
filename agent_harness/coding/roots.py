"""
A folder that nobody gets out of: files below it are reached part by part, and no link is followed on the way.

A path is first resolved, so that links which stay inside the folder work. What was resolved is then opened part by
part, relative to the folder before it, with ``O_NOFOLLOW``: a part that somebody has made a link meanwhile fails.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator

import attrs

__all__ = ["Entry", "Parts", "PathRefused", "Root"]

Parts = tuple[str, ...]
"""A path below the root, with no link in it; the root itself is ``()``."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe would wait for its other end.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_LINKS = (errno.ELOOP, errno.EMLINK)
"""What opening a link with ``O_NOFOLLOW`` fails with."""


class PathRefused(ValueError):
    """
    A path that leads, or might lead, out of the root, or to what is no file; nothing was read or written.
    """


@attrs.frozen
class Entry:
    """
    Something in a folder; what is neither a plain file nor a folder has both False.
    """

    parts: Parts
    is_file: bool
    is_folder: bool


class Root:
    """
    The folder.

    Raises:
        NotADirectoryError: it is none, or is not there.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = os.path.realpath(folder)
        if not os.path.isdir(self.path):
            raise NotADirectoryError(f"{os.fspath(folder)} is no folder")

    def __repr__(self) -> str:
        return f"<Root {self.path}>"

    def locate(self, path: str) -> Parts:
        """
        Where *path*, relative to the root, really is.

        Raises:
            PathRefused: it is absolute, goes up, leads outside through a link, or is no path at all.
        """
        check_relative(path)
        try:
            real = os.path.realpath(os.path.join(self.path, path))
        except (OSError, ValueError):
            raise PathRefused(f"{path!r} is no path.") from None
        below = self.path.rstrip("/") + "/"
        if real == self.path:
            return ()
        if not real.startswith(below):
            raise PathRefused(f"{path} leads out of the root folder through a link.")
        return tuple(real[len(below) :].split("/"))

    def read(self, parts: Parts, most: int) -> bytes:
        """
        The content of a plain file.

        Raises:
            PathRefused: it is no plain file, or there is a link on the way.
            ValueError: it has more than *most* bytes.
            OSError: it cannot be read.
        """
        shown = "/".join(parts) or "."
        with _explain(shown), self._folder(parts[:-1]) as folder:
            fd = os.open(parts[-1] if parts else ".", _READ, dir_fd=folder)
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise PathRefused(f"{shown} is no plain file.")
                with open(fd, "rb", closefd=False) as file:
                    data = file.read(most + 1)
            finally:
                os.close(fd)
        if len(data) > most:
            raise ValueError(f"{shown} has more than {most:,} bytes.")
        return data

    def replace(self, parts: Parts, data: bytes) -> None:
        """
        Write a plain file, whole or not at all, with the folders it needs. One that is there keeps its mode.

        Raises:
            PathRefused: there is something else of that name, or a link on the way.
            OSError: it cannot be written.
        """
        shown = "/".join(parts) or "."
        if not parts:
            raise PathRefused("The root folder is no file.")
        name, temporary = parts[-1], f".agent-harness-{secrets.token_hex(8)}"
        with _explain(shown), self._folder(parts[:-1], make=True) as folder:
            mode = _mode_of(name, folder, shown)
            fd = os.open(temporary, _NEW, 0o666, dir_fd=folder)
            try:
                with open(fd, "wb") as file:
                    file.write(data)
                    if mode is not None:
                        os.fchmod(fd, mode)
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
                raise

    def walk(self, start: Parts, skip: Iterable[str] = ()) -> Iterator[Entry]:
        """
        What is in the folder *start* and below it, each folder's names in order; links are told and not followed.
        Folders with a name in *skip*, and those that cannot be read, are left out.

        Raises:
            OSError, PathRefused: *start* cannot be read.
        """
        skipped, waiting = frozenset(skip), [start]
        while waiting:
            parts = waiting.pop()
            try:
                entries = self._list(parts)
            except (OSError, PathRefused):
                if parts == start:
                    raise
                continue
            yield from entries
            waiting += [
                entry.parts for entry in reversed(entries) if entry.is_folder and entry.parts[-1] not in skipped
            ]

    def _list(self, parts: Parts) -> list[Entry]:
        with _explain("/".join(parts) or "."), self._folder(parts) as folder, os.scandir(folder) as found:
            return [
                Entry((*parts, entry.name), entry.is_file(follow_symlinks=False), entry.is_dir(follow_symlinks=False))
                for entry in sorted(found, key=lambda entry: entry.name)
            ]

    @contextlib.contextmanager
    def _folder(self, parts: Parts, *, make: bool = False) -> Iterator[int]:
        """
        A folder's descriptor, closed afterwards.
        """
        fd = os.open(self.path, _FOLDER)
        try:
            for part in parts:
                inner = _open_inner(part, fd, make)
                os.close(fd)
                fd = inner
            yield fd
        finally:
            os.close(fd)


def check_relative(path: str) -> None:
    """
    Raise PathRefused if *path* is absolute, or goes up.
    """
    if not path or "\0" in path:
        raise PathRefused(f"{path!r} is no path.")
    if path.startswith(("/", "~")):
        raise PathRefused(f"{path} is not relative to the root folder; write it so, as in src/main.py.")
    if ".." in path.split("/"):
        raise PathRefused(f"{path} goes up with '..'; paths start at the root folder and stay below it.")


def _open_inner(name: str, folder: int, make: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=folder)
    return os.open(name, _FOLDER, dir_fd=folder)


def _mode_of(name: str, folder: int, shown: str) -> int | None:
    """
    The permissions of the file that is to be replaced; None if there is none.
    """
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise PathRefused(f"{shown} is no plain file.")
    if not found.st_mode & 0o222:
        raise PermissionError(errno.EACCES, "it is read-only")
    return stat.S_IMODE(found.st_mode) & 0o777


@contextlib.contextmanager
def _explain(shown: str) -> Iterator[None]:
    """
    Say of an OSError which path it is about; one that means a link is a refusal.
    """
    try:
        yield
    except UnicodeEncodeError:
        raise PathRefused(f"{shown!r} is no path.") from None
    except OSError as error:
        if error.errno in _LINKS:
            raise PathRefused(f"{shown}: there is a link on the way.") from None
        raise type(error)(f"{shown}: {error.strerror or error}") from None
