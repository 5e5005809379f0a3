"""
Request bodies and query parameters to commands: taken whole, or refused with the first bad path.
"""

from __future__ import annotations

from typing import Any

import pytest

from agent_harness.errors import InvalidRequest, RequestTooLarge
from agent_harness.protocol.agents import Agent
from agent_harness.protocol.commands import (
    OUTPUT_MAX,
    CreateSession,
    ForkSession,
    InputPart,
    Interrupt,
    InterruptData,
    MessageData,
    OutputData,
    SendMessage,
    SubmitOutput,
    UpdateSession,
)
from agent_harness.protocol.items import InputImage, InputText
from agent_harness.protocol.requests import BATCH_MAX, Page, read_create, read_events, read_fork, read_page, read_update
from agent_harness.protocol.tools import NamedChoice, Tool

NOW = 1_700_000_000
TOOL = {"type": "function", "name": "f"}


def message(content: Any = "hi", **more: Any) -> dict[str, Any]:
    return {"type": "message", "data": {"role": "user", "content": content}, **more}


def result(call_id: Any = "c1", output: Any = "42", **more: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "data": {"call_id": call_id, "output": output, **more}}


def refuse(read: Any, *arguments: Any) -> tuple[str, str | None]:
    with pytest.raises(InvalidRequest) as caught:
        read(*arguments)
    assert caught.value.status == 400
    assert caught.value.message
    return caught.value.code, caught.value.param


def read_message(body: Any) -> SendMessage:
    command = read_events(body)
    assert isinstance(command, SendMessage)
    return command


def read_output(body: Any) -> str | tuple[InputPart, ...] | None:
    command = read_events(body)
    assert isinstance(command, SubmitOutput)
    return command.data.output


# POST /v1/sessions


def test_empty_body_makes_a_session_with_the_defaults() -> None:
    assert read_create({}, NOW) == CreateSession(agent=Agent(), metadata={}, items=())
    assert read_create(dict.fromkeys(("agent", "agent_id", "metadata", "items")), NOW) == CreateSession()


def test_agent_metadata_and_items_are_read() -> None:
    agent = {
        "name": "a",
        "model": "m",
        "instructions": "be\0",
        "tools": [TOOL],
        "tool_choice": "auto",
        "temperature": 1,
    }
    more = {"max_output_tokens": 1, "max_model_calls": 1, "tool_timeout_s": 0.5, "reasoning": {"effort": "low"}}
    body = {
        "agent": agent | more,
        "metadata": {"k": "v"},
        "items": [{"type": "message", "role": "user", "content": "q"}],
    }

    command = read_create(body, NOW)

    assert command.agent == Agent(
        name="a",
        model="m",
        instructions="be\ufffd",
        tools=(Tool(name="f"),),
        tool_choice="auto",
        temperature=1,
        max_output_tokens=1,
        max_model_calls=1,
        tool_timeout_s=0.5,
        reasoning={"effort": "low"},
    )
    assert command.metadata == {"k": "v"}
    assert [item.created_at for item in command.items] == [NOW]


def test_metadata_is_taken_up_to_its_bounds() -> None:
    metadata = {"k" * 62 + f"{number:02}": "v" * 512 for number in range(16)}

    assert read_create({"metadata": metadata}, NOW).metadata == metadata
    assert read_create({"metadata": {"a": "", "": "b"}}, NOW).metadata == {"a": "", "": "b"}


def test_metadata_that_is_null_is_absent() -> None:
    assert read_create({"metadata": {"a": None, "b": "c"}}, NOW).metadata == {"b": "c"}


