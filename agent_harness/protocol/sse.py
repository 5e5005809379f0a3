"""
Server-sent events: frames to bytes and bytes to frames, as the WHATWG HTML standard describes the format.

The server, the Python client and the model adapters share this file. Data is handled as bytes throughout: a reader
splits at LF, CR and CRLF only, never inside a character, and never at U+2028 or its like.
"""

import functools
from typing import NamedTuple, NoReturn

__all__ = ["DONE", "FRAME_LIMIT", "PING", "Frame", "FrameReader", "FrameTooLong", "encode_frame"]

PING = b": ping\n"
"""
One comment line without a blank line behind it: readers that remember ``id:`` take a blank line for an empty event.
"""

DONE = b"data: [DONE]\n\n"
"""The last frame of a stream that ended on purpose."""

FRAME_LIMIT = 64 * 1024 * 1024
"""Longest frame a `FrameReader` holds, in bytes."""

BOM = b"\xef\xbb\xbf"
_SPLITTERS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


class FrameTooLong(ValueError):
    """
    A frame grew over the reader's limit.
    """


class Frame(NamedTuple):
    """
    One event as it was read. ``data`` holds the data lines joined by LF.
    """

    data: bytes
    event: str = ""
    id: str = ""


def encode_frame(event: str, data: bytes, *, id: int | None = None, retry: int | None = None) -> bytes:
    """
    One frame, LF line ends. *data* is one line of JSON; characters that plain line splitters take for line ends
    (U+0085, U+2028, U+2029; they can stand in strings only) become ``\\u`` escapes. *retry* is in milliseconds.
    """
    if not data.isascii():
        for raw, escaped in _SPLITTERS:
            if raw in data:
                data = data.replace(raw, escaped)
    if id is not None and retry is None:
        return b"event: %b\nid: %d\ndata: %b\n\n" % (event.encode(), id, data)
    head = b"event: %b\n" % event.encode()
    if id is not None:
        head += b"id: %d\n" % id
    if retry is not None:
        head += b"retry: %d\n" % retry
    return b"%bdata: %b\n\n" % (head, data)


NAME_LINE = 128


@functools.lru_cache(maxsize=512)
def _read_name(line: bytes) -> str | None:
    """
    The name of an event, None if the line gives none. There are few, and they come again and again.
    """
    return line[6:].strip().decode(errors="replace") if line.startswith(b"event:") else None


class FrameReader:
    """
    Reads frames from bytes that come in any pieces. Frames without data, comments and unknown fields are skipped; a BOM
    at the beginning too.

    Args:
        limit: how much of one frame is held, in bytes: its data lines and the line that is not yet whole.
    """

    __slots__ = (
        "_between",
        "_data",
        "_data_size",
        "_event",
        "_id",
        "_last_cr",
        "_limit",
        "_rest",
        "_rest_size",
        "_started",
    )

    def __init__(self, limit: int = FRAME_LIMIT) -> None:
        self._limit = limit
        self._rest: list[bytes] = []
        self._data: list[bytes] = []
        self._data_size = self._rest_size = 0
        self._event = self._id = ""
        self._last_cr = self._started = False
        # Whether nothing is held of a frame, so that the next one begins with the next byte.
        self._between = True

    def feed(self, chunk: bytes) -> list[Frame]:
        """
        The frames that *chunk* completes.

        Raises:
            FrameTooLong: the frame being read is over the limit.
        """
        if self._between and chunk.endswith(b"\n\n") and b"\r" not in chunk:
            return self._read_whole(chunk)
        frames = self._read_any(chunk)
        self._between = not (self._rest_size or self._data or self._event or self._last_cr)
        return frames

    def flush(self) -> list[Frame]:
        """
        What stands unfinished at the end of the stream, as if a blank line followed.
        """
        return self.feed(b"\n\n")

    def _read_whole(self, chunk: bytes) -> list[Frame]:
        """
        The frames of a *chunk* that begins and ends between two frames, as most do: in a third of the time.
        """
        if not self._started:
            self._started = True
            chunk = chunk.removeprefix(BOM)
        if len(chunk) > self._limit and max(map(len, chunk.split(b"\n\n"))) > self._limit:
            self._too_long()
        frames: list[Frame] = []
        for text in chunk[:-2].split(b"\n\n"):
            head, found, data = text.partition(b"\ndata: ")
            if not found and text.startswith(b"data: "):
                head, data = b"event:", text[6:]
            # What is kept of names is bounded in number, so their length is too.
            name = None if b"\n" in data or b"\n" in head or len(head) > NAME_LINE else _read_name(head)
            if name is None or not data:
                frames += self._read_lines([*text.split(b"\n"), b""])
            else:
                frames.append(Frame(data, name, self._id))
        return frames

    def _read_any(self, chunk: bytes) -> list[Frame]:
        if self._last_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._last_cr = False
        if not chunk:
            return []
        self._last_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in chunk:
            self._rest.append(chunk)
            self._rest_size += len(chunk)
            self._check_size()
            return []
        lines = b"".join((*self._rest, chunk)).split(b"\n")
        self._rest = [lines.pop()]
        self._rest_size = len(self._rest[0])
        frames = self._read_lines(lines)
        self._check_size()
        return frames

    def _check_size(self) -> None:
        if self._data_size + self._rest_size > self._limit:
            self._too_long()

    def _too_long(self) -> NoReturn:
        raise FrameTooLong(f"a frame of the stream is longer than {self._limit} bytes")

    def _read_lines(self, lines: list[bytes]) -> list[Frame]:
        if not self._started:
            self._started = True
            lines[0] = lines[0].removeprefix(BOM)
        frames: list[Frame] = []
        for line in lines:
            if not line:
                self._end_frame(frames)
            elif line.startswith(b"data:"):
                self._data_size += len(line)
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif line.startswith(b"event:"):
                self._event = line[6:].strip().decode(errors="replace")
            elif line.startswith(b"id:") and b"\0" not in line:
                self._id = line[3:].strip().decode(errors="replace")
            elif line == b"data":
                self._data_size += len(line)
                self._data.append(b"")
        return frames

    def _end_frame(self, frames: list[Frame]) -> None:
        if self._data:
            data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
            if data:
                frames.append(Frame(data, self._event, self._id))
            self._data = []
            self._data_size = 0
        self._event = ""
