"""
The OpenAPI document, and ways to hold values against it.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from agent_harness.server.openapi import make_document

__all__ = [
    "DOCUMENT",
    "OPERATIONS",
    "SCHEMAS",
    "body_of",
    "content_of",
    "faults",
    "fits",
    "headers_of",
    "resolve",
    "validator",
]

DOCUMENT = make_document()
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
OPERATIONS = [
    (method.upper(), path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]


def close(schema: Any) -> Any:
    """
    *schema* with no room for fields it does not name, so that an answer with one more is a failure here.
    """
    if isinstance(schema, list):
        return [close(one) for one in schema]
    if not isinstance(schema, dict) or "additionalProperties" in schema:
        return schema
    closed = {key: close(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        closed["additionalProperties"] = False
    return closed


CLOSED = {"schemas": {name: close(schema) for name, schema in SCHEMAS.items()}}


@cache
def validator(schema: str) -> Draft202012Validator:
    """
    A validator of *schema* (as JSON), closed.
    """
    return Draft202012Validator({**close(json.loads(schema)), "components": CLOSED})


def fits(value: Any, schema: Any) -> bool:
    valid: bool = validator(json.dumps(schema)).is_valid(value)
    return valid


def faults(value: Any, schema: Any) -> list[str]:
    return [error.message for error in validator(json.dumps(schema)).iter_errors(value)]


def body_of(operation_id: str) -> dict[str, Any]:
    """
    The schema of a request body.
    """
    [body] = [operation["requestBody"] for _, _, operation in OPERATIONS if operation["operationId"] == operation_id]
    schema: dict[str, Any] = body["content"]["application/json"]["schema"]
    return schema


def content_of(operation: Any, status: str) -> dict[str, Any]:
    """
    The content of an answer, by media type.
    """
    answer = operation["responses"][status]
    if "$ref" in answer:
        answer = DOCUMENT["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    content: dict[str, Any] = answer["content"]
    return content


def headers_of(operation: Any, status: str) -> dict[str, Any]:
    """
    The headers of an answer.
    """
    answer = operation["responses"][status]
    if "$ref" in answer:
        answer = DOCUMENT["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    headers: dict[str, Any] = answer["headers"]
    return headers


def resolve(schema: dict[str, Any]) -> dict[str, Any]:
    return resolve(SCHEMAS[schema["$ref"].rpartition("/")[2]]) if "$ref" in schema else schema