@pytest.mark.parametrize(
    "body, code, param",
    [
        ([], "invalid_value", None),
        ("{}", "invalid_value", None),
        ({"agents": {}}, "unknown_field", "agents"),
        ({"agent": []}, "invalid_value", "agent"),
        ({"agent": {"base_url": "http://x"}}, "unknown_field", "agent.base_url"),
        ({"agent": {"model": 1}}, "invalid_value", "agent.model"),
        ({"agent": {"temperature": "1"}}, "invalid_value", "agent.temperature"),
        ({"agent": {"parallel_tool_calls": 1}}, "invalid_value", "agent.parallel_tool_calls"),
        ({"agent": {"max_model_calls": 0}}, "invalid_value", "agent.max_model_calls"),
        ({"agent": {"max_model_calls": 1.0}}, "invalid_value", "agent.max_model_calls"),
        ({"agent": {"max_model_calls": True}}, "invalid_value", "agent.max_model_calls"),
        ({"agent": {"max_output_tokens": 0}}, "invalid_value", "agent.max_output_tokens"),
        ({"agent": {"tool_timeout_s": 0}}, "invalid_value", "agent.tool_timeout_s"),
        ({"agent": {"tool_timeout_s": -1.5}}, "invalid_value", "agent.tool_timeout_s"),
        ({"agent": {"reasoning": "low"}}, "invalid_value", "agent.reasoning"),
        ({"agent": {"tools": [{"type": "function"}]}}, "invalid_tool", "agent.tools[0].name"),
        ({"agent": {"tools": [TOOL, TOOL]}}, "invalid_tool", "agent.tools[1].name"),
        ({"agent": {"tool_choice": "f"}}, "invalid_value", "agent.tool_choice"),
        ({"agent_id": 1}, "invalid_value", "agent_id"),
        ({"agent": {}, "agent_id": "a"}, "invalid_value", "agent_id"),
        ({"metadata": []}, "invalid_value", "metadata"),
        ({"metadata": {"a": 1}}, "invalid_value", "metadata.a"),
        ({"metadata": {"a": {}}}, "invalid_value", "metadata.a"),
        ({"metadata": {"a": "v" * 513}}, "invalid_value", "metadata.a"),
        ({"metadata": {"k" * 65: ""}}, "invalid_value", "metadata." + "k" * 64),
        ({"metadata": {f"{number}": "" for number in range(17)}}, "invalid_value", "metadata"),
        ({"items": {}}, "invalid_value", "items"),
        ({"items": [{"type": "message"}]}, "missing_field", "items[0].role"),
    ],
)
def test_bad_session_is_refused_with_its_place(body: Any, code: str, param: str | None) -> None:
    assert refuse(read_create, body, NOW) == (code, param)


# PATCH and fork


def test_patch_names_only_what_it_changes() -> None:
    assert read_update({}) == UpdateSession()
    assert read_update({"agent": {"model": "m"}, "metadata": {"a": None, "b": "c"}}) == UpdateSession(
        agent={"model": "m"}, metadata={"a": None, "b": "c"}
    )


def test_null_in_patch_gives_a_field_its_default_back() -> None:
    agent = {"model": None, "tools": None, "max_model_calls": None, "temperature": None, "instructions": None}

    assert read_update({"agent": agent}).agent == {
        "model": None,
        "tools": (),
        "max_model_calls": 50,
        "temperature": None,
        "instructions": None,
    }


def test_null_in_patch_means_no_deadline_for_the_tool_timeout() -> None:
    assert read_update({"agent": {"tool_timeout_s": None}}).agent == {"tool_timeout_s": None}


def test_patch_may_change_every_metadata_key_at_once() -> None:
    metadata = {f"old{number}": None for number in range(16)} | {f"new{number}": "" for number in range(16)}

    assert read_update({"metadata": metadata}).metadata == metadata


@pytest.mark.parametrize(
    "body, code, param",
    [
        ([], "invalid_value", None),
        ({"model": "m"}, "unknown_field", "model"),
        ({"agent": "m"}, "invalid_value", "agent"),
        ({"agent": {"url": "m"}}, "unknown_field", "agent.url"),
        ({"agent": {"model": 1}}, "invalid_value", "agent.model"),
        ({"agent": {"max_model_calls": 0}}, "invalid_value", "agent.max_model_calls"),
        ({"agent": {"tools": [{"type": "function", "name": "a b"}]}}, "invalid_tool", "agent.tools[0].name"),
        ({"metadata": {"a": 1}}, "invalid_value", "metadata.a"),
        ({"metadata": {f"{number}": "" for number in range(17)}}, "invalid_value", "metadata"),
    ],
)
def test_bad_patch_is_refused_with_its_place(body: Any, code: str, param: str | None) -> None:
    assert refuse(read_update, body) == (code, param)


def test_fork_takes_an_item_or_nothing() -> None:
    assert read_fork({}) == read_fork({"up_to_item_id": None}) == ForkSession()
    assert read_fork({"up_to_item_id": "msg_1"}) == ForkSession(up_to_item_id="msg_1")
    assert refuse(read_fork, {"up_to_item_id": 1}) == ("invalid_value", "up_to_item_id")
    assert refuse(read_fork, {"item": "msg_1"}) == ("unknown_field", "item")


