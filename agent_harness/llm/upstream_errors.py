"""
What a model server's failures mean: one table, `POLICY`, and what reads an error into one of its rows.

Pure: knows statuses, headers and bodies, but no connection.
"""

import json
import math
import re
import time
from collections.abc import Container, Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import attrs
import orjson

from agent_harness.errors import ModelError

__all__ = [
    "BROKEN",
    "CONNECT",
    "CUT",
    "IDLE",
    "NO_KEY",
    "POLICY",
    "REJECTED",
    "Rule",
    "UpstreamError",
    "find_rule",
    "read_error",
    "read_error_body",
    "read_error_frame",
    "read_retry_after",
]


class UpstreamError(ModelError):
    """
    A model server failed, or could not be asked.

    Args:
        message: for a person; the provider's own words where it gave some.
        code: one of `ModelError.codes`.
        retryable: whether the same request may pass later.
        retry_after_s: when the provider wants to be asked again, in seconds from now; None if it did not say.
    """

    def __init__(self, message: str, *, code: str, retryable: bool = False, retry_after_s: float | None = None) -> None:
        super().__init__(message, code=code)
        self.retryable = retryable
        self.retry_after_s = retry_after_s


@attrs.frozen(kw_only=True)
class Rule:
    """
    One row of the failure policy.

    Args:
        outcome: what happened, in words.
        code: the turn's error code.
        retried: whether the request is sent again, if no output had begun.
        statuses: HTTP statuses that mean this.
        kinds: ``code`` or ``type`` of an error object that mean this, in lower case. They count where no HTTP status
            tells more, as inside a stream, and under any status with ``wins``.
        said: what the message of such an error says, whatever its status and kind; looked for with ``wins`` only.
        wins: the kind and the message are more exact than the status.
    """

    outcome: str
    code: str
    retried: bool = False
    statuses: Container[int] = ()
    kinds: frozenset[str] = frozenset()
    said: re.Pattern[str] | None = None
    wins: bool = False

    def error(self, message: str, retry_after_s: float | None = None) -> UpstreamError:
        """
        The exception of this outcome.
        """
        return UpstreamError(message, code=self.code, retryable=self.retried, retry_after_s=retry_after_s)

    def covers(self, status: int | None, kinds: frozenset[str], message: str) -> bool:
        """
        Whether an error with these marks is this outcome.
        """
        if status is not None and status in self.statuses:
            return True
        if self.kinds & kinds and (self.wins or status is None):
            return True
        # A rate limit counts tokens too ("Request too large … tokens per min"), and is no matter of the context.
        return self.said is not None and status not in (401, 403, 429) and self.said.search(message) is not None


