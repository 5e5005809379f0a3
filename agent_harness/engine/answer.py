"""
One answer of the model, from its request to its end: the deltas that come are kept as items of the session.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from agent_harness.engine.notes import harness_output, refusal_text
from agent_harness.errors import InvalidRequest, ModelError
from agent_harness.llm import base
from agent_harness.protocol import events as said
from agent_harness.protocol.answers import finish_draft, grow_draft
from agent_harness.protocol.blocks import Block
from agent_harness.protocol.drafts import Draft
from agent_harness.protocol.items import FunctionCallOutput, Provenance, make_id
from agent_harness.protocol.tools import (
    NamedChoice,
    Tool,
    ToolChoice,
    clean_call_id,
    clean_name,
    clean_text,
    merge_tools,
)

if TYPE_CHECKING:
    from agent_harness.engine.session_turns import SessionTurns

__all__ = ["Answer", "preview_body"]

_PREFIXES = {"message": "msg", "function_call": "fc", "reasoning": "rs"}


class Answer:
    """
    The answer that the running turn of *session* asks for now. Making it lets steered messages in and counts the call.

    Raises:
        ModelError: the agent's provider does not exist.
    """

    __slots__ = ("_agent", "_provider", "_session", "_turn_id", "clock", "model", "request")

    def __init__(self, session: "SessionTurns") -> None:
        entered = session.transcript.enter_steered()
        if entered:
            session.keep(entered)
        self._session = session
        self._turn_id = session.transcript.running.id
        # As they were when the answer was asked for: a change holds from the next model call.
        self._agent, self._provider = session.agent, session.provider
        self.model = session.host.find_model(self._provider)
        self.clock = session.host.watch.model_call(session, self._provider)
        session.transcript.count_call(self._agent.model or self.model.default_model)
        tools, choice = session.transcript.tools, session.transcript.tool_choice
        self.request = _build_request(session, tools, choice, first=session.transcript.running.model_calls == 1)

    def take(self, delta: base.Delta) -> None:
        """
        Keep one delta that is no end.
        """
        take = _TAKERS.get(type(delta))
        if take is None:
            raise TypeError(f"a model yielded {delta!r}, which is no Delta")
        take(self, delta)

    def end(self, ended: base.Ended) -> None:
        """
        The answer has ended: announce its calls, or end the turn.
        """
        session, transcript = self._session, self._session.transcript
        self.clock.ended(ended)
        session.add_usage(ended.usage)
        if ended.reason != "completed":
            session.end_turn(transcript.cut_answer(), "incomplete", reason=ended.reason)
            return
        for index in [index for index, draft in transcript.drafts.items() if not draft.done]:
            self._finish(base.ItemDone(index))
        calls = [draft for draft in transcript.drafts.values() if draft.type == "function_call"]
        at_bound = transcript.running.model_calls >= self._agent.max_model_calls
        if at_bound and (calls or transcript.steered()):
            session.end_turn(transcript.end_answer({}, {}), "incomplete", reason="max_model_calls")
        elif calls:
            self._announce(calls)
        elif transcript.steered():
            session.keep([*transcript.end_answer({}, {}), *transcript.enter_steered()])
        else:
            session.end_turn(transcript.end_answer({}, {}), "completed")

    def _announce(self, calls: Sequence[Draft]) -> None:
        now = time.time()
        offered = {tool.name: tool for tool in self.request.tools}
        expires: dict[str, float | None] = {}
        refused: dict[str, FunctionCallOutput] = {}
        for draft in calls:
            text = refusal_text(draft, offered, len(expires) < self._session.host.limits.open_calls)
            if text is not None:
                refused[draft.call_id] = harness_output(draft.call_id, text, self._turn_id, int(now))
                continue
            timeout = offered[draft.name].timeout_s or self._agent.tool_timeout_s
            expires[draft.call_id] = None if timeout is None else round(now + timeout, 3)
        self._session.keep(self._session.transcript.end_answer(expires, refused))

    def _begin(self, added: base.ItemAdded) -> None:
        self.clock.heard()
        self._session.keep(self._session.transcript.begin_item(added.index, self._make_draft(added)))

    def _take_text(self, delta: base.TextDelta) -> None:
        self._grow(delta.index, "text", delta.content_index, delta.delta)

    def _take_refusal(self, delta: base.RefusalDelta) -> None:
        self._grow(delta.index, "refusal", delta.content_index, delta.delta)

    def _take_arguments(self, delta: base.ArgumentsDelta) -> None:
        self._grow(delta.index, "arguments", 0, delta.delta)

    def _take_summary(self, delta: base.SummaryDelta) -> None:
        self._grow(delta.index, "summary", delta.summary_index, delta.delta)

    def _grow(self, index: int, kind: str, number: int, piece: str) -> None:
        session, piece = self._session, clean_text(piece)
        transcript = session.transcript
        grown = grow_draft(transcript.drafts[index], kind, number, piece)
        if grown is not None:
            transcript.size += len(piece)
            session.keep_piece(grown)

    def _finish(self, done: base.ItemDone) -> None:
        session = self._session
        model = session.transcript.running.model or ""
        provenance = Provenance(self._provider, model, done.hidden) if done.hidden else None
        draft = session.transcript.drafts[done.index]
        session.keep(finish_draft(draft, arguments=done.arguments, annotations=done.annotations, provenance=provenance))

    def _retry(self, retrying: base.Retrying) -> None:
        self.clock.retried(retrying)
        reason = clean_text(retrying.reason)
        self._session.keep([said.ResponseRetrying(self._turn_id, retrying.attempt, retrying.delay_s, reason)])

    def _make_draft(self, added: base.ItemAdded) -> Draft:
        draft = Draft(
            id=make_id(_PREFIXES[added.type]),
            type=added.type,
            response_id=self._turn_id,
            output_index=0,
            created_at=int(time.time()),
        )
        if added.type == "function_call":
            draft.call_id = clean_call_id(added.call_id, self._session.transcript.calls, draft.id)
            draft.raw_name, draft.name = added.name, clean_name(added.name)
        return draft


_TAKERS: dict[type, Callable[[Answer, Any], None]] = {
    base.ItemAdded: Answer._begin,
    base.TextDelta: Answer._take_text,
    base.RefusalDelta: Answer._take_refusal,
    base.ArgumentsDelta: Answer._take_arguments,
    base.SummaryDelta: Answer._take_summary,
    base.ItemDone: Answer._finish,
    base.Retrying: Answer._retry,
}
"""What is done with each delta that is no end."""


def preview_body(session: "SessionTurns") -> bytes:
    """
    The body that the next model call of *session* would have: steered messages are in it, open calls have no output
    yet.

    Raises:
        InvalidRequest: no request can be made of the agent's provider or model.
    """
    transcript = session.transcript
    tools, choice = transcript.tools, transcript.tool_choice
    for waiting in transcript.steered():
        tools = tools if waiting.tools is None else waiting.tools
        choice = waiting.tool_choice or choice
    first = transcript.current is None or transcript.running.model_calls == 0
    request = _build_request(session, tools, choice, first=first)
    steered = [Block((waiting.message,)) for waiting in transcript.steered()]
    try:
        model = session.host.find_model(session.provider)
        return model.body(attrs.evolve(request, blocks=[*request.blocks, *steered], cache=base.RequestCache()))
    except ModelError as error:
        param = "agent.provider" if error.code == "provider_not_found" else "agent.model"
        raise InvalidRequest(error.message, param=param) from None


def _build_request(
    session: "SessionTurns", brought: tuple[Tool, ...], choice: ToolChoice | None, *, first: bool
) -> base.Request:
    """
    The request of a model call made now, the *first* of its turn or not; *brought* and *choice* are the turn's own.
    """
    agent = session.agent
    blocks, closed = session.transcript.blocks()
    tools = merge_tools(agent.tools, brought)
    return base.Request(
        session_id=session.id,
        provider=session.provider,
        model=agent.model,
        blocks=blocks,
        closed=closed,
        instructions=agent.instructions,
        tools=tools,
        tool_choice=_choose(choice or agent.tool_choice, tools, first),
        parallel_tool_calls=agent.parallel_tool_calls,
        temperature=agent.temperature,
        top_p=agent.top_p,
        max_output_tokens=agent.max_output_tokens,
        reasoning=agent.reasoning,
        text=agent.text,
        cache=session.request_cache(),
    )


def _choose(choice: ToolChoice | None, tools: tuple[Tool, ...], first: bool) -> ToolChoice | None:
    """
    The choice for a model call: one that forces a call holds for the *first* of the turn only.
    """
    if choice is None or not tools:
        return None
    if choice in ("auto", "none"):
        return choice
    missing = isinstance(choice, NamedChoice) and all(tool.name != choice.name for tool in tools)
    # What providers do without a choice is "auto"; some of their imitators only know to do it unasked.
    return choice if first and not missing else None
