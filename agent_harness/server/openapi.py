"""
The contract as OpenAPI 3.1, at ``GET /openapi.json``: paths from the routes, schemas from the classes that the codec
reads and writes, refusals from the error tree.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import attrs
from aiohttp import web

from agent_harness.engine.replies import Accepted, Interrupted, Sent
from agent_harness.errors import (
    AuthenticationError,
    Conflict,
    InternalError,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    RateLimited,
    RequestError,
    RequestTooLarge,
    Unavailable,
    UnsupportedMediaType,
)
from agent_harness.protocol.commands import ForkSession, Interrupt, SendMessage, SubmitOutput
from agent_harness.protocol.encode import dump_json
from agent_harness.protocol.items import Item
from agent_harness.protocol.pages import Snapshot
from agent_harness.protocol.requests import CreateBody
from agent_harness.protocol.turns import Turn
from agent_harness.server import examples, routes
from agent_harness.server.idempotency import KEY_MAX
from agent_harness.server.metrics import Metrics
from agent_harness.server.schemas import ReadSchemas, Schema, WrittenSchemas, describe, object_of
from agent_harness.version import VERSION

__all__ = ["ROUTES", "make_document"]

ROUTES = web.RouteTableDef()

JSON = "application/json"
STREAM = "text/event-stream"


@ROUTES.get("/openapi.json")
async def get_openapi(request: web.Request) -> web.Response:
    """
    This document.
    """
    return web.Response(body=_encode(request.path.removesuffix("/openapi.json")), content_type=JSON)


@lru_cache(maxsize=8)
def _encode(prefix: str) -> bytes:
    return dump_json(make_document(prefix)) + b"\n"


def make_document(prefix: str = "") -> dict[str, Any]:
    """
    The document of an application that is served below *prefix*.
    """
    schemas: dict[str, Schema] = {}
    written, read = WrittenSchemas(schemas), ReadSchemas(schemas)
    schemas["Event"] = {"description": "What a follower hears: the JSON of a frame.", **written.events()}
    schemas["Frame"] = _make_frame()
    bodies, answers = _make_bodies(read), _make_answers(written)
    paths: dict[str, Any] = {}
    for route in _routes():
        paths.setdefault(route.path, {})[route.method.lower()] = _make_operation(route, bodies, answers)
    schemas.update((cls.__name__, _make_error(cls)) for cls in _refusals())
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "agent-harness",
            "version": VERSION,
            "description": "Agent sessions over HTTP and SSE, with tools that run at the client.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": prefix or "/"}],
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {cls.__name__: _make_refusal(cls) for cls in _refusals()},
            "parameters": _PARAMETERS,
            "headers": {
                "request_id": {
                    "description": "The request's own `x-request-id` if it had a sane one, else a random id.",
                    "schema": {"type": "string"},
                }
            },
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "Needed where the server was given keys."}
            },
        },
    }


@attrs.frozen
class _Route:
    """
    A route: its handler's name and docstring, and whether it needs no key.
    """

    method: str
    path: str
    name: str
    summary: str
    is_open: bool = False


def _routes() -> Iterator[_Route]:
    for route in (*routes.ROUTES, *ROUTES):
        if isinstance(route, web.RouteDef):
            is_open = getattr(route.handler, "needs_no_key", False)
            yield _Route(route.method, route.path, route.handler.__name__, describe(route.handler), is_open)
    yield _Route("GET", "/metrics", "get_metrics", describe(Metrics.answer))


# What each handler takes and answers, beside what its route and its docstring say.


@attrs.frozen(kw_only=True)
class _Operation:
    """
    Args:
        status: of the answer that went well.
        body: the name of the request body; one that is *optional* may be absent.
        parameters: names in `_PARAMETERS`, beside those of the path.
        refusals: beside those that follow from the route.
    """

    status: int = 200
    body: str = ""
    optional: bool = False
    parameters: tuple[str, ...] = ()
    refusals: tuple[type[RequestError], ...] = ()


_OPERATIONS = {
    "health": _Operation(),
    "get_openapi": _Operation(),
    "get_metrics": _Operation(refusals=(NotFound,)),
    "create_session": _Operation(
        status=201, body="create", optional=True, refusals=(NotFound, RateLimited, Unavailable)
    ),
    "list_sessions": _Operation(parameters=("limit", "after", "order")),
    "get_session": _Operation(parameters=("include_items",)),
    "update_session": _Operation(body="update"),
    "delete_session": _Operation(),
    "list_items": _Operation(parameters=("limit", "after", "order")),
    "list_responses": _Operation(parameters=("limit", "after", "order")),
    "get_response": _Operation(),
    "get_request": _Operation(refusals=(InvalidRequest,)),
    "fork_session": _Operation(status=201, body="fork", optional=True, refusals=(RateLimited, Unavailable)),
    "post_events": _Operation(status=202, body="events", parameters=("stream",), refusals=(RateLimited, Unavailable)),
    "follow_session": _Operation(parameters=("last_event_id", "from", "until"), refusals=(RateLimited,)),
}

_PARAMETERS: dict[str, Any] = {
    "limit": {
        "name": "limit",
        "in": "query",
        "description": "How many elements at most.",
        "schema": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    },
    "after": {
        "name": "after",
        "in": "query",
        "description": "The id of the element before the page: `last_id` of the page before.",
        "schema": {"type": "string"},
    },
    "order": {
        "name": "order",
        "in": "query",
        "description": "Oldest first, or newest first; left out, `desc` for sessions and `asc` for the others.",
        "schema": {"type": "string", "enum": ["asc", "desc"]},
    },
    "include_items": {
        "name": "include_items",
        "in": "query",
        "description": "Whether the snapshot has `items`.",
        "schema": {"type": "boolean", "default": True},
    },
    "stream": {
        "name": "stream",
        "in": "query",
        "description": "Whether a message is answered by the events of its turn.",
        "schema": {"type": "boolean", "default": False},
    },
    "last_event_id": {
        "name": "Last-Event-ID",
        "in": "header",
        "description": "The number of the last event read; wins over `after`. What is no number gets a `session.gap`.",
        "schema": {"type": "string"},
    },
    "from": {
        "name": "after",
        "in": "query",
        "description": "The number of the last event read; 0 is the beginning. What is no number gets a `session.gap`.",
        "schema": {"type": "string"},
    },
    "until": {
        "name": "until",
        "in": "query",
        "description": "`idle`: the stream ends when the session rests.",
        "schema": {"type": "string", "enum": ["idle"]},
    },
    "idempotency_key": {
        "name": "Idempotency-Key",
        "in": "header",
        "description": "The same key with the same body takes effect once, and gets its first answer again.",
        "schema": {"type": "string", "minLength": 1, "maxLength": KEY_MAX},
    },
    "session_id": {"name": "session_id", "in": "path", "required": True, "schema": {"type": "string"}},
    "response_id": {"name": "response_id", "in": "path", "required": True, "schema": {"type": "string"}},
}


_HEADERS: dict[str, Any] = {"x-request-id": {"$ref": "#/components/headers/request_id"}}


def _make_bodies(read: ReadSchemas) -> dict[str, Any]:
    """
    The content of each request body, by the names in `_OPERATIONS`.
    """
    events = [*map(read.schema, (SendMessage, SubmitOutput, Interrupt)), read.batch()]
    found = {
        "create": read.schema(CreateBody),
        "update": read.patch(),
        "fork": read.schema(ForkSession),
        "events": {"anyOf": events},
    }
    return {name: {JSON: {"schema": schema, "examples": examples.BODIES[name]}} for name, schema in found.items()}


def _make_answers(written: WrittenSchemas) -> dict[str, Any]:
    """
    The content of each answer that went well, by the handler's name.
    """
    word: Schema = {"type": "string"}
    count: Schema = {"type": "integer", "minimum": 0}
    health: Schema = {"status": word | {"enum": ["ok", "shutting_down"]}, "version": word} | dict.fromkeys(
        ("sessions", "running_turns"), count
    )
    deleted: Schema = {
        "id": word,
        "object": word | {"const": "session.deleted"},
        "deleted": {"type": "boolean", "const": True},
    }
    results = {"results": {"type": "array", "items": written.schema(Accepted)}}
    taken = [*map(written.schema, (Sent, Accepted, Interrupted)), object_of(results, set(results))]
    snapshot, turn = written.schema(Snapshot), written.schema(Turn)
    found = {
        "health": object_of(health, set(health)),
        "get_openapi": {"type": "object"},
        "create_session": snapshot,
        "list_sessions": written.page(Snapshot),
        "get_session": snapshot,
        "update_session": snapshot,
        "delete_session": object_of(deleted, set(deleted)),
        "list_items": written.page(Item),
        "list_responses": written.page(Turn),
        "get_response": turn,
        "get_request": {"type": "object", "description": "In the dialect of the session's provider."},
        "fork_session": snapshot,
        "post_events": {"anyOf": taken},
    }
    answers: dict[str, Any] = {name: {JSON: {"schema": schema}} for name, schema in found.items()}
    for name, shown in examples.ANSWERS.items():
        answers[name][JSON]["examples"] = shown
    answers["get_metrics"] = {"text/plain": {"schema": {"type": "string"}}}
    answers["follow_session"] = {
        STREAM: {
            "schema": {"$ref": "#/components/schemas/Frame"},
            "examples": examples.STREAMS,
        }
    }
    return answers


def _make_frame() -> Schema:
    """
    One frame of a stream: before OpenAPI 3.2, the schema of a stream is that of each of its events.
    """
    content = {"contentMediaType": JSON, "contentSchema": {"$ref": "#/components/schemas/Event"}}
    properties: dict[str, Schema] = {
        "event": {"type": "string", "description": "Equals the JSON's `type`."},
        "id": {"type": "string", "description": "Equals the JSON's `seq`; absent where an event has no number."},
        "retry": {
            "type": "integer",
            "description": "In the first frame: milliseconds to wait before connecting again.",
        },
        "data": {"type": "string", **content},
    }
    end = object_of({"data": {"type": "string", "const": "[DONE]"}}, {"data"})
    return {
        "description": "A frame of a stream; the last one's data is `[DONE]`.",
        "anyOf": [object_of(properties, {"event", "data"}), end],
    }


def _make_operation(route: _Route, bodies: dict[str, Any], answers: dict[str, Any]) -> dict[str, Any]:
    about = _OPERATIONS[route.name]
    parameters = [*re.findall(r"\{(\w+)\}", route.path), *about.parameters]
    answer: dict[str, Any] = {"description": route.summary, "content": answers[route.name], "headers": dict(_HEADERS)}
    if route.method == "POST":
        parameters.append("idempotency_key")
        shown = {"description": "The answer was given before.", "schema": {"type": "string", "const": "true"}}
        answer["headers"]["idempotency-replayed"] = shown
    if about.status == 201:
        answer["links"] = dict(_make_links())
    if route.name == "post_events":
        ids = {"session_id": "$request.path.session_id", "response_id": "$response.body#/response_id"}
        answer["links"] = {"get_response": {"operationId": "get_response", "parameters": ids}}
    found: dict[str, Any] = {str(about.status): answer}
    if route.name == "post_events":
        streamed = {"description": "With `stream=true`: the turn.", "content": answers["follow_session"]}
        found["200"] = streamed | {"headers": answer["headers"]}
    for cls in _refusals_of(route, about):
        found[str(cls.status)] = {"$ref": f"#/components/responses/{cls.__name__}"}
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": [{"$ref": f"#/components/parameters/{parameter}"} for parameter in parameters],
        "responses": dict(sorted(found.items())),
    }
    if about.body:
        operation["requestBody"] = {"content": bodies[about.body], "required": not about.optional}
    if route.is_open:
        operation["security"] = []
    return operation


def _make_links() -> Iterator[tuple[str, Any]]:
    """
    What can be done with a session that an answer holds.
    """
    for route in _routes():
        if re.findall(r"\{(\w+)\}", route.path) == ["session_id"]:
            yield route.name, {"operationId": route.name, "parameters": {"session_id": "$response.body#/id"}}


def _refusals_of(route: _Route, about: _Operation) -> Iterator[type[RequestError]]:
    yield PermissionDenied
    yield InternalError
    if not route.is_open:
        yield AuthenticationError
    if "{" in route.path:
        yield NotFound
    if about.body or about.parameters:
        yield InvalidRequest
    if about.body:
        yield from (RequestTooLarge, UnsupportedMediaType)
    if route.method == "POST":
        yield Conflict
    yield from about.refusals


def _refusals(base: type[RequestError] = RequestError) -> Iterator[type[RequestError]]:
    for cls in base.__subclasses__():
        if cls.__module__ == RequestError.__module__:
            yield cls
            yield from _refusals(cls)


def _make_error(cls: type[RequestError]) -> Schema:
    properties: dict[str, Schema] = {
        "type": {"type": "string", "const": cls.type},
        "code": {"type": "string", "enum": list(cls.codes)},
        "message": {"type": "string"},
        "param": {"type": ["string", "null"]},
        "request_id": {"type": "string"},
    }
    required = set(properties)
    if cls is Conflict:
        properties["closed_by"] = {"type": "string", "enum": ["interrupt", "deadline", "harness"]}
    return {"description": describe(cls), **object_of({"error": object_of(properties, required)}, {"error"})}


def _make_refusal(cls: type[RequestError]) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{cls.__name__}"}
    shown = {code: {"value": {"error": _write_error(cls, code)}} for code in cls.codes}
    headers = dict(_HEADERS)
    if cls.status in (404, 409):
        headers["x-should-retry"] = {"schema": {"type": "string", "const": "false"}}
    content = {JSON: {"schema": schema, "examples": shown}}
    return {"description": describe(cls), "headers": headers, "content": content}


def _write_error(cls: type[RequestError], code: str) -> dict[str, Any]:
    return {**cls("…", code=code).to_wire()["error"], "request_id": "req_5b1e"}
