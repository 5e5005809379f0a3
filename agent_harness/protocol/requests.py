"""
Request bodies and query parameters to commands. A body that is not right in every part is refused whole.
"""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from agent_harness.errors import InvalidRequest
from agent_harness.protocol.agents import Agent
from agent_harness.protocol.changed import changed
from agent_harness.protocol.commands import (
    Command,
    CreateSession,
    ForkSession,
    Interrupt,
    SendMessage,
    SubmitOutput,
    UpdateSession,
)
from agent_harness.protocol.decode import read
from agent_harness.protocol.outputs import check_output
from agent_harness.protocol.past import read_past

__all__ = [
    "BATCH_MAX",
    "CreateBody",
    "Page",
    "read_agent",
    "read_create",
    "read_events",
    "read_fork",
    "read_page",
    "read_update",
]

BATCH_MAX = 64
"""Most results in one batch."""

_COMMANDS: dict[str, type[Command]] = {
    "message": SendMessage,
    "function_call_output": SubmitOutput,
    "interrupt": Interrupt,
}


@attrs.frozen(kw_only=True)
class CreateBody:
    """
    The body of ``POST /v1/sessions``; everything may be left out.
    """

    agent: Agent | None = None
    agent_id: str | None = None
    metadata: Mapping[str, str | None] | None = None
    items: Any = None


@attrs.frozen
class Page:
    """
    Which part of a list is asked for; ``after`` is the id of the element before it.
    """

    limit: int = 20
    after: str | None = None
    descending: bool = False


def read_agent(value: Any, path: str = "agent") -> Agent:
    """
    An agent as clients and settings files write it.

    Raises:
        InvalidRequest: with the first bad path, below *path*.
    """
    return _check_agent(read(value, Agent, path), path)


def read_create(body: Any, now: int) -> CreateSession:
    """
    The body of ``POST /v1/sessions``. *now* (Unix seconds) dates its items.

    Raises:
        InvalidRequest: with the first bad path.
    """
    shape = read(body, CreateBody)
    if shape.agent is not None and shape.agent_id is not None:
        raise InvalidRequest("Give agent or agent_id, not both.", param="agent_id")
    return CreateSession(
        agent=_check_agent(shape.agent or Agent()),
        agent_id=shape.agent_id,
        metadata={key: text for key, text in (shape.metadata or {}).items() if text is not None},
        items=() if shape.items is None else read_past(shape.items, now),
    )


def read_update(body: Any) -> UpdateSession:
    """
    The body of ``PATCH /v1/sessions/{id}``. A field of the agent that is null gets its default back; a metadata key
    that is null is taken away.

    Raises:
        InvalidRequest: with the first bad path.
    """
    shape = read(body, UpdateSession)
    agent = _check_agent(read(dict(shape.agent), Agent, "agent"))
    return UpdateSession(agent={name: getattr(agent, name) for name in shape.agent}, metadata=shape.metadata)


def read_fork(body: Any) -> ForkSession:
    """
    The body of ``POST /v1/sessions/{id}/fork``.

    Raises:
        InvalidRequest: with the first bad path.
    """
    return read(body, ForkSession)


def read_events(body: Any) -> Command | list[SubmitOutput]:
    """
    The body of ``POST /v1/sessions/{id}/events``: one command, or a batch of results.

    Raises:
        InvalidRequest: with the first bad path.
        RequestTooLarge: an output is over its limit.
    """
    if not isinstance(body, dict):
        raise InvalidRequest("The body must be an object.")
    if "events" not in body:
        return _read_command(body, "")
    extra = sorted(set(body) - {"events"})
    if extra:
        raise InvalidRequest(f"{extra[0]!r} cannot stand beside events.", code="unknown_field", param=extra[0])
    events = body["events"]
    if not isinstance(events, list) or not 1 <= len(events) <= BATCH_MAX:
        raise InvalidRequest(f"events is an array of 1 to {BATCH_MAX} results.", param="events")
    batch = [_read_result(event, f"events[{index}]") for index, event in enumerate(events)]
    seen: set[str] = set()
    for index, result in enumerate(batch):
        if result.data.call_id in seen:
            raise InvalidRequest("A batch answers each call once.", param=f"events[{index}].data.call_id")
        seen.add(result.data.call_id)
    return batch


def _read_result(event: Any, path: str) -> SubmitOutput:
    command = _read_command(event, path)
    if not isinstance(command, SubmitOutput):
        raise InvalidRequest("A batch holds function_call_output events only.", param=f"{path}.type")
    return command


def _read_command(event: Any, path: str) -> Command:
    param = f"{path}.type" if path else "type"
    if not isinstance(event, dict):
        raise InvalidRequest("An event must be an object.", param=path or None)
    if "type" not in event:
        raise InvalidRequest(f"{param} is missing.", code="missing_field", param=param)
    kind = event["type"]
    if not isinstance(kind, str):
        raise InvalidRequest("An event's type is a string.", param=param)
    if kind not in _COMMANDS:
        known = ", ".join(_COMMANDS)
        raise InvalidRequest(f"An event has one of the types {known}.", code="unknown_event_type", param=param)
    command = read(event, _COMMANDS[kind], path)
    if not isinstance(command, SubmitOutput):
        return command
    check_output(command.data.output, f"{path}.data.output" if path else "data.output")
    return command if command.data.output is not None else changed(command, data=changed(command.data, output=""))


def _check_agent(agent: Agent, path: str = "agent") -> Agent:
    bounds = (
        ("max_model_calls", agent.max_model_calls, 1),
        ("max_output_tokens", agent.max_output_tokens, 1),
    )
    for name, value, least in bounds:
        if value is not None and value < least:
            raise InvalidRequest(f"{name} is at least {least}.", param=f"{path}.{name}")
    if agent.tool_timeout_s is not None and agent.tool_timeout_s <= 0:
        raise InvalidRequest("tool_timeout_s is more than 0 seconds, or null for none.", param=f"{path}.tool_timeout_s")
    return agent


def read_page(query: Mapping[str, str], *, default_order: Literal["asc", "desc"]) -> Page:
    """
    The query parameters ``limit`` (1 to 100, 20 if absent), ``after`` and ``order``.

    Raises:
        InvalidRequest: one of them is no such value.
    """
    limit, order = query.get("limit", "20"), query.get("order", default_order)
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 3 and 1 <= int(limit) <= 100):
        raise InvalidRequest("limit is a number from 1 to 100.", param="limit")
    if order not in ("asc", "desc"):
        raise InvalidRequest("order is asc or desc.", param="order")
    return Page(int(limit), query.get("after"), order == "desc")
