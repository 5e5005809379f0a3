"""
The whole error tree: every failure that has a name, its wire code and its HTTP status.

::

    HarnessError                        status  type                   code
    ├── RequestError                    (abstract: a refused request; nothing was changed)
    │   ├── InvalidRequest              400     invalid_request_error  invalid_json, invalid_value, missing_field,
    │   │                                                              unknown_field, unknown_event_type, invalid_tool
    │   ├── AuthenticationError         401     authentication_error   missing_key, wrong_key
    │   ├── PermissionDenied            403     permission_error       bad_host, bad_origin
    │   ├── NotFound                    404     not_found_error        unknown_path, unknown_session, unknown_call,
    │   │                                                              unknown_item, unknown_response, unknown_agent
    │   ├── MethodNotAllowed            405     invalid_request_error  method_not_allowed
    │   ├── Conflict                    409     conflict_error         call_already_answered, call_closed,
    │   │                                                              idempotency_conflict, turn_in_progress
    │   ├── RequestTooLarge             413     invalid_request_error  request_too_large
    │   ├── UnsupportedMediaType        415     invalid_request_error  unsupported_media_type
    │   ├── RateLimited                 429     rate_limit_error       too_many_sessions, queue_full, session_full,
    │   │                                                              too_many_followers
    │   ├── InternalError               500     server_error           internal_error
    │   └── Unavailable                 503     server_error           shutting_down
    ├── ModelError                      (no status: a turn failed; its code stands in the turn's record)
    │                                   provider_auth, provider_not_found, provider_rejected, rate_limited,
    │                                   context_length_exceeded, provider_unavailable, upstream_disconnected,
    │                                   upstream_idle, upstream_invalid, internal_error
    ├── ConfigError                     (no status: the settings are wrong; the command line prints it and exits 2)
    └── ListenError                     (no status: the address cannot be used; the command line prints it and exits 1)
"""

from collections.abc import Mapping
from typing import Any, ClassVar

__all__ = [
    "AuthenticationError",
    "ConfigError",
    "Conflict",
    "HarnessError",
    "InternalError",
    "InvalidRequest",
    "ListenError",
    "MethodNotAllowed",
    "ModelError",
    "NotFound",
    "PermissionDenied",
    "RateLimited",
    "RequestError",
    "RequestTooLarge",
    "Unavailable",
    "UnsupportedMediaType",
    "forget_frames",
]


class HarnessError(Exception):
    """
    The base of every error this package raises on purpose.
    """


class RequestError(HarnessError):
    """
    A request that was refused whole: nothing was changed.

    Args:
        message: for a person: what happened and what to do.
        code: one of the class's ``codes``.
        param: path of the bad value in the body (``events[1].data.call_id``), or None.
        extra: further keys of the wire's error object (``closed_by``).
    """

    status: ClassVar[int]
    type: ClassVar[str]
    codes: ClassVar[tuple[str, ...]]

    def __init__(
        self, message: str, *, code: str = "", param: str | None = None, extra: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.codes[0]
        self.param = param
        self.extra = dict(extra or {})

    def to_wire(self) -> dict[str, Any]:
        """
        The body of the answer: ``{"error": {"type", "code", "message", "param", ...}}``.
        """
        body = {"type": self.type, "code": self.code, "message": self.message, "param": self.param}
        return {"error": {**body, **self.extra}}


class InvalidRequest(RequestError):
    """
    The body or a query parameter is wrong; ``param`` says where.
    """

    status = 400
    type = "invalid_request_error"
    codes = (
        "invalid_value",
        "invalid_json",
        "missing_field",
        "unknown_field",
        "unknown_event_type",
        "invalid_tool",
    )


class AuthenticationError(RequestError):
    """
    No key came, or one that is not known.
    """

    status = 401
    type = "authentication_error"
    codes = ("missing_key", "wrong_key")


class PermissionDenied(RequestError):
    """
    The Host or the Origin of the request is not one that is answered.
    """

    status = 403
    type = "permission_error"
    codes = ("bad_host", "bad_origin")


class NotFound(RequestError):
    """
    What the path or a call_id names is not here, or no longer.
    """

    status = 404
    type = "not_found_error"
    codes = ("unknown_path", "unknown_session", "unknown_call", "unknown_item", "unknown_response", "unknown_agent")


class MethodNotAllowed(RequestError):
    """
    The path exists, the method does not.
    """

    status = 405
    type = "invalid_request_error"
    codes = ("method_not_allowed",)


class Conflict(RequestError):
    """
    The request is right, but the session has moved on; repeating it will not help.
    """

    status = 409
    type = "conflict_error"
    codes = ("turn_in_progress", "call_already_answered", "call_closed", "idempotency_conflict")


class RequestTooLarge(RequestError):
    """
    The body, or a string in it, is over its limit.
    """

    status = 413
    type = "invalid_request_error"
    codes = ("request_too_large",)


class UnsupportedMediaType(RequestError):
    """
    The body is not ``application/json``.
    """

    status = 415
    type = "invalid_request_error"
    codes = ("unsupported_media_type",)


class RateLimited(RequestError):
    """
    A bound is reached; the same request may pass later.
    """

    status = 429
    type = "rate_limit_error"
    codes = ("queue_full", "too_many_sessions", "session_full", "too_many_followers")


class InternalError(RequestError):
    """
    A fault of this program. It is logged with its traceback; the answer has none.
    """

    status = 500
    type = "server_error"
    codes = ("internal_error",)


class Unavailable(RequestError):
    """
    The server is going down and takes no new work.
    """

    status = 503
    type = "server_error"
    codes = ("shutting_down",)


class ModelError(HarnessError):
    """
    A model call that failed; the turn ends ``response.failed`` with this code and message.

    Args:
        message: for a person; the provider's own words where it gave some.
        code: one of ``codes``.
    """

    codes: ClassVar[tuple[str, ...]] = (
        "provider_auth",
        "provider_not_found",
        "provider_rejected",
        "rate_limited",
        "context_length_exceeded",
        "provider_unavailable",
        "upstream_disconnected",
        "upstream_idle",
        "upstream_invalid",
        "internal_error",
    )

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class ConfigError(HarnessError):
    """
    The settings cannot be used; the message names the setting and what to write instead.
    """


class ListenError(HarnessError):
    """
    The server cannot listen where it was told to; the message names the address and says why.
    """


def forget_frames(error: BaseException) -> None:
    """
    Drop the tracebacks of *error* and of all that it goes back to. Libraries keep an error in what the error came
    through: each would hold the other, and all that its frames hold, until the collector of cycles comes by.
    """
    found: list[BaseException | None] = [error]
    seen: set[int] = set()
    while found:
        one = found.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            found += one.__cause__, one.__context__, *getattr(one, "exceptions", ())