# POST …/events


def test_message_is_read_with_all_its_fields() -> None:
    assert read_events(message()) == SendMessage(data=MessageData(content="hi"))
    assert read_events(message(tools=None, tool_choice=None, delivery=None)) == SendMessage(
        data=MessageData(content="hi")
    )

    choice = {"type": "function", "function": {"name": "f"}}
    assert read_events(message("é", tools=[TOOL], tool_choice=choice, delivery="steer")) == SendMessage(
        data=MessageData(content="é"), tools=(Tool(name="f"),), tool_choice=NamedChoice("f"), delivery="steer"
    )


def test_empty_list_of_tools_is_another_thing_than_none() -> None:
    assert read_message(message(tools=[])).tools == ()
    assert read_message(message()).tools is None


def test_nul_in_a_message_becomes_the_replacement_character() -> None:
    """B068."""
    parts = [{"type": "input_text", "text": "a\0"}, {"type": "input_image", "file_id": "f"}]

    assert read_message(message("a\0b")).data.content == "a\ufffdb"
    assert read_message(message(parts)).data.content == (InputText("a\ufffd"), InputImage(file_id="f"))


def test_output_is_text_parts_or_null() -> None:
    """B061, B072: null is the empty text."""
    assert read_events(result()) == SubmitOutput(data=OutputData(call_id="c1", output="42"))
    assert read_events(result(is_error=True)) == SubmitOutput(data=OutputData(call_id="c1", output="42", is_error=True))
    assert read_output(result(output=None)) == ""
    assert read_output(result(output=[{"type": "input_text", "text": "a\0"}])) == (InputText("a\ufffd"),)


@pytest.mark.parametrize("output", ["", " \n\t", "é\u2028😀", '{"a": 1}', "\x01\x1b[0m\r\n"])
def test_output_that_is_text_is_kept_to_the_letter(output: str) -> None:
    assert read_output(result(output=output)) == output


def test_output_of_ten_million_characters_is_the_longest_that_is_taken() -> None:
    assert read_output(result(output="é" * OUTPUT_MAX)) == "é" * OUTPUT_MAX

    for body, param in (
        (result(output="x" * (OUTPUT_MAX + 1)), "data.output"),
        ({"events": [result(), result("c2", "x" * (OUTPUT_MAX + 1))]}, "events[1].data.output"),
        (result(output=[{"type": "input_text", "text": "x" * (OUTPUT_MAX + 1)}]), "data.output"),
    ):
        with pytest.raises(RequestTooLarge) as caught:
            read_events(body)
        assert (caught.value.status, caught.value.code, caught.value.param) == (413, "request_too_large", param)


def test_interrupt_needs_no_data() -> None:
    assert read_events({"type": "interrupt"}) == read_events({"type": "interrupt", "data": None}) == Interrupt()
    assert read_events({"type": "interrupt", "data": {}}) == Interrupt()
    assert read_events({"type": "interrupt", "data": {"response_id": "resp_1", "clear_queue": True}}) == Interrupt(
        data=InterruptData(response_id="resp_1", clear_queue=True)
    )


