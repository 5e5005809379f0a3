"""
The tolerant reader: what the server writes comes back as the same values, and what is new breaks nothing.
"""

from typing import Any, get_args

import attrs
import orjson
import pytest

from agent_harness.protocol import events as said
from agent_harness.protocol.agents import Agent
from agent_harness.protocol.encode import encode_event, to_wire
from agent_harness.protocol.items import (
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Message,
    OutputText,
    Reasoning,
    Refusal,
    SummaryText,
    Usage,
)
from agent_harness.protocol.pages import Snapshot
from agent_harness.protocol.sse import FrameReader
from agent_harness.protocol.tolerant import (
    UnknownEvent,
    UnknownItem,
    UnknownPart,
    read_agent,
    read_event,
    read_item,
    read_snapshot,
    read_turn,
    response_id_of,
)
from agent_harness.protocol.tools import NamedChoice, Tool
from agent_harness.protocol.turns import LastError, RequiredAction, Turn

GIVEN: dict[str, Any] = {"response_id": "resp_1", "created_at": 5}
PARTS = (InputText("a"), InputImage(image_url="u"), InputFile(file_id="f"), OutputText("b", ({"x": 1},)), Refusal("no"))
ITEMS = [
    Message(id="m", role="user", content=PARTS, origin="client", **GIVEN),
    FunctionCall(id="c", call_id="c1", name="f", arguments="{}", status="action_required", **GIVEN),
    FunctionCallOutput(id="o", call_id="c1", output="text", **GIVEN),
    FunctionCallOutput(id="o", call_id="c1", output=(InputText("x"),), is_error=True, origin="harness", **GIVEN),
    Reasoning(id="r", summary=(SummaryText("s"),), status="completed", **GIVEN),
]
AGENT = Agent(
    name="a",
    tools=(Tool(name="t", parameters={"type": "object"}, strict=True, timeout_s=1.5),),
    tool_choice=NamedChoice("t"),
    temperature=0.5,
    reasoning={"effort": "low"},
    tool_timeout_s=None,
)
TURN = Turn(
    id="resp_1",
    status="incomplete",
    model="m",
    usage=Usage(1, 2, 3, 4, None),
    error=LastError("c", "m"),
    incomplete_reason="max_model_calls",
    created_at=1,
    completed_at=2,
)
ACTION = RequiredAction(response_id="resp_1", call_id="c1", name="f", arguments="{}", expires_at=1.5)

EXAMPLES: dict[str, Any] = {
    "Item": ITEMS[1],
    "Agent": AGENT,
    "Turn": TURN,
    "str": "text",
    "int": 3,
    "float": 1.5,
    "Mapping[str, str]": {"a": "b"},
}


def make_example(cls: Any) -> Any:
    """
    An event with a value for each field that must have one.
    """
    values: dict[str, Any] = {}
    for field in attrs.fields(cls):
        if field.default is attrs.NOTHING:
            shape = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
            hint = str(field.type)
            values[field.name] = next(
                (value for name, value in EXAMPLES.items() if shape == name or name in hint.split(" | ")), None
            )
            if values[field.name] is None:
                values[field.name] = {"status": "waiting", "item": ITEMS[0], "metadata": {"a": "b"}}.get(field.name, 7)
    return cls(**values)


@pytest.mark.parametrize("cls", get_args(said.Event), ids=lambda cls: cls.__name__)
def test_each_event_comes_back_as_it_was(cls: Any) -> None:
    event = make_example(cls)
    [frame] = FrameReader().feed(encode_event(event, 9, 1.5))
    read = read_event(orjson.loads(frame.data))
    assert read == event and type(read) is cls
    assert response_id_of(read) == said.event_response_id(event)


def test_a_status_comes_back_with_all_it_holds() -> None:
    event = said.SessionStatus(
        status="waiting",
        response_id="resp_1",
        required_actions=(ACTION,),
        queued=("m",),
        last_error=LastError("c", "m"),
        item_id="m",
    )
    assert read_event(to_wire(event)) == event


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.type)
def test_each_item_comes_back_as_it_was(item: Any) -> None:
    assert read_item(orjson.loads(orjson.dumps(to_wire(item)))) == item


@pytest.mark.parametrize("agent", [AGENT, Agent(), Agent(tool_choice="required")])
def test_an_agent_comes_back_as_it_was(agent: Agent) -> None:
    assert read_agent(to_wire(agent)) == agent


@pytest.mark.parametrize("turn", [TURN, Turn(id="r", status="queued", created_at=1)])
def test_a_turn_comes_back_as_it_was(turn: Turn) -> None:
    assert read_turn(to_wire(turn)) == turn


@pytest.mark.parametrize("items", [None, tuple(ITEMS)])
def test_a_snapshot_comes_back_as_it_was(items: Any) -> None:
    snapshot = Snapshot(
        id="sess_1",
        status="waiting",
        created_at=1,
        updated_at=2,
        agent=AGENT,
        metadata={"a": "b"},
        response_id="resp_1",
        required_actions=(ACTION,),
        queued=("m",),
        seq=9,
        usage=Usage(1, 2, 3, None, 4),
        last_error=LastError("c", "m"),
        items=items,
    )
    assert read_snapshot(to_wire(snapshot)) == snapshot


def test_unknown_fields_and_values_are_no_trouble() -> None:
    wire = to_wire(ITEMS[1]) | {"status": "thinking_about_it", "novelty": {"a": 1}}
    item = read_item(wire)
    assert isinstance(item, FunctionCall) and item.status == "thinking_about_it"  # type: ignore[comparison-overlap]
    event = read_event({"type": "session.lagged", "seq": 3, "at": 4, "why": "slow"})
    assert event == said.SessionLagged()


def test_an_unknown_event_keeps_all_its_data_and_its_turn() -> None:
    data = {"type": "response.audio.delta", "response_id": "resp_1", "delta": "…"}
    event = read_event(data)
    assert event == UnknownEvent("response.audio.delta", data) and response_id_of(event) == "resp_1"
    assert response_id_of(read_event({"type": "response.paused", "response": {"id": "resp_2"}})) == "resp_2"
    assert response_id_of(read_event({"type": "x", "response": "y"})) is None


@pytest.mark.parametrize(
    "data", [{}, {"type": None}, {"type": "response.created"}, {"type": "session.item", "item": 3}]
)
def test_an_event_that_lacks_something_is_unknown(data: dict[str, Any]) -> None:
    assert isinstance(read_event(data), UnknownEvent)


def test_unknown_items_and_parts_stand_in_their_places() -> None:
    new_item = {"type": "web_search", "id": "ws_1", "status": "done", "response_id": "resp_1", "query": "x"}
    new_part = {"type": "input_video", "url": "v"}
    message = to_wire(ITEMS[0]) | {"content": [new_part, {"type": "input_text", "text": "a"}]}
    event = read_event({"type": "response.output_item.done", "response_id": "r", "output_index": 0, "item": new_item})
    assert isinstance(event, said.OutputItemDone)
    unknown: Any = event.item
    assert unknown == UnknownItem("web_search", new_item)
    assert (unknown.id, unknown.status, unknown.response_id) == ("ws_1", "done", "resp_1")
    read = read_item(message)
    assert isinstance(read, Message) and read.content == (UnknownPart("input_video", new_part), InputText("a"))
