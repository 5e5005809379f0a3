"""
A conversation in a terminal, and one message without one.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Container

from agent_harness.cli.exits import INTERRUPTED, CommandFailed
from agent_harness.cli.keyboard import Interrupts, Keyboard, Stopped
from agent_harness.cli.partners import AtServer, Partner
from agent_harness.cli.terminal import Screen, dump_json
from agent_harness.cli.transcript import describe_call, show_item, write
from agent_harness.cli.turns import TurnView, describe_end
from agent_harness.errors import RequestError
from agent_harness.protocol.items import Message
from agent_harness.protocol.tolerant import AnyEvent

__all__ = ["Conversation", "Left", "Turn", "say_once"]

END_WAIT_S = 3.0
"""How long an interrupted turn may take to end where nobody can press Ctrl-C again, in seconds."""

HELP = """\
/help       this
/interrupt  end the turn that runs in this session, if another client began one
/session    which session this is
/quit       leave; so do Ctrl-D, and Ctrl-C twice
Ctrl-C ends a running turn, also at a question; a message that waits behind another turn stays queued.
Everything else is said to the model."""

STAYS_QUEUED = "(no longer waiting; the message stays queued, and is answered when its turn comes)"


class Left(Exception):
    """
    The person wants out.
    """


class Turn:
    """
    Plays one turn's events; Ctrl-C interrupts the turn, a second one leaves it. If the message still waits behind
    another turn, the first one ends the wait.

    Args:
        end_wait_s: how long the turn may take to end after Ctrl-C before it is left; None for no bound.

    Attributes:
        stopped: how often Ctrl-C was heard.
    """

    def __init__(
        self,
        partner: Partner,
        view: TurnView,
        interrupts: Interrupts,
        note: Callable[[str], None],
        end_wait_s: float | None = None,
    ) -> None:
        self.stopped = 0
        self._end_wait_s = end_wait_s
        self._partner = partner
        self._view = view
        self._interrupts = interrupts
        self._note = note
        self._interrupting: asyncio.Task[None] | None = None

    async def play(self, events: AsyncIterator[AnyEvent], show: Callable[[AnyEvent], None]) -> None:
        """
        Read *events* to their end, or to Ctrl-C where the message waits.

        Raises:
            Left: Ctrl-C was heard twice, or the turn did not end in time.
            RequestError, ConnectionError: as the events' source raises them.
        """
        task = asyncio.ensure_future(self._read(events, show))
        is_left = False

        def leave() -> None:
            nonlocal is_left
            is_left = True
            task.cancel()

        with contextlib.ExitStack() as ends:

            def stop() -> None:
                self.stopped += 1
                if self.stopped > 1:
                    leave()
                elif self._view.waits:
                    task.cancel()
                else:
                    self._note("(interrupting; Ctrl-C again leaves)")
                    self._interrupt()
                    if self._end_wait_s is not None:
                        late = asyncio.get_running_loop().call_later(self._end_wait_s, leave)
                        ends.callback(late.cancel)

            ends.enter_context(self._interrupts.heard_by(stop))
            try:
                await task
            except asyncio.CancelledError:
                if is_left:
                    raise Left from None
                if not (self.stopped and self._view.waits and task.cancelled()):
                    raise
            finally:
                await self._settle(task)
        if self.stopped and self._view.waits:
            self._note(STAYS_QUEUED)

    async def _read(self, events: AsyncIterator[AnyEvent], show: Callable[[AnyEvent], None]) -> None:
        try:
            async for event in events:
                show(event)
                if self.stopped and self._interrupting is None:
                    # Ctrl-C came before the turn began.
                    if self._view.waits:
                        return
                    self._interrupt()
        finally:
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()

    def _interrupt(self) -> None:
        """
        End the turn, once it is known which it is: another client's may run before it.
        """
        if self._view.response_id is not None:
            self._interrupting = asyncio.ensure_future(self._send_interrupt(self._view.response_id))

    async def _send_interrupt(self, response_id: str) -> None:
        try:
            await self._partner.interrupt(response_id)
        except (RequestError, ConnectionError) as error:
            self._note(str(error))

    async def _settle(self, *tasks: "asyncio.Task[None] | None") -> None:
        for task in (*tasks, self._interrupting):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait((task,))


async def say_once(
    partner: Partner, text: str, interrupts: Interrupts, view: TurnView, aside: Screen, json_to: Screen | None
) -> int:
    """
    Say *text*, print the answer (or each event as JSON to *json_to*), and return the exit code.

    Raises:
        CommandFailed: the turn did not end well.
    """

    def show(event: AnyEvent) -> None:
        if json_to is None:
            view.show(event)
        else:
            view.follow(event)
            json_to.line(dump_json({"type": event.type, **write(event)}))

    turn = Turn(partner, view, interrupts, lambda note: aside.line(note, "yellow"), END_WAIT_S)
    try:
        await turn.play(partner.send(text), show)
    except Left:
        return INTERRUPTED
    if turn.stopped:
        return INTERRUPTED
    problem = "The stream ended before the turn did." if view.turn is None else describe_end(view.turn)
    if problem is not None:
        raise CommandFailed(problem)
    return 0


class Conversation:
    """
    Messages from the keyboard, and what they are answered, until the person leaves.

    Args:
        own: names of the tools that run here.
        resume_with: the command that goes on with the session.
    """

    def __init__(
        self,
        partner: Partner,
        screen: Screen,
        keyboard: Keyboard,
        interrupts: Interrupts,
        own: Container[str],
        resume_with: str,
    ) -> None:
        self._resume_with = resume_with
        self._partner = partner
        self._screen = screen
        self._keyboard = keyboard
        self._interrupts = interrupts
        self._own = own

    async def hold(self, *, resumed: bool) -> int:
        """
        Talk until the end; the exit code. Where nobody can press Ctrl-C again, there being no terminal, one is the end.
        """
        code = 0
        try:
            if resumed:
                await self._resume()
            else:
                self._note(f"Session {self._partner.session_id}. /help lists what can be done.")
            await self._talk()
        except Left:
            pass
        except Stopped:
            code = INTERRUPTED
        self._screen.start_line()
        if self._partner.resumable:
            self._note(f"Go on with: {self._resume_with}")
        return code

    async def _talk(self) -> None:
        """
        Raises:
            Left: the person wants out.
            Stopped: so it is, by Ctrl-C without a terminal.
        """
        warned = False
        while True:
            try:
                said = await self._keyboard.read_message("> ")
            except Stopped:
                if not self._keyboard.is_terminal:
                    raise
                if warned:
                    return
                warned = True
                self._note("(Ctrl-C again, or Ctrl-D, leaves)")
                continue
            warned = False
            if said is None:
                return
            text = said.strip()
            if re.fullmatch(r"/[a-z]+", text):
                await self._do(text)
            elif text:
                await self._play(self._partner.send(text))

    async def _do(self, command: str) -> None:
        """
        Raises:
            Left: the command was ``/quit``.
        """
        try:
            match command:
                case "/help":
                    self._screen.line(HELP)
                case "/quit" | "/exit":
                    raise Left
                case "/interrupt":
                    ended = await self._partner.interrupt(None)
                    self._note("The turn was interrupted." if ended else "No turn runs.")
                case "/session":
                    await self._tell_session()
                case _:
                    self._note(f"There is no {command}; /help lists what there is.")
        except (RequestError, ConnectionError) as error:
            self._screen.line(str(error), "red")

    async def _tell_session(self) -> None:
        session = await self._partner.snapshot()
        tokens = session.usage.total_tokens if session.usage is not None else None
        self._screen.line(f"{session.id} · {session.status} · {tokens or 0:,} tokens")
        if self._partner.resumable:
            self._screen.line(self._resume_with)

    async def _resume(self) -> None:
        """
        Show the last exchange, and join a turn that runs if it does not wait for somebody else.
        """
        session = await self._partner.snapshot(include_items=True)
        items = session.items or ()
        users = [index for index, item in enumerate(items) if isinstance(item, Message) and item.role == "user"]
        self._note(f"Session {session.id}, {len(items)} items.")
        for item in items[users[-1] :] if users else ():
            show_item(self._screen, item)
        if session.response_id is None or not isinstance(self._partner, AtServer):
            return
        if self._partner.can_answer(session):
            self._note("(a turn runs)")
            await self._play(self._partner.rejoin())
            return
        waiting = ", ".join(describe_call(action.name, action.arguments) for action in session.required_actions)
        self._note(f"A turn waits for results that are not made here: {waiting}. /interrupt ends it.")

    async def _play(self, events: AsyncIterator[AnyEvent]) -> None:
        view = TurnView(self._screen, self._screen, self._own)
        is_terminal = self._keyboard.is_terminal
        turn = Turn(self._partner, view, self._interrupts, self._note, None if is_terminal else END_WAIT_S)
        try:
            await turn.play(events, view.show)
        except (RequestError, ConnectionError) as error:
            if isinstance(error, BrokenPipeError):
                raise  # nobody reads what is printed
            self._screen.line(str(error), "red")
        except Left:
            if is_terminal:
                raise
        else:
            problem = None if view.turn is None else describe_end(view.turn)
            if problem is not None:
                self._screen.line(problem, "red")
        if turn.stopped and not is_terminal:
            raise Stopped

    def _note(self, text: str) -> None:
        self._screen.line(text, "dim")
