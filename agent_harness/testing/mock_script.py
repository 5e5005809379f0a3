"""
The script of a `MockLLM`: steps, each the answer to one model request, and the server's state that hands them out.

A step is written in the test's thread and taken in the server's.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import attrs

from agent_harness.testing.mock_entry import UNSET, Entry, read_entry
from agent_harness.testing.mock_llm import DIALECTS, build_answer
from agent_harness.testing.mock_state import Captured, Gate, MockState, Parked
from agent_harness.testing.strict import Dialect

__all__ = ["ScriptState", "Step", "find_line"]

WAIT_S = 5.0
"""How long a test waits for a request to park, unless told otherwise, in seconds."""

SHOWN = 60
"""How much of a text a message shows, in characters."""

Post = Callable[[Callable[[], None]], None]
"""Runs a function in the server's loop, soon."""


@attrs.define(eq=False, repr=False)
class Step:
    """
    The answer to one request; made by the methods of `MockLLM`. Its own methods add to the same answer: a text, calls
    behind it, a barrier. Once the request has come, nothing can be added.
    """

    number: int
    where: str
    _post: Post
    _fields: dict[str, Any] = attrs.field(factory=dict)
    _after: int | None = None
    _reached: Future[None] = attrs.field(factory=Future)
    _parked: Parked | None = None
    _released: bool = False
    _taken: bool = False
    _lasts: bool = False

    def __repr__(self) -> str:
        return f"step {self.number} ({self._describe()}, {self.where})"

    def reply(
        self,
        text: str = "",
        *,
        deltas: Sequence[str] = (),
        reasoning: str | None = None,
        usage: Mapping[str, Any] | None = UNSET,
    ) -> Step:
        """
        Say *text*.

        Args:
            deltas: how it is split; they may stand in its place. Without them it comes word by word.
            reasoning: a summary (Chat Completions: ``reasoning_content``) in front of it.
            usage: the usage object in the dialect's own shape, None for none; made up if it is left out.
        """
        check_kind("text", text, str, "a string")
        check_kind("reasoning", reasoning, str | None, "a string")
        check_kind("deltas", deltas, Sequence, "a list of strings")
        for index, delta in enumerate(deltas):
            check_kind(f"deltas[{index}]", delta, str, "a string")
        if usage is not UNSET:
            check_kind("usage", usage, Mapping | None, "the dialect's usage object, or None")
        if deltas and text not in ("", "".join(deltas)):
            raise ValueError(f"the deltas make up {''.join(deltas)!r}, not {text!r}")
        fields: dict[str, Any] = {"text": text or "".join(deltas), "deltas": list(deltas), "reasoning": reasoning}
        return self._add(fields if usage is UNSET else {**fields, "usage": usage})

    def call(self, name: str, arguments: Mapping[str, Any] | str = "{}", *, call_id: str | None = None) -> Step:
        """
        Call a function. Again for several calls in one answer.

        Args:
            arguments: an object, or a text that is sent as it is, malformed or not.
            call_id: made up if it is left out.
        """
        check_kind("name", name, str, "a string")
        check_kind("arguments", arguments, Mapping | str, "an object, or a text")
        check_kind("call_id", call_id, str | None, "a string")
        text = arguments if isinstance(arguments, str) else _write_arguments(arguments)
        call = {"name": name, "arguments": text, "call_id": call_id}
        return self._add({"tool_calls": [*self._fields.get("tool_calls", ()), call]})

    def fail(
        self,
        status: int = 500,
        *,
        message: str = "",
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        retry: bool = False,
    ) -> Step:
        """
        Answer with an HTTP error.

        Args:
            message, code: of the error object.
            retry: the same request, asked again, takes the next step. Otherwise it fails however often it is asked, so
                that the turn fails: the harness asks three times before it gives up on 429 and 5xx.
        """
        check_kind("status", status, int, "a number from 400 to 599")
        check_kind("message", message, str, "a string")
        check_kind("code", code, str | None, "a string")
        check_kind("headers", headers, Mapping | None, "a dictionary")
        for header, value in (headers or {}).items():
            check_kind(f"headers[{header!r}]", value, str, "a string")
        if not 400 <= status <= 599:
            raise ValueError(f"status is from 400 to 599, not {status}")
        error = {"message": message or f"The script says {status}.", "code": code}
        self._add({"status_code": status, "error": error, "headers": dict(headers or {})})
        self._lasts = not retry
        return self

    def block(self, after: int = 0) -> Step:
        """
        Park the request until `release`: before the first byte, or *after* so many deltas of the answer.
        """
        check_kind("after", after, int, "a number of deltas")
        if after < 0:
            raise ValueError(f"after is at least 0, not {after}")
        self._add({})
        self._after = after
        return self

    async def parked(self, timeout_s: float = WAIT_S) -> None:
        """
        Return when the request has come and is parked.

        Raises:
            AssertionError: it did not in time.
        """
        self._check_blocking()
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(asyncio.wrap_future(self._reached))
        except TimeoutError:
            raise AssertionError(f"no request has come to {self!r} within {timeout_s:g} s") from None

    def wait_parked(self, timeout_s: float = WAIT_S) -> None:
        """
        The same for tests without a loop.
        """
        self._check_blocking()
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("this would block the loop, so that no request could come; await parked() instead")
        try:
            self._reached.result(timeout_s)
        except TimeoutError:
            raise AssertionError(f"no request has come to {self!r} within {timeout_s:g} s") from None

    def release(self) -> None:
        """
        Let the request go on; one that is still to come will not be parked.
        """
        self._check_blocking()
        self._post(self._open)

    # The server's side.

    @property
    def lasts(self) -> bool:
        """
        Whether its request, asked again, is answered by it again.
        """
        return self._lasts

    def take(self, dialect: Dialect) -> Entry:
        """
        The answer; from now on nothing can be added.
        """
        self._taken = True
        entry = self._read()
        if self._after is None:
            return entry
        return attrs.evolve(entry, block=_find_frame(dialect, entry, self._after) if self._after else True)

    def park(self, parked: Parked) -> None:
        """
        The request is at the gate.
        """
        self._parked = parked
        if self._released:
            self._open()
        if not self._reached.done():
            self._reached.set_result(None)

    def _open(self) -> None:
        self._released = True
        if self._parked is not None:
            self._parked.opened.set()

    def _add(self, fields: dict[str, Any]) -> Step:
        if self._taken:
            raise RuntimeError(f"{self!r} has been asked for; script it before the message is sent")
        before, self._fields = self._fields, self._fields | fields
        try:
            self._read()
        except ValueError:
            self._fields = before
            raise
        return self

    def _read(self) -> Entry:
        # An answer with nothing in it is an empty message.
        given = self._fields.keys() & {"text", "tool_calls", "error", "raw", "recall", "deltas"}
        return read_entry(self._fields if given else {"text": "", **self._fields}, f"step {self.number}")

    def _check_blocking(self) -> None:
        if self._after is None:
            raise RuntimeError(f"{self!r} does not block")

    def _describe(self) -> str:
        parts = ["block"] if self._after is not None else []
        if "error" in self._fields:
            return " ".join(
                [*parts, f"fail {self._fields['status_code']}" if "status_code" in self._fields else "fail"]
            )
        if "text" in self._fields:
            parts.append(f"reply {shorten(self._fields['text'])}")
        parts += [f"call {call['name']}" for call in self._fields.get("tool_calls", ())]
        return " ".join(parts) or "answer"


