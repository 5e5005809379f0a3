"""
Who may come in: bearer keys, the Host header, the Origin of browsers.

A page on any site can make a browser send requests to a server on the same machine, and can point a name of its own at
that machine (DNS rebinding). So a foreign Origin is refused, and a server on a loopback address answers to loopback
names only. Checked before anything else; a refusal tells nothing about what is behind it.
"""

import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import attrs
from aiohttp import web
from aiohttp.typedefs import Middleware

from agent_harness.errors import AuthenticationError, PermissionDenied

__all__ = ["CALLER", "LOOPBACK_HOSTS", "Access", "check_access", "needs_no_key", "share_with_origin"]

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
"""Names under which a server on a loopback address may be asked."""

CALLER = web.RequestKey("caller", str)
"""The name of the key that a request came with; "" without keys."""

_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST, PATCH, DELETE",
    "Access-Control-Allow-Headers": "authorization, content-type, idempotency-key, last-event-id",
    "Access-Control-Max-Age": "600",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
AnyHandler = TypeVar("AnyHandler", bound=Callable[..., Any])


@attrs.frozen(kw_only=True)
class Access:
    """
    Args:
        keys: bearer keys by name; none at all lets everyone in.
        hosts: Host headers that are answered, without port; None for any.
        origins: browsers' origins that are answered beside the server's own, such as ``https://app.example``.
    """

    keys: Mapping[str, str] = attrs.field(factory=dict, repr=lambda keys: f"<{len(keys)} keys>")
    hosts: tuple[str, ...] | None = None
    origins: tuple[str, ...] = ()


def needs_no_key(handler: AnyHandler) -> AnyHandler:
    """
    Mark a handler as one that everybody may ask.
    """
    handler.__dict__["needs_no_key"] = True
    return handler


def check_access(access: Access) -> Middleware:
    """
    A middleware that lets in whom *access* lets in, and answers the preflight of allowed origins.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        _check_host(request, access)
        _check_origin(request, access)
        if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
            return web.Response(status=204, headers=_PREFLIGHT)
        # A handler says itself that it needs no key.
        needs_key = not getattr(request.match_info.handler, "needs_no_key", False)
        request[CALLER] = _check_key(request, access) if needs_key else ""
        return await handler(request)

    return check


def share_with_origin(access: Access) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """
    A signal handler that lets browsers of allowed origins read the answer.
    """

    async def share(request: web.Request, response: web.StreamResponse) -> None:
        origin = request.headers.get("Origin")
        if access.origins:
            response.headers["Vary"] = "Origin"
        if origin in access.origins:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = "idempotency-replayed, x-request-id"

    return share


def _check_host(request: web.Request, access: Access) -> None:
    host = request.headers.get("Host", "")
    name = host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
    if access.hosts is not None and name.lower() not in access.hosts:
        names = ", ".join(access.hosts)
        raise PermissionDenied(f"This server answers to the host names {names} only.", code="bad_host")


def _check_origin(request: web.Request, access: Access) -> None:
    origin = request.headers.get("Origin")
    if origin is None or origin in access.origins:
        return
    host = request.headers.get("Host", "")
    if host and origin.lower() in (f"http://{host}".lower(), f"https://{host}".lower()):
        return
    message = "Pages of this origin may not use this server; allow it by --origin, or in the settings file."
    raise PermissionDenied(message, code="bad_origin")


def _check_key(request: web.Request, access: Access) -> str:
    """
    The name of the key that the request carries. Every key is compared, each in constant time.
    """
    if not access.keys:
        return ""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not given.strip():
        raise AuthenticationError("Send a key: Authorization: Bearer KEY.", code="missing_key")
    found = [name for name, key in access.keys.items() if hmac.compare_digest(given.strip().encode(), key.encode())]
    if not found:
        raise AuthenticationError("This key is not known here.", code="wrong_key")
    return found[0]
