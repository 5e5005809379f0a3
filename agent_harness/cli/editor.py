"""
The line editor with history that messages are typed in where the extra ``cli`` is installed.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from prompt_toolkit import PromptSession
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.keys import Keys

from agent_harness.cli.keyboard import Interrupts

__all__ = ["LineEditor"]


class LineEditor:
    """
    Reads lines. Ctrl-C comes as a key or as a signal, depending on how far the editor is with taking the terminal over
    or giving it back; either way it ends the line that is typed, and once Enter was pressed it is for what comes next.
    """

    def __init__(self, interrupts: Interrupts) -> None:
        bindings = KeyBindings()
        bindings.add("c-c", filter=has_focus(DEFAULT_BUFFER))(lambda _: self._stop())
        self._session: PromptSession[str] = PromptSession(key_bindings=bindings)
        self._interrupts = interrupts
        self._begun = self._stopped = False

    async def read(self, prompt: str) -> str | None:
        """
        A line; None at Ctrl-D.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        self._begun = self._stopped = False
        with self._interrupts.heard_by(self._stop), self._passing_on():
            try:
                return await self._session.prompt_async(prompt, handle_sigint=False, pre_run=self._begin)
            except EOFError:
                return None

    def _begin(self) -> None:
        self._begun = True
        if self._stopped:
            self._stop()

    def _stop(self) -> None:
        app = self._session.app
        if not self._begun:
            self._stopped = True
        elif app.future is None or app.future.done():
            self._interrupts.put_off()
        else:
            app.exit(exception=KeyboardInterrupt(), style="class:aborting")

    @contextmanager
    def _passing_on(self) -> Iterator[None]:
        """
        Keys that came behind Enter are kept for the next line, but for a Ctrl-C and what was typed before it.
        """
        try:
            yield
        finally:
            keys = get_typeahead(self._session.app.input)
            stops = [index for index, key in enumerate(keys) if key.key == Keys.ControlC]
            if stops:
                self._interrupts.put_off()
                keys = keys[stops[-1] + 1 :]
            store_typeahead(self._session.app.input, keys)
