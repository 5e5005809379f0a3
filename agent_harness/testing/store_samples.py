"""
Values that the contracts of stores are checked with: every kind of part, with what is hidden in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agent_harness.protocol.agents import Agent
from agent_harness.protocol.items import (
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Message,
    OutputText,
    Provenance,
    Reasoning,
    Refusal,
    SummaryText,
    Usage,
)
from agent_harness.protocol.stored import Head, Offer, StoredAgent, StoredItem
from agent_harness.protocol.tools import NamedChoice, Tool
from agent_harness.protocol.transcript import Waiting
from agent_harness.protocol.turns import LastError, Turn
from agent_harness.store.base import Change, PutAgent, PutAnswer, PutHead

__all__ = ["AGENT", "HEAD", "ITEMS", "OFFER", "TURNS", "WAITING", "Unreadable", "answer", "session"]

TEXT = "caf\u00e9 \u2028 \U0001f600 \" \\ ' \n\t\x7f"
TOOL = Tool(name="look", description=TEXT, parameters={"type": "object", "x": [1, 2.5, None]}, strict=True, timeout_s=2)
BARE = Tool(name="bare")
HIDDEN = Provenance("openai", "gpt", {"id": "rs_1", "encrypted_content": TEXT, "n": [None, True, 1]})


class Unreadable(Mapping[str, str]):
    """
    Metadata that cannot be read: a store that writes what it is given fails in the middle of a list.
    """

    def __getitem__(self, key: str) -> str:
        raise ValueError("this metadata cannot be read")

    def __iter__(self) -> Iterator[str]:
        raise ValueError("this metadata cannot be read")

    def __len__(self) -> int:
        return 1


AGENT = StoredAgent(
    agent=Agent(
        name=TEXT,
        tools=(TOOL, BARE),
        tool_choice=NamedChoice("look"),
        temperature=0.5,
        reasoning={"effort": "low"},
        text={},
        max_model_calls=7,
        tool_timeout_s=None,
    ),
    metadata={"key": TEXT, "empty": ""},
    created_at=1_700_000_000,
)
HEAD = Head(
    current="resp_1",
    next_index=4,
    answered=2,
    usage=Usage(1, 2, 3, None, 0),
    last_error=LastError("internal_error", TEXT),
    updated_at=1_700_000_001,
)
OFFER = Offer(tools=(BARE, TOOL), tool_choice="required")
ITEMS = [
    StoredItem(
        item=Message(
            id="msg_1",
            role="user",
            content=(InputText(TEXT), InputImage(image_url="data:,x", detail="low"), InputFile(file_id="f")),
            origin="client",
            response_id="resp_1",
            created_at=1,
        )
    ),
    StoredItem(
        item=Reasoning(
            id="rs_1", summary=(SummaryText(TEXT),), status="completed", response_id="resp_1", created_at=1,
            provenance=HIDDEN,
        )
    ),
    StoredItem(
        item=Message(
            id="msg_2",
            role="assistant",
            content=(OutputText(TEXT, ({"type": "url_citation", "at": [1]},)), Refusal("")),
            origin="model",
            status="incomplete",
            created_at=2,
            provenance=HIDDEN,
        )
    ),
    StoredItem(
        item=FunctionCall(
            id="fc_1", call_id="call_1", name="look", arguments='{"a":  1}', status="action_required",
            response_id="resp_1", created_at=3, provenance=HIDDEN,
        ),
        output_index=2,
        expires_at=1_700_000_002.125,
    ),
    StoredItem(
        item=FunctionCall(
            id="fc_2", call_id="call_2", name="bare", arguments="{}", status="failed", created_at=3
        ),
        output_index=3,
        closed_by="client",
    ),
    StoredItem(item=FunctionCallOutput(id="fco_2", call_id="call_2", output="", is_error=True, created_at=4)),
    StoredItem(
        item=FunctionCallOutput(
            id="fco_3", call_id="call_3", output=(InputText(TEXT),), origin="harness", response_id="resp_1",
            created_at=4,
        )
    ),
    StoredItem(item=Reasoning(id="rs_2", status="in_progress", response_id="resp_1", created_at=5), output_index=9),
]  # fmt: skip
TURNS = [
    Turn(id="resp_1", status="in_progress", model="m", model_calls=3, usage=Usage(1), created_at=1),
    Turn(
        id="resp_0", status="failed", error=LastError("upstream_idle", TEXT), created_at=1, completed_at=2,
        model_calls=1,
    ),
    Turn(id="resp_2", status="incomplete", incomplete_reason="max_model_calls", created_at=1, completed_at=3),
]  # fmt: skip


def _waiting(number: int, steer: bool, tools: tuple[Tool, ...] | None, choice: object) -> Waiting:
    message = Message(
        id=f"msg_w{number}",
        role="user",
        content=(InputText(TEXT),),
        origin="client",
        status="queued",
        response_id="resp_2",
        created_at=9,
    )
    return Waiting(message, steer, tools, choice)  # type: ignore[arg-type]


WAITING = [
    _waiting(3, True, None, None),
    _waiting(1, False, (), "none"),
    _waiting(2, False, (TOOL,), NamedChoice("look")),
]


def session(session_id: str) -> list[Change]:
    """
    A session begins.
    """
    return [PutAgent(session_id, AGENT), PutHead(session_id, HEAD)]


def answer(session_id: str, key: str) -> PutAnswer:
    """
    An answer to a request with an idempotency key.
    """
    return PutAnswer(
        session_id=session_id,
        name=("", "POST", f"/v1/sessions?x={TEXT}", key),
        digest=b"\x00\xff",
        at=1_700_000_000.5,
        status=202,
        body=TEXT.encode(),
        sent={"queued": False, "seq": 4} if key == "k2" else None,
    )