# Words of OpenAI, Azure, vLLM, SGLang, llama.cpp and its Python server, Ollama, LM Studio, TGI, Anthropic, Gemini, xAI.
_CONTEXT = re.compile(
    r"maximum context length|context[ _]length exceeded|exceeds? the (available |model'?s? )?context"
    r"|exceeds? (the )?(model'?s? )?(maximum )?context (length|window|size)|longer than the model'?s context length"
    r"|greater than the context length|context (window|size|length) (is )?(exceeded|full)|exceed context (window|size)"
    r"|context overflow|prompt is too long|prompt too long|input is too long|too long to fit into the model"
    r"|input token count.*exceeds the maximum|maximum prompt length is|reduce the length of the (messages|input|prompt)"
    r"|inputs? tokens.*must be <=|decoder prompt.*is longer than",
    re.IGNORECASE | re.DOTALL,
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_STATUS = re.compile(r"[45][0-9]{2}")

NO_KEY = Rule(outcome="no key is set for a provider that needs one", code="provider_auth")
CONNECT = Rule(outcome="no connection, or none that answered", code="provider_unavailable", retried=True)
CUT = Rule(outcome="the stream was reset, or ended without its end marker", code="upstream_disconnected", retried=True)
IDLE = Rule(outcome="no event for idle_timeout_s", code="upstream_idle")
BROKEN = Rule(
    outcome="an answer that cannot be read: no events, JSON or HTML instead, frames that are no JSON objects, no UTF-8",
    code="upstream_invalid",
)
REJECTED = Rule(outcome="any other refusal", code="provider_rejected", statuses=range(300, 500))

POLICY: tuple[Rule, ...] = (
    NO_KEY,
    CONNECT,
    CUT,
    IDLE,
    BROKEN,
    Rule(
        outcome="the transcript is longer than the model can read",
        code="context_length_exceeded",
        statuses=(413,),
        kinds=_words("context_length_exceeded exceed_context_size_error context_window_exceeded"),
        said=_CONTEXT,
        wins=True,
    ),
    Rule(
        outcome="nothing left to spend: waiting does not help",
        code="rate_limited",
        kinds=_words("insufficient_quota billing_hard_limit_reached billing_not_active"),
        wins=True,
    ),
    Rule(
        outcome="the key is wrong, or may not do this",
        code="provider_auth",
        statuses=(401, 403),
        kinds=_words(
            "invalid_api_key authentication_error authenticationerror unauthorized unauthenticated"
            " permission_error permission_denied permissiondeniederror forbidden"
        ),
    ),
    Rule(
        outcome="too many requests",
        code="rate_limited",
        retried=True,
        statuses=(429,),
        kinds=_words("rate_limit_exceeded rate_limit_error ratelimiterror too_many_requests resource_exhausted"),
    ),
    Rule(
        outcome="the server is not able to answer now",
        code="provider_unavailable",
        retried=True,
        statuses=frozenset({408, 409, 425, *range(500, 600)}),
        kinds=_words(
            "server_error internal_server_error internalservererror internal_error internal api_error bad_gateway"
            " overloaded overloaded_error server_is_overloaded slow_down timeout timeout_error"
            " unavailable service_unavailable service_unavailable_error serviceunavailableerror"
        ),
    ),
    REJECTED,
)
"""
From what a model server does to what the turn does: the first row that covers an error. Retries happen only before any
output; after that a retried row fails the turn like the others.
"""


def find_rule(status: int | None, kinds: frozenset[str], message: str) -> Rule:
    """
    The row for an error. *status* is None where none was given, as inside a stream.
    """
    return next((rule for rule in POLICY if rule.covers(status, kinds, message)), REJECTED)


def read_error(value: Any, *, status: int | None = None, retry_after_s: float | None = None) -> UpstreamError:
    """
    The error that a provider's error value means, in any of the shapes servers use: an object, flat or below ``error``
    or ``response``, a list that holds one, or a text. A number in ``code`` counts as HTTP status where there was none.
    """
    found = _unwrap(value)
    message = _find_message(found)
    marks = [found.get(key) for key in ("code", "type", "status")] if isinstance(found, dict) else []
    if status is None:
        status = next((int(str(mark)) for mark in marks if _STATUS.fullmatch(str(mark))), None)
    kinds = frozenset(mark.lower() for mark in marks if isinstance(mark, str))
    words = message or "The model server reported an error and did not say which."
    return find_rule(status, kinds, message).error(words, retry_after_s)


def read_error_frame(event: str, data: Mapping[str, Any]) -> UpstreamError | None:
    """
    The error that a frame inside a stream is: one named ``error``, one of that type or ``response.failed``, or one with
    an ``error`` that says something (null says nothing). None for every other frame.
    """
    if data.get("error") or event == "error" or data.get("type") in ("error", "response.failed"):
        return read_error(data)
    return None


def read_error_body(status: int, headers: Mapping[str, str], body: bytes) -> UpstreamError:
    """
    The error that an HTTP answer other than 200 means.
    """
    try:
        value = orjson.loads(body)
    except ValueError:
        value = None if body.lstrip()[:1] == b"<" else body.decode(errors="replace")
    name = f"HTTP {status} {_reason(status)}".strip()
    if 300 <= status < 400:
        where = f"The model server sends us elsewhere ({name}); set the provider's base_url to its right address."
        return read_error(where, status=status)
    words = _find_message(_unwrap(value))
    error = read_error(value, status=status, retry_after_s=read_retry_after(headers))
    message = f"{words} ({name})" if words else f"The model server answered {name}."
    # A header of OpenAI's, which its own SDKs follow too: the server knows best whether asking again is of use.
    told = headers.get("x-should-retry")
    retryable = told == "true" if told in ("true", "false") else error.retryable
    return UpstreamError(message, code=error.code, retryable=retryable, retry_after_s=error.retry_after_s)


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """
    The wait a provider asks for, in seconds and not below 0: ``retry-after-ms``, or ``retry-after`` in seconds or as a
    date.
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        given = headers.get(name)
        if not given:
            continue
        try:
            seconds = float(given) * unit
        except ValueError:
            try:
                seconds = parsedate_to_datetime(given).timestamp() - time.time()
            except (ValueError, OverflowError):
                continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None


def _unwrap(value: Any) -> Any:
    """
    The innermost error of *value*: what stands below ``error`` or ``response``, or first in a list.
    """
    for _ in range(4):
        if isinstance(value, list) and value:
            value = value[0]
        elif isinstance(value, dict) and value.get("error"):
            value = value["error"]
        elif isinstance(value, dict) and isinstance(value.get("response"), dict):
            value = value["response"]
        else:
            break
    return value


def _find_message(value: Any) -> str:
    if isinstance(value, str):
        return value.strip()
    if not isinstance(value, dict):
        return ""
    for key in ("message", "detail", "error_description", "msg", "title"):
        found = value.get(key)
        if isinstance(found, str) and found.strip():
            return found.strip()
        if isinstance(found, dict | list) and found:
            # FastAPI's list of what is wrong, and the like: better shown raw than not at all.
            return json.dumps(found, ensure_ascii=False)
    return next((mark for key in ("code", "type") if isinstance(mark := value.get(key), str) and mark != "error"), "")


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
