"""
A turn as a person sees it: its events, printed as they come.
"""

from collections.abc import Container

from agent_harness.cli.terminal import Screen
from agent_harness.cli.transcript import describe_call, show_item
from agent_harness.protocol import events as said
from agent_harness.protocol.items import FunctionCall, FunctionCallOutput, Message
from agent_harness.protocol.tolerant import AnyEvent
from agent_harness.protocol.turns import Turn

__all__ = ["TurnView", "describe_end"]

WHAT_TO_DO = {
    "provider_auth": "Set the provider's key where the server runs (OPENAI_API_KEY, or what its settings name).",
    "provider_not_found": "Name one of the server's providers.",
    "provider_rejected": "Check --model and --api; `agent-harness providers check` tells more.",
    "provider_unavailable": "Check OPENAI_BASE_URL, or base_url in the settings, and that the model server runs.",
    "rate_limited": "Wait, or look at the provider's limits and billing.",
    "context_length_exceeded": "Begin a new session.",
}
"""By the code of a turn that failed."""


def describe_end(turn: Turn) -> str | None:
    """
    What to say of a turn that did not end well; None of one that did.
    """
    if turn.status == "completed":
        return None
    if turn.error is not None:
        advice = WHAT_TO_DO.get(turn.error.code, "")
        return f"The turn failed ({turn.error.code}): {turn.error.message.rstrip('.')}. {advice}".rstrip()
    if turn.status == "incomplete":
        return f"The answer was cut short ({turn.incomplete_reason})."
    return "The turn was interrupted." if turn.status == "cancelled" else f"The turn ended as {turn.status}."


class TurnView:
    """
    Prints the events of a turn.

    Args:
        answer: gets what the model says.
        aside: gets everything else.
        own: names of tools that run here; whoever runs them shows their calls and results.
    """

    def __init__(self, answer: Screen, aside: Screen, own: Container[str]) -> None:
        self.response_id: str | None = None
        self.turn: Turn | None = None
        self._queued = False
        self._answer = answer
        self._aside = aside
        self._own = own
        self._own_calls: set[str] = set()

    @property
    def waits(self) -> bool:
        """
        Whether the message waits behind another turn.
        """
        return self._queued and self.response_id is None

    def follow(self, event: AnyEvent) -> None:
        """
        Take notice of one event, and print nothing.
        """
        if isinstance(event, said.ResponseCreated):
            self.response_id = event.response.id
        elif isinstance(event, said.SessionStatus) and event.status in ("running", "waiting"):
            self.response_id = event.response_id
        elif isinstance(event, said.TERMINAL_EVENTS):
            self.turn = event.response
        elif isinstance(event, said.SessionItem) and isinstance(event.item, Message):
            self._queued = event.item.status == "queued"

    def show(self, event: AnyEvent) -> None:
        """
        Print one event, if there is anything in it for a person.
        """
        self.follow(event)
        match event:
            case said.TextDelta() | said.RefusalDelta():
                self._answer.write(event.delta)
            case said.TextDone() | said.RefusalDone():
                self._answer.start_line()
            case said.SummaryDone():
                self._aside.line(f"· {event.text}", "dim")
            case said.SessionItem(item=Message(status="queued")):
                self._aside.line("(the message waits behind a running turn)", "dim")
            case said.OutputItemDone():
                self._show_item(event)
            case said.ResponseRetrying():
                self._note(f"{event.reason} Trying again in {event.delay_s:.1f} s.")
            case said.SessionGap():
                self._note("(some events were missed)")
            case _ if isinstance(event, said.TERMINAL_EVENTS):
                self._answer.start_line()

    def _show_item(self, event: said.OutputItemDone) -> None:
        item = event.item
        if isinstance(item, FunctionCall):
            if item.name in self._own and item.status in ("action_required", "completed"):
                self._own_calls.add(item.call_id)
            elif item.status == "action_required":
                self._note(f"→ {describe_call(item.name, item.arguments)} waits for another client's answer")
        elif isinstance(item, FunctionCallOutput) and (item.call_id not in self._own_calls or item.origin == "harness"):
            show_item(self._aside, item)

    def _note(self, text: str) -> None:
        self._answer.start_line()
        self._aside.line(text, "yellow")
