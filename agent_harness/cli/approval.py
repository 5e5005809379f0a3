"""
Coding tools with a person beside them: each call is shown before it runs, and what may change something is asked for.
"""

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable
from typing import Any

from agent_harness.cli.terminal import Screen
from agent_harness.cli.transcript import describe_call, shorten
from agent_harness.coding import CHANGING, CodingTools

__all__ = ["CallRefused", "Supervisor"]

PREVIEW_LINES = 40
"""Lines of a file's new content that are shown with the question."""

RESULT_LINES = 6

Ask = Callable[[str], Awaitable[str]]


class CallRefused(Exception):
    """
    A person said no; the model reads this.
    """


class Supervisor:
    """
    Shows calls, asks, and runs them: one at a time, in the order they were made in.

    Args:
        ask: puts a question to a person; None if there is nobody, and then what must be asked for is refused.
        allow_all: ask for nothing.
    """

    def __init__(self, screen: Screen, ask: Ask | None, *, allow_all: bool = False) -> None:
        self._screen = screen
        self._ask = ask
        self._allow_all = allow_all
        self._always: set[str] = set()
        self._turn = asyncio.Lock()

    def watch(self, tools: CodingTools) -> list[Callable[..., Any]]:
        """
        The tools, to be offered in their place.
        """
        return [self._watch(function) for function in tools.functions]

    def _watch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def supervised(**arguments: Any) -> Any:
            async with self._turn:
                self._show_call(function.__name__, arguments)
                await self._check(function.__name__)
                try:
                    result = await _call(function, arguments)
                except Exception as error:
                    self._screen.line(_indent(shorten(f"{type(error).__name__}: {error}", RESULT_LINES)), "red")
                    raise
                self._screen.line(_indent(shorten(result, RESULT_LINES)), "dim")
                return result

        return supervised

    def _show_call(self, name: str, arguments: dict[str, Any]) -> None:
        show = self._screen.line
        match name:
            case "run_bash":
                # Whole: nobody should say yes to what they could not see.
                show(f"→ {describe_call(name, _dump(arguments, 'command'))}", "cyan")
                show(_prefix("$ ", arguments["command"]), "bold")
            case "write_file":
                show(f"→ {describe_call(name, _dump(arguments, 'content'))}", "cyan")
                show(_prefix("+ ", shorten(arguments["content"], PREVIEW_LINES)), "green")
            case "edit_file":
                show(f"→ {describe_call(name, _dump(arguments, 'old_text', 'new_text'))}", "cyan")
                show(_prefix("- ", shorten(arguments["old_text"], PREVIEW_LINES)), "red")
                show(_prefix("+ ", shorten(arguments["new_text"], PREVIEW_LINES)), "green")
            case _:
                show(f"→ {describe_call(name, _dump(arguments))}", "cyan")

    async def _check(self, name: str) -> None:
        """
        Raises:
            CallRefused: it must not run.
        """
        if name not in CHANGING or self._allow_all or name in self._always:
            return
        if self._ask is None:
            self._screen.line("  refused: nobody can be asked; --yes allows it", "red")
            raise CallRefused(
                f"{name} needs a person's consent and nobody can be asked. Do without it, or say what to do."
            )
        answer = ""
        while answer not in ("y", "yes", "n", "no", "a", "always"):
            self._screen.start_line()
            answer = (await self._ask(f"Run {name}? [y]es, [n]o, [a]lways: ")).strip().lower() or "no"
        if answer.startswith("n"):
            self._screen.line("  refused", "red")
            raise CallRefused(
                f"The user does not allow this call of {name}. Ask what they want instead, or do without it."
            )
        if answer.startswith("a"):
            self._always.add(name)


async def _call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    if asyncio.iscoroutinefunction(function):
        return await function(**arguments)
    return await asyncio.to_thread(function, **arguments)


def _dump(arguments: dict[str, Any], *without: str) -> str:
    return json.dumps({key: value for key, value in arguments.items() if key not in without})


def _prefix(sign: str, text: str) -> str:
    return "\n".join(f"  {sign}{line}" for line in text.split("\n"))


def _indent(text: str) -> str:
    return _prefix("", text)
