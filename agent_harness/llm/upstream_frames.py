"""
From the bytes of a model's answer to its events: one reader for both dialects. Pure.
"""

import json
import re
from typing import Any

from orjson import loads

from agent_harness.llm.upstream_errors import BROKEN, REJECTED, UpstreamError, read_error, read_error_frame
from agent_harness.protocol.sse import FRAME_LIMIT, Frame, FrameReader, FrameTooLong

__all__ = ["EventReader", "parse_json"]

_HEAD_LIMIT = 16_384
_ERROR_TYPES = ("error", "response.failed")


def parse_json(data: bytes) -> Any:
    """
    The value of a JSON text. Half an emoji as an escape, which orjson refuses, is taken as it is.

    Raises:
        ValueError: it is no JSON, or no UTF-8.
    """
    try:
        return loads(data)
    except ValueError:
        try:
            # Decoded here, since json.loads lets surrogates pass that stand in bytes.
            return json.loads(data.decode(), strict=False)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error


class EventReader:
    """
    Reads events from bytes that come in any pieces. What was read before a failure is given out first: look at
    ``failure`` and ``done`` after each `feed`.

    Args:
        limit: longest frame in bytes.

    Attributes:
        done: the marker ``[DONE]`` was read.
        failure: why reading cannot go on, or None.
    """

    __slots__ = ("_frames", "_head", "_seen", "done", "failure")

    def __init__(self, limit: int = FRAME_LIMIT) -> None:
        self._frames = FrameReader(limit)
        self._head = b""
        self._seen = False
        self.done = False
        self.failure: UpstreamError | None = None

    def feed(self, chunk: bytes) -> list[tuple[str, dict[str, Any]]]:
        """
        The events that *chunk* completes, each as its name and its JSON object.
        """
        if not self._seen and len(self._head) < _HEAD_LIMIT:
            self._head += chunk[:_HEAD_LIMIT]
        try:
            frames = self._frames.feed(chunk)
        except FrameTooLong as error:
            self.failure = BROKEN.error(f"The model server's answer cannot be read: {error}.")
            return []
        events = self._read(frames)
        if self.done and not self._seen:
            self.failure = self.failure or BROKEN.error("The model server ended its answer without a single event.")
        return events

    def end(self) -> list[tuple[str, dict[str, Any]]]:
        """
        The last event, if the end of the stream stands for the blank line behind it. ``failure`` is set if there was
        none at all.
        """
        events = self._read(self._frames.flush(), is_end=True)
        if not self._seen and self.failure is None:
            self.failure = _explain(self._head)
        return events

    def _read(self, frames: list[Frame], is_end: bool = False) -> list[tuple[str, dict[str, Any]]]:
        events: list[tuple[str, dict[str, Any]]] = []
        for frame in frames:
            raw = frame.data
            if self.done or self.failure is not None:
                break
            try:
                data = loads(raw)
            except ValueError:
                data = self._read_odd(raw, is_end)
                if data is None:
                    break
            if not isinstance(data, dict):
                self.failure = BROKEN.error("The model server sent a frame that is no JSON object.")
                break
            if "error" in data or frame.event == "error" or data.get("type") in _ERROR_TYPES:
                self.failure = read_error_frame(frame.event, data)
                if self.failure is not None:
                    break
            self._seen = True
            events.append((frame.event, data))
        return events

    def _read_odd(self, raw: bytes, is_end: bool) -> Any:
        """
        What a frame holds that is no plain JSON; None if it is the end marker, or nothing that can be read.
        """
        if raw.strip() == b"[DONE]":
            self.done = True
            return None
        try:
            return parse_json(raw)
        except ValueError as error:
            # At the end of the stream it is no broken frame but a cut one; who waits for an end marker will say so.
            if not is_end:
                self.failure = BROKEN.error(f"The model server sent a frame that is no JSON ({error}).")
            return None


def _explain(head: bytes) -> UpstreamError:
    """
    What a 200 without any event was, told from how its body begins.
    """
    text = head.strip()
    if text[:1] == b"<":
        title = re.search(rb"<title[^>]*>([^<]{1,200})", text, re.IGNORECASE)
        name = f" ({title[1].decode(errors='replace').strip()})" if title else ""
        return BROKEN.error(f"The model server answered with a web page{name} instead of events; look at base_url.")
    if text[:1] in (b"{", b"["):
        try:
            value = parse_json(text)
        except ValueError:
            value = None
        if isinstance(value, list) or (isinstance(value, dict) and (value.get("error") or value.get("detail"))):
            error = read_error(value)
            # An unknown kind of error in a 200 says less than that this is not a stream.
            return BROKEN.error(error.message) if error.code == REJECTED.code else error
        return BROKEN.error("The model server answered with a JSON document instead of events; it does not stream.")
    return BROKEN.error("The model server answered 200 without a single event.")
