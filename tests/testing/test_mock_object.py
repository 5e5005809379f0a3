"""
The script of a `MockLLM`, where it is written: what cannot be a step is refused there, and adds none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from agent_harness.testing import MockLLM


@pytest.mark.parametrize(
    "write, said",
    [
        (lambda mock: mock.reply(5), "text is a string, not 5"),
        (lambda mock: mock.reply("a", usage=3), "usage is the dialect's usage object, or None, not 3"),
        (lambda mock: mock.reply("a", reasoning=3), "reasoning is a string, not 3"),
        (lambda mock: mock.reply(deltas=3), "deltas is a list of strings, not 3"),
        (lambda mock: mock.reply(deltas=["a", 3]), "deltas[1] is a string, not 3"),
        (lambda mock: mock.call("f", 5), "arguments is an object, or a text, not 5"),
        (lambda mock: mock.call("f", [1]), "arguments is an object, or a text, not [1]"),
        (lambda mock: mock.call("f", {"a": {1}}), "arguments cannot be written as JSON: "),
        (lambda mock: mock.call(5), "name is a string, not 5"),
        (lambda mock: mock.call("f", call_id=5), "call_id is a string, not 5"),
        (lambda mock: mock.fail("x"), "status is a number from 400 to 599, not 'x'"),
        (lambda mock: mock.fail(message=5), "message is a string, not 5"),
        (lambda mock: mock.fail(code=5), "code is a string, not 5"),
        (lambda mock: mock.fail(headers="x"), "headers is a dictionary, not 'x'"),
        (lambda mock: mock.fail(headers={"Retry-After": 3}), "headers['Retry-After'] is a string, not 3"),
        (lambda mock: mock.block("x"), "after is a number of deltas, not 'x'"),
    ],
)
def test_an_argument_of_another_kind_is_named_and_adds_no_step(write: Callable[[MockLLM], Any], said: str) -> None:
    mock = MockLLM()
    with pytest.raises(TypeError, match=f"^{re.escape(said)}"):
        write(mock)
    assert mock.problems() == []


@pytest.mark.parametrize("status", [200, 399, 600, True])
def test_a_status_that_is_no_failure_is_refused(status: int) -> None:
    mock = MockLLM()
    with pytest.raises(ValueError, match=f"status is from 400 to 599, not {status}"):
        mock.fail(status)
    assert mock.problems() == []


def test_an_addition_that_is_refused_leaves_the_step_as_it_was() -> None:
    mock = MockLLM()
    step = mock.reply("a", usage=None)
    with pytest.raises(TypeError):
        step.call("f", 5)  # type: ignore[arg-type]
    [line] = mock.problems()
    assert line.startswith("step 1 (reply 'a', ")
