"""
A model server for tests: `MockLLM` is scripted step by step, keeps what it was asked, and says what did not fit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import attrs
from aiohttp import web

from agent_harness.config import Limits, ProviderSettings, Settings
from agent_harness.testing.mock_entry import UNSET, read_last_user_text
from agent_harness.testing.mock_llm import DIALECTS, STATE, make_mock_app
from agent_harness.testing.mock_script import ScriptState, Step, find_line, shorten
from agent_harness.testing.mock_state import Captured
from agent_harness.testing.strict import Dialect, StrictOptions
from agent_harness.testing.strict_shapes import list_items
from agent_harness.testing.threads import ThreadServer

__all__ = ["MockLLM", "ModelRequest", "Step"]

CALL_S = 5.0
"""How long the server's thread may take to do what a test asks of it, in seconds."""


@attrs.frozen
class ModelRequest:
    """
    A request as the model server got it.

    Attributes:
        number: from 1, in order of arrival.
        headers: their names in lower case.
        body: its JSON; a text if it was none.
        status: what it was answered; None while it is parked, or if its client left before.
    """

    number: int
    path: str
    headers: Mapping[str, str] = attrs.field(repr=False)
    body: Any = attrs.field(repr=False)
    status: int | None

    @property
    def api(self) -> Dialect:
        """
        Its dialect: ``responses`` or ``chat``.
        """
        return DIALECTS[self.path]

    @property
    def model(self) -> str | None:
        """
        The model it asks for.
        """
        return self.body.get("model") if isinstance(self.body, dict) else None

    @property
    def items(self) -> list[dict[str, Any]]:
        """
        The conversation: ``input`` or ``messages``.
        """
        items = list_items(self.api, self.body) if isinstance(self.body, dict) else []
        return [item for item in items if isinstance(item, dict)]

    @property
    def user_text(self) -> str:
        """
        What the user said last.
        """
        return read_last_user_text(self.api, self.body) if isinstance(self.body, dict) else ""

    @property
    def tools(self) -> list[str]:
        """
        The names of the functions that are offered.
        """
        tools = self.body.get("tools") if isinstance(self.body, dict) else None
        return [tool.get("function", tool)["name"] for tool in tools or ()]

    @property
    def outputs(self) -> dict[str, Any]:
        """
        The results in it, by call id.
        """
        if self.api == "chat":
            return {item["tool_call_id"]: item["content"] for item in self.items if item.get("role") == "tool"}
        kind = "function_call_output"
        return {item["call_id"]: item["output"] for item in self.items if item.get("type") == kind}

    def __str__(self) -> str:
        return f"request {self.number} (POST {self.path}, model {self.model!r}, user text {shorten(self.user_text)})"


