"""
The runner: answers calls with functions, each call once, so many at a time.
"""

import asyncio
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from agent_harness.functions.signature import OfferedFunction, read_function
from agent_harness.protocol.commands import OUTPUT_MAX, OutputData
from agent_harness.protocol.decode import read
from agent_harness.protocol.encode import to_wire
from agent_harness.protocol.outputs import measure_output
from agent_harness.protocol.tools import Tool, clean_text

__all__ = ["Functions"]

LIMIT = 8
"""How many functions run at once, unless told otherwise."""

CANCEL_WAIT_S = 5.0
"""How long a cancelled function may take to let go, in seconds; one that takes longer is left to itself."""


class Functions:
    """
    Functions and plain definitions to offer, and a runner for the functions among them. One may serve many sessions;
    the limit then holds for all of them together.

    Args:
        functions: functions (see `as_tool`), `Tool` values, or definitions in either of the wire's shapes. Calls
            of what is no function are for somebody else to answer.
        limit: how many run at once; further ones wait.
        show_tracebacks: put the traceback of an exception into the output, for the model to read.
    """

    def __init__(
        self,
        functions: Iterable[Callable[..., Any] | Tool | Mapping[str, Any]],
        limit: int = LIMIT,
        show_tracebacks: bool = False,
    ) -> None:
        if limit < 1:
            raise ValueError(f"limit is at least 1, not {limit}")
        self.definitions: list[dict[str, Any]] = []
        self._functions: dict[str, OfferedFunction] = {}
        self._limit, self._show_tracebacks = limit, show_tracebacks
        self._runs: dict[tuple[str, str], _Run] = {}
        self._slots: tuple[Any, asyncio.Semaphore] | None = None
        names: set[str] = set()
        for entry in functions:
            name = self._add(entry)
            if name in names:
                raise ValueError(f"two tools are named {name!r}")
            names.add(name)

    def __contains__(self, name: object) -> bool:
        """
        Whether a call of that name is run here.
        """
        return name in self._functions

    @property
    def tools(self) -> tuple[Tool, ...]:
        """
        All definitions as values.

        Raises:
            InvalidRequest: a definition that was given as a dictionary is none.
        """
        return read(self.definitions, tuple[Tool, ...])

    async def run(self, call_id: str, name: str, arguments: str, session_id: str = "") -> OutputData:
        """
        Answer one call. A second ask for the same call, during it or after, gets the first one's answer: no call is run
        twice. What the function raises becomes an output with ``is_error``, ``TypeName: message``.

        Cancelling the last one who waits cancels the function; a thread cannot be stopped, its result is dropped.

        Args:
            call_id: the call; unique within its session.
            arguments: the text of a JSON object.
            session_id: the call's session, if this runner serves several.

        Raises:
            LookupError: no function has that name.
            CancelledError: this waiter, or the call, was cancelled.
        """
        run = self._runs.get((session_id, call_id))
        if run is None:
            if name not in self._functions:
                raise LookupError(f"no function is named {name!r}")
            answer = self._answer(self._functions[name], call_id, arguments)
            run = self._runs[session_id, call_id] = _Run(asyncio.get_running_loop().create_task(answer))
        run.waiters += 1
        try:
            return await asyncio.shield(run.task)
        except asyncio.CancelledError:
            if run.waiters == 1 and not run.task.done():
                run.task.cancel()
                await asyncio.wait((run.task,), timeout=CANCEL_WAIT_S)
            raise
        finally:
            run.waiters -= 1

    def cancel(self, call_id: str, session_id: str = "") -> bool:
        """
        Cancel a call that runs; whoever waits for it gets CancelledError. False if it does not run.
        """
        run = self._runs.get((session_id, call_id))
        return run is not None and run.task.cancel()

    def forget(self, call_id: str, session_id: str = "") -> None:
        """
        Keep the call's answer no longer, which until then costs its size in memory. Asked again, it would run again.
        """
        self._runs.pop((session_id, call_id), None)

    def _add(self, entry: Any) -> str:
        if isinstance(entry, Mapping):
            inner = entry.get("function")
            self.definitions.append(dict(entry))
            return str((inner if isinstance(inner, Mapping) else entry).get("name"))
        if not isinstance(entry, Tool):
            function = read_function(entry)
            self._functions[function.tool.name] = function
            entry = function.tool
        self.definitions.append(to_wire(entry))
        return str(entry.name)

    async def _answer(self, function: OfferedFunction, call_id: str, arguments: str) -> OutputData:
        async with self._slot():
            try:
                output = await function.call(arguments)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                # Nobody asked for it: something inside the function was cancelled, and somebody waits for an answer.
                return self._fail(call_id, error)
            except (Exception, SystemExit) as error:
                return self._fail(call_id, error)
        if isinstance(output, BaseException):
            return self._fail(call_id, output)
        size = measure_output(output)
        if size > OUTPUT_MAX:
            message = f"OutputTooLarge: {function.tool.name} returned {size:,} characters, over {OUTPUT_MAX:,}."
            return OutputData(call_id=call_id, output=message, is_error=True)
        return OutputData(call_id=call_id, output=output)

    def _fail(self, call_id: str, error: BaseException) -> OutputData:
        if self._show_tracebacks:
            text = "".join(traceback.format_exception(error)).rstrip()
        else:
            text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return OutputData(call_id=call_id, output=clean_text(text)[:OUTPUT_MAX], is_error=True)

    def _slot(self) -> asyncio.Semaphore:
        """
        The semaphore of the loop that runs: one runner may be used from one loop after another.
        """
        loop = asyncio.get_running_loop()
        if self._slots is None or self._slots[0] is not loop:
            self._slots = (loop, asyncio.Semaphore(self._limit))
        return self._slots[1]


@attrs.define(eq=False)
class _Run:
    task: asyncio.Task[OutputData]
    waiters: int = 0
