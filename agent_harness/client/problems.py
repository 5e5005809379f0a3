"""
Answers that refuse, as the errors the server raised.
"""

import functools
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

import orjson

from agent_harness.errors import InternalError, InvalidRequest, RequestError, Unavailable

__all__ = ["read_problem"]

_WIRE_KEYS = frozenset({"type", "code", "message", "param"})


def read_problem(status: int, body: bytes) -> RequestError:
    """
    The error that an answer with *status* and *body* tells of: the class that has its code, else the one with its
    status. An answer that is not the server's own (a proxy's page, say) has the code ``http_<status>``.
    """
    error = _read_error(body)
    if error is None:
        text = body[:200].decode(errors="replace").strip()
        try:
            reason = f"HTTP {status} {HTTPStatus(status).phrase}"
        except ValueError:
            reason = f"HTTP {status}"
        message = f"The server answered {reason}, not in its own words" + (f": {text}" if text else ".")
        return _class_of(status)(message, code=f"http_{status}")
    code = str(error.get("code") or f"http_{status}")
    extra = {key: value for key, value in error.items() if key not in _WIRE_KEYS}
    cls = _by_code().get(code) or _class_of(status)
    return cls(str(error.get("message") or code), code=code, param=error.get("param"), extra=extra)


def _read_error(body: bytes) -> Mapping[str, Any] | None:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    error = parsed.get("error") if isinstance(parsed, dict) else None
    return error if isinstance(error, dict) else None


def _class_of(status: int) -> type[RequestError]:
    found = _by_status().get(status)
    if found is None and status in (502, 504):
        return Unavailable
    return found or (InvalidRequest if status < 500 else InternalError)


def _walk(cls: type[RequestError]) -> Iterator[type[RequestError]]:
    for child in cls.__subclasses__():
        if child.__module__ == RequestError.__module__:
            yield child
            yield from _walk(child)


@functools.cache
def _by_code() -> dict[str, type[RequestError]]:
    return {code: cls for cls in _walk(RequestError) for code in getattr(cls, "codes", ())}


@functools.cache
def _by_status() -> dict[int, type[RequestError]]:
    found: dict[int, type[RequestError]] = {}
    for cls in _walk(RequestError):
        if hasattr(cls, "status"):
            found.setdefault(cls.status, cls)
    return found
