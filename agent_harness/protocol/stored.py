"""
What a session is when it is written down, part by part, and as bytes: everything that is shown, and what is hidden
(provenance, counts of model calls, the queue's tools).

Bytes are JSON in the wire's shapes with the hidden parts beside them, so that a state file can be looked into.
"""

from collections.abc import Mapping
from typing import Any

import attrs
import orjson

from agent_harness.protocol.agents import Agent
from agent_harness.protocol.encode import dump_json, to_wire
from agent_harness.protocol.items import FunctionCall, Item, Message, Provenance, Usage
from agent_harness.protocol.tolerant import read_agent, read_item, read_turn
from agent_harness.protocol.tools import Tool, ToolChoice
from agent_harness.protocol.transcript import ClosedBy, Waiting
from agent_harness.protocol.turns import LastError, Turn

__all__ = [
    "Head", "Offer", "StoredAgent", "StoredItem", "load_agent", "load_head", "load_item", "load_offer", "load_turn",
    "load_waiting", "write_agent", "write_head", "write_item", "write_offer", "write_turn", "write_waiting",
]  # fmt: skip


@attrs.frozen(kw_only=True)
class Head:
    """
    Where a session stands. ``answered`` is how many model calls of the running turn have their answer, ``next_index``
    the turn's next output index.
    """

    current: str | None = None
    next_index: int = 0
    answered: int = 0
    usage: Usage | None = None
    last_error: LastError | None = None
    updated_at: int


@attrs.frozen(kw_only=True)
class Offer:
    """
    What the running turn's message brought.
    """

    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None


@attrs.frozen(kw_only=True)
class StoredAgent:
    """
    What a session was made with, and what was changed of it since.
    """

    agent: Agent
    metadata: Mapping[str, str]
    created_at: int


@attrs.frozen(kw_only=True)
class StoredItem:
    """
    An item with what the transcript knows beside it: its place in its turn (calls, and items in progress), and how a
    call was closed or when it will be.
    """

    item: Item
    output_index: int = 0
    closed_by: ClosedBy | None = None
    expires_at: float | None = None


def write_agent(agent: StoredAgent) -> bytes:
    """
    *agent* as bytes.
    """
    body = {"agent": to_wire(agent.agent), "metadata": dict(agent.metadata), "created_at": agent.created_at}
    return dump_json(body)


def load_agent(body: bytes) -> StoredAgent:
    """
    What `write_agent` wrote.
    """
    data = orjson.loads(body)
    return StoredAgent(agent=read_agent(data["agent"]), metadata=data["metadata"], created_at=data["created_at"])


def write_head(head: Head) -> bytes:
    """
    *head* as bytes.
    """
    return dump_json(attrs.asdict(head))


def load_head(body: bytes) -> Head:
    """
    What `write_head` wrote.
    """
    data = orjson.loads(body)
    usage, error = data.pop("usage"), data.pop("last_error")
    return Head(
        **data,
        usage=None if usage is None else Usage(**usage),
        last_error=None if error is None else LastError(**error),
    )


def write_offer(offer: Offer) -> bytes:
    """
    *offer* as bytes.
    """
    return dump_json(_offer_data(offer.tools, offer.tool_choice))


def load_offer(body: bytes) -> Offer:
    """
    What `write_offer` wrote.
    """
    tools, choice = _read_offer(orjson.loads(body))
    return Offer(tools=tools or (), tool_choice=choice)


def write_item(stored: StoredItem) -> bytes:
    """
    *stored* as bytes, with the item's provenance.
    """
    body: dict[str, Any] = {"item": to_wire(stored.item)}
    provenance = getattr(stored.item, "provenance", None)
    if provenance is not None:
        body["provenance"] = [provenance.provider, provenance.model, provenance.data]
    if isinstance(stored.item, FunctionCall):
        body |= {"closed_by": stored.closed_by, "expires_at": stored.expires_at}
    if stored.output_index:
        body["output_index"] = stored.output_index
    return dump_json(body)


def load_item(body: bytes) -> StoredItem:
    """
    What `write_item` wrote.
    """
    data = orjson.loads(body)
    item = read_item(data.pop("item"))
    provenance = data.pop("provenance", None)
    if provenance is not None:
        item = attrs.evolve(item, provenance=Provenance(*provenance))  # type: ignore[arg-type]
    return StoredItem(item=item, **data)


def write_turn(turn: Turn) -> bytes:
    """
    *turn* as bytes.
    """
    return dump_json({"turn": to_wire(turn), "model_calls": turn.model_calls})


def load_turn(body: bytes) -> Turn:
    """
    What `write_turn` wrote.
    """
    data = orjson.loads(body)
    return attrs.evolve(read_turn(data["turn"]), model_calls=data["model_calls"])


def write_waiting(waiting: Waiting) -> bytes:
    """
    *waiting* as bytes.
    """
    body = {"message": to_wire(waiting.message), "steer": waiting.steer}
    return dump_json(body | _offer_data(waiting.tools, waiting.tool_choice))


def load_waiting(body: bytes) -> Waiting:
    """
    What `write_waiting` wrote.
    """
    data = orjson.loads(body)
    message = read_item(data["message"])
    assert isinstance(message, Message)
    return Waiting(message, data["steer"], *_read_offer(data))


def _offer_data(tools: tuple[Tool, ...] | None, choice: ToolChoice | None) -> dict[str, Any]:
    return {
        "tools": None if tools is None else [to_wire(tool) for tool in tools],
        "tool_choice": None if choice is None else to_wire(choice),
    }


def _read_offer(data: Mapping[str, Any]) -> tuple[tuple[Tool, ...] | None, ToolChoice | None]:
    # An agent has both, and a reader.
    agent = read_agent({"tools": data["tools"] or [], "tool_choice": data["tool_choice"]})
    return None if data["tools"] is None else agent.tools, agent.tool_choice