BAD_EVENTS: list[tuple[Any, str, str | None]] = [
    ([], "invalid_value", None),
    ("message", "invalid_value", None),
    (None, "invalid_value", None),
    ({}, "missing_field", "type"),
    ({"type": None}, "invalid_value", "type"),
    ({"type": ["message"]}, "invalid_value", "type"),
    ({"type": "messages"}, "unknown_event_type", "type"),
    ({"type": "message"}, "missing_field", "data"),
    ({"type": "message", "data": None}, "invalid_value", "data"),
    ({"type": "message", "data": {}}, "missing_field", "data.content"),
    ({"type": "message", "data": {"content": "t", "role": "system"}}, "invalid_value", "data.role"),
    ({"type": "message", "data": {"content": "t", "id": "x"}}, "unknown_field", "data.id"),
    (message(1), "invalid_value", "data.content"),
    (message([{"type": "output_text", "text": "t"}]), "invalid_value", "data.content[0].type"),
    (message(stream=True), "unknown_field", "stream"),
    (message(delivery="now"), "invalid_value", "delivery"),
    (message(tools=[{"type": "function"}]), "invalid_tool", "tools[0].name"),
    (message(tools=[TOOL, TOOL]), "invalid_tool", "tools[1].name"),
    (message(tool_choice={"name": "f"}), "invalid_value", "tool_choice"),
    ({"type": "function_call_output"}, "missing_field", "data"),
    ({"type": "function_call_output", "data": {"output": ""}}, "missing_field", "data.call_id"),
    ({"type": "function_call_output", "data": {"call_id": "c1"}}, "missing_field", "data.output"),
    (result(1), "invalid_value", "data.call_id"),
    (result(output=42), "invalid_value", "data.output"),
    (result(output={"a": 1}), "invalid_value", "data.output"),
    (result(output=[]), "invalid_value", "data.output"),
    (result(output=[{"type": "output_text", "text": "t"}]), "invalid_value", "data.output[0].type"),
    (result(is_error="no"), "invalid_value", "data.is_error"),
    (result(is_error=0), "invalid_value", "data.is_error"),
    (result(name="f"), "unknown_field", "data.name"),
    ({"type": "interrupt", "data": {"response_id": 1}}, "invalid_value", "data.response_id"),
    ({"type": "interrupt", "data": {"clear_queue": "yes"}}, "invalid_value", "data.clear_queue"),
    ({"type": "interrupt", "data": {"x": 1}}, "unknown_field", "data.x"),
]


@pytest.mark.parametrize("body, code, param", BAD_EVENTS)
def test_bad_event_is_refused_with_its_place(body: Any, code: str, param: str | None) -> None:
    assert refuse(read_events, body) == (code, param)


def test_batch_is_its_results_in_order() -> None:
    batch = read_events({"events": [result("c2", None), result("c1", "a\0", is_error=True)]})

    assert batch == [
        SubmitOutput(data=OutputData(call_id="c2", output="")),
        SubmitOutput(data=OutputData(call_id="c1", output="a\ufffd", is_error=True)),
    ]
    full = read_events({"events": [result(f"c{number}") for number in range(BATCH_MAX)]})
    assert isinstance(full, list)
    assert len(full) == 64


@pytest.mark.parametrize(
    "body, code, param",
    [
        ({"events": None}, "invalid_value", "events"),
        ({"events": {}}, "invalid_value", "events"),
        ({"events": []}, "invalid_value", "events"),
        ({"events": [result(f"c{number}") for number in range(65)]}, "invalid_value", "events"),
        ({"events": [result()], "type": "message"}, "unknown_field", "type"),
        ({"events": [result(), 1]}, "invalid_value", "events[1]"),
        ({"events": [result(), {}]}, "missing_field", "events[1].type"),
        ({"events": [result(), message()]}, "invalid_value", "events[1].type"),
        ({"events": [{"type": "interrupt"}]}, "invalid_value", "events[0].type"),
        ({"events": [{"type": "x"}]}, "unknown_event_type", "events[0].type"),
        ({"events": [result(), result("c2", 1)]}, "invalid_value", "events[1].data.output"),
        ({"events": [result(), result(1)]}, "invalid_value", "events[1].data.call_id"),
        ({"events": [result(), result("c2"), result()]}, "invalid_value", "events[2].data.call_id"),
    ],
)
def test_bad_batch_is_refused_with_its_place(body: Any, code: str, param: str) -> None:
    assert refuse(read_events, body) == (code, param)


# Query parameters


def test_page_has_defaults() -> None:
    assert read_page({}, default_order="asc") == Page(20, None, False)
    assert read_page({"x": "1"}, default_order="desc") == Page(20, None, True)


def test_page_is_read() -> None:
    assert read_page({"limit": "1", "after": "a", "order": "desc"}, default_order="asc") == Page(1, "a", True)
    assert read_page({"limit": "100", "order": "asc"}, default_order="desc") == Page(100, None, False)


@pytest.mark.parametrize("limit", ["", "0", "101", "1000", "-1", "+5", "1.0", "ten", " 5", "٣", "²", "9" * 5000])
def test_other_limit_is_refused(limit: str) -> None:
    assert refuse(lambda: read_page({"limit": limit}, default_order="asc")) == ("invalid_value", "limit")


@pytest.mark.parametrize("order", ["", "ASC", "up"])
def test_other_order_is_refused(order: str) -> None:
    assert refuse(lambda: read_page({"order": order}, default_order="asc")) == ("invalid_value", "order")