class MockLLM:
    """
    A strict model server in a thread of its own, with a script: each request takes the next step. ``with MockLLM() as
    mock`` starts it, and at the end checks that script and requests fit; the fixture ``mock_llm`` does the same.

    Its steps are scripted before the message that needs them is sent.

    Args:
        strict: refuse what real model servers refuse; see `agent_harness.testing.strict`.
    """

    def __init__(self, *, strict: bool = True) -> None:
        self._state = ScriptState()
        self._strict = strict
        self._server: ThreadServer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._count = 0

    def __enter__(self) -> MockLLM:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        if error is None:
            self.check()

    def __repr__(self) -> str:
        where = "stopped" if self._server is None else self._server.url
        return f"<MockLLM {where} steps={len(self._state.steps)} requests={len(self._state.captured)}>"

    # The script.

    def reply(
        self,
        text: str = "",
        *,
        deltas: Sequence[str] = (),
        reasoning: str | None = None,
        usage: Mapping[str, Any] | None = UNSET,
    ) -> Step:
        """
        A step that says *text*; see `Step.reply`.
        """
        return self._queue(lambda step: step.reply(text, deltas=deltas, reasoning=reasoning, usage=usage))

    def call(self, name: str, arguments: Mapping[str, Any] | str = "{}", *, call_id: str | None = None) -> Step:
        """
        A step that calls a function; ``mock.call(…).call(…)`` calls two in one answer. See `Step.call`.
        """
        return self._queue(lambda step: step.call(name, arguments, call_id=call_id))

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
        A step that answers with an HTTP error; see `Step.fail`.
        """
        return self._queue(lambda step: step.fail(status, message=message, code=code, headers=headers, retry=retry))

    def block(self, after: int = 0) -> Step:
        """
        A step that parks its request until it is released; see `Step.block`. What it answers then is added to it:
        ``mock.block().reply("late")``.
        """
        return self._queue(lambda step: step.block(after))

    def answer(self, **fields: Any) -> Step:
        """
        A step of whatever fields an entry of the mock server has (``raw``, ``disconnect_after``, ``finish``, …); see
        `agent_harness.testing.mock_llm`.
        """
        return self._queue(lambda step: step._add(fields))

    def _queue(self, write: Callable[[Step], Step]) -> Step:
        step = write(Step(self._count + 1, find_line(), self._post))
        self._count += 1
        self._state.steps.append(step)
        return step

    # What came of it.

    @property
    def requests(self) -> list[ModelRequest]:
        """
        All requests so far, in order of arrival.
        """
        return [self._read(index, held) for index, held in enumerate(list(self._state.captured))]

    def problems(self) -> list[str]:
        """
        What does not fit, one line each: steps that nobody asked for, requests that no step was there for, and requests
        that were refused.
        """
        lines = [f"{step!r} was never asked for" for step in list(self._state.steps)]
        asked: list[Any] = []
        for index, held in enumerate(list(self._state.captured)):
            # The same request asked again is the same problem.
            if id(held) not in self._state.answered and held.status is not None and held.body not in asked:
                asked.append(held.body)
                refused = "was refused: it is none that a real model server takes" if held.status == 400 else ""
                lines.append(f"{self._read(index, held)} {refused or 'had no step left'}")
        return lines

    def check(self) -> None:
        """
        Raises:
            AssertionError: something does not fit; it says what.
        """
        __tracebackhide__ = True
        problems = self.problems()
        if problems:
            raise AssertionError("\n".join(["the script of the mock model does not fit:", *problems]))

    @contextmanager
    def checked(self) -> Iterator[MockLLM]:
        """
        One test's part of a server that serves several: begins with nothing, and is checked at its end.
        """
        self.reset()
        try:
            yield self
            self.check()
        finally:
            self.reset()

    def reset(self) -> None:
        """
        Forget the script and all requests; cut those that are parked.
        """
        done: Future[None] = Future()

        def forget() -> None:
            self._state.reset()
            self._apply_strictness()
            done.set_result(None)

        self._count = 0
        self._post(forget)
        done.result(CALL_S)

    # The server.

    @property
    def url(self) -> str:
        """
        Where it is, without a slash at the end.
        """
        if self._server is None:
            raise RuntimeError("the mock model server does not run; use it in a with block, or the fixture mock_llm")
        return self._server.url

    @property
    def base_url(self) -> str:
        """
        What a client of model servers takes for its base URL, ``/v1`` included.
        """
        return f"{self.url}/v1"

    def provider(self, **changes: Any) -> ProviderSettings:
        """
        It as a provider; *changes* are fields of `agent_harness.config.ProviderSettings`. Retries are as many as in
        earnest, and come at once.
        """
        fields: dict[str, Any] = {
            "base_url": self.base_url,
            "api_key_env": None,
            "needs_key": False,
            "model": "mock",
            "retry_base_s": 0.001,
            "retry_cap_s": 0.01,
        }
        return ProviderSettings(**fields | changes)

    def settings(self, *, limits: Limits | None = None, **changes: Any) -> Settings:
        """
        Settings whose only provider it is; *changes* as for `provider`.
        """
        provider = self.provider(**changes)
        return Settings(providers=(provider,), default_provider=provider.name, limits=limits or Limits())

    def start(self) -> None:
        """
        Serve, on a free port.
        """
        self._server = ThreadServer(self._make_app)
        self._server.__enter__()

    def stop(self) -> None:
        """
        Serve no more; what it was asked can still be read.
        """
        server, self._server = self._server, None
        if server is not None:
            server.__exit__(None, None, None)

    async def _make_app(self) -> web.Application:
        self._loop = asyncio.get_running_loop()
        app = make_mock_app()
        app[STATE] = self._state
        self._apply_strictness()
        return app

    def _apply_strictness(self) -> None:
        self._state.configure({"strict": attrs.asdict(StrictOptions(enabled=self._strict))})

    def _post(self, function: Callable[[], None]) -> None:
        if self._loop is None or self._server is None:
            raise RuntimeError("the mock model server does not run")
        self._loop.call_soon_threadsafe(function)

    @staticmethod
    def _read(index: int, held: Captured) -> ModelRequest:
        return ModelRequest(index + 1, held.path, held.headers, held.body, held.status)
