"""
Refusals come back as the errors that the server raised.
"""

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from agent_harness.client.problems import read_problem
from agent_harness.errors import InternalError, InvalidRequest, NotFound, RequestError, Unavailable


def walk(cls: type[RequestError] = RequestError) -> Iterator[type[RequestError]]:
    for child in cls.__subclasses__():
        if child.__module__ == RequestError.__module__:
            yield child
            yield from walk(child)


CASES = [(cls, code) for cls in walk() for code in cls.codes]


@pytest.mark.parametrize("cls, code", CASES, ids=[code for _, code in CASES])
def test_each_error_of_the_tree_comes_back_as_itself(cls: type[RequestError], code: str) -> None:
    raised = cls("What happened.", code=code, param="events[1].data", extra={"closed_by": "deadline", "pending": [1]})
    read = read_problem(cls.status, orjson.dumps(raised.to_wire()))
    assert type(read) is cls and str(read) == "What happened."
    assert (read.message, read.code, read.param, read.extra) == (raised.message, code, raised.param, raised.extra)
    assert read.to_wire() == raised.to_wire()


@pytest.mark.parametrize("cls", list(walk()))
def test_a_code_nobody_knows_is_the_class_of_its_status(cls: type[RequestError]) -> None:
    read = read_problem(cls.status, b'{"error": {"code": "brand_new", "message": "No.", "hint": 1}}')
    assert read.status == cls.status and (read.code, read.extra) == ("brand_new", {"hint": 1})


def test_a_code_decides_before_the_status() -> None:
    assert type(read_problem(400, b'{"error": {"code": "unknown_call", "message": "No."}}')) is NotFound


@pytest.mark.parametrize(
    "status, expected",
    [(418, InvalidRequest), (302, InvalidRequest), (500, InternalError), (502, Unavailable), (504, Unavailable)],
)
@pytest.mark.parametrize("body", [b"<html>teapot</html>", b"", b"[]", b'{"error": "x"}', b"\xff\xfe"])
def test_an_answer_that_is_not_the_servers_own_is_told_by_its_status(
    status: int, expected: type[RequestError], body: bytes
) -> None:
    read = read_problem(status, body)
    assert type(read) is expected and read.code == f"http_{status}" and f"HTTP {status}" in read.message


@pytest.mark.parametrize("error", [{}, {"code": None, "message": None}, {"code": 3, "message": 4, "param": None}])
def test_an_error_that_lacks_something_is_still_an_error(error: dict[str, Any]) -> None:
    read = read_problem(409, orjson.dumps({"error": error}))
    assert read.status == 409 and read.code and read.message