@attrs.define
class ScriptState(MockState):
    """
    The mock's state with a script in front of its queues: requests take the steps in order, whatever their model.
    """

    steps: deque[Step] = attrs.field(factory=deque)
    answered: set[int] = attrs.field(factory=set)
    _serving: dict[Any, Step] = attrs.field(factory=dict)
    _failed: dict[Any, tuple[Any, Entry]] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.gate = Gate(_Parking(self._park))

    def reset(self) -> None:
        """
        Forget the script too.
        """
        super().reset()
        self.steps.clear()
        self.answered.clear()
        self._serving.clear()
        self._failed.clear()

    def take(self, key: str) -> Entry | None:
        """
        The next step of the script; without one what the queues have.
        """
        request: Captured = self.captured[-1]
        session_id = request.headers.get("x-session-id")
        body, entry = self._failed.get(session_id, (None, None))
        if entry is None or body != request.body:
            entry = self._take_step(request, session_id) if self.steps else super().take(key)
        if entry is not None:
            self.answered.add(id(request))
        return entry

    def _take_step(self, request: Captured, session_id: str | None) -> Entry:
        step = self.steps.popleft()
        # Whatever parks in this task from now on is this step.
        self._serving[asyncio.current_task()] = step
        entry = step.take(DIALECTS[request.path])
        self._failed.pop(session_id, None)
        if step.lasts:
            self._failed[session_id] = request.body, attrs.evolve(entry, block=None)
        return entry

    def _park(self, parked: Parked) -> None:
        step = self._serving.get(asyncio.current_task())
        if step is not None:
            step.park(parked)


class _Parking(list[Parked]):
    """
    The requests at the gate; says when one comes.
    """

    def __init__(self, on_park: Callable[[Parked], None]) -> None:
        super().__init__()
        self._on_park = on_park

    def append(self, parked: Parked) -> None:
        super().append(parked)
        self._on_park(parked)


def check_kind(argument: str, value: object, kind: Any, wanted: str) -> None:
    """
    Raises:
        TypeError: *value* is none of *kind*; it names the argument.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{argument} is {wanted}, not {value!r}")


def shorten(text: str) -> str:
    """
    A text as a message shows it.
    """
    return repr(text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…")


def _write_arguments(arguments: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(arguments), ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"arguments cannot be written as JSON: {error}") from None


def find_line() -> str:
    """
    Where the test is that called into this package: ``test_turn.py:12``.
    """
    folder, frame = str(Path(__file__).parent), sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(folder):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _find_frame(dialect: Dialect, entry: Entry, after: int) -> int:
    """
    The number of frames that hold *after* deltas; of an answer that has fewer, all but its last.
    """
    frames = build_answer(dialect, entry, {}, 0).frames
    deltas = [index for index, frame in enumerate(frames) if frame.is_delta]
    return deltas[after - 1] + 1 if after <= len(deltas) else len(frames) - 1
