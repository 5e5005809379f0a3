"""
Log lines: one line each, ``what happened key=value …``, with the ids of the request and the session they belong to.

Everything is logged through the standard `logging`, below the logger ``agent_harness``; no handler is installed and no
level is set by importing or embedding the package. `setup_logs` is for programs: the command line calls it. What a
client wrote can never begin a line of its own, in either form.
"""

import json
import logging
import re
import sys
import time
from contextvars import ContextVar
from typing import Any, TextIO

import orjson

__all__ = ["Line", "REQUEST_ID", "SESSION_ID", "setup_logs"]

REQUEST_ID: ContextVar[str] = ContextVar("agent_harness_request_id", default="")
"""The id of the HTTP request that is being answered, or that the running turn began with; "" outside of both."""

SESSION_ID: ContextVar[str] = ContextVar("agent_harness_session_id", default="")
"""The id of the session that the request or the turn belongs to; "" outside of both."""

VALUE_MAX = 200
"""Longest value of a line, in characters; what is longer ends with ``…``."""

_PLAIN = re.compile(r"[A-Za-z0-9._:/{}+@-]+")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTINUED = "\n    "


class Line:
    """
    A message for `logging`: ``log.info(Line("turn ended", session=…, outcome=…))``. Fields that are None are left out;
    no field is named ``time``, ``level``, ``logger``, ``message`` or ``exception``.
    """

    __slots__ = ("fields", "what")

    def __init__(self, what: str, **fields: Any) -> None:
        self.what = what
        self.fields = {key: _cut(value) for key, value in fields.items() if value is not None}

    def __str__(self) -> str:
        return _join(self.what, self.fields)


def setup_logs(json: bool, level: int | str, stream: TextIO | None = None) -> None:
    """
    Write the log to *stream* (standard error if None): as one JSON object a line, or as text. A second call takes the
    place of the first. For programs only.

    *level* is that of our own lines. Those of other libraries are written from WARNING on: below it some of them show
    what they send and receive.
    """
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(handler)
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(_JsonFormatter() if json else _TextFormatter())
    root.addHandler(handler)
    ours = logging.getLogger("agent_harness")
    ours.setLevel(level.upper() if isinstance(level, str) else level)
    root.setLevel(max(logging.WARNING, ours.level))


class _Handler(logging.StreamHandler[TextIO]):
    """
    Ours, to be found again.
    """


class _TextFormatter(logging.Formatter):
    """
    ``2026-11-30T13:57:02.123Z INFO agent_harness.turns: turn ended session=… outcome=completed``. Lines behind the
    first (of tracebacks) are indented, so that every line that is not begins with a time of ours.
    """

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        fields = record.msg.fields if isinstance(record.msg, Line) else {}
        text = _join(message, {key: value for key, value in _ids().items() if key not in fields})
        text = text.replace("\n", "\\n")
        trace = _trace(self, record)
        if trace:
            text += "\n" + trace
        head = f"{_timestamp(record)} {record.levelname} {record.name}: "
        return head + _escape(text.replace("\r\n", "\n")).replace("\n", _CONTINUED)


class _JsonFormatter(logging.Formatter):
    """
    One object a line: ``time``, ``level``, ``logger``, ``message``, the line's fields, ``session`` and ``request_id``,
    and ``exception`` with the traceback.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = record.msg if isinstance(record.msg, Line) else None
        told: dict[str, Any] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage() if line is None else line.what,
            **_ids(),
            **({} if line is None else line.fields),
        }
        trace = _trace(self, record)
        if trace:
            told["exception"] = trace
        try:
            text = orjson.dumps(told, default=str).decode()
        except TypeError:
            # Lone surrogates, of a file name perhaps. Many readers refuse them, so they are replaced.
            text = _SURROGATE.sub("\ufffd", json.dumps(told, ensure_ascii=False, default=str))
        # What some readers take for a line's end, and what terminals obey.
        return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _ids() -> dict[str, str]:
    ids = {"session": SESSION_ID.get(), "request_id": REQUEST_ID.get()}
    return {key: value for key, value in ids.items() if value}


def _join(text: str, fields: dict[str, Any]) -> str:
    return " ".join([text, *(f"{key}={_show(value)}" for key, value in fields.items())])


def _cut(value: Any) -> Any:
    return value[: VALUE_MAX - 1] + "…" if isinstance(value, str) and len(value) > VALUE_MAX else value


def _show(value: Any) -> str:
    """
    *value* as it stands behind ``key=``: as it is if nothing in it could be misread, else as a JSON string in ASCII.
    """
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _escape(text: str) -> str:
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), text)


def _timestamp(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z"


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = [formatter.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
    return "\n".join(parts + ([formatter.formatStack(record.stack_info)] if record.stack_info else []))
