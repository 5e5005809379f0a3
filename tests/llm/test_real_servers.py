"""
What real servers sent when they were tried (``scripts/test-real``), shortened: what is made of it.
"""

from typing import Any

import orjson

from agent_harness.config import ProviderSettings
from agent_harness.llm.base import ArgumentsDelta, Delta, Ended, ItemAdded, ItemDone, Request
from agent_harness.llm.chat_reader import AnswerReader
from agent_harness.llm.chat_request import encode_body
from agent_harness.llm.responses_events import AnswerReader as ResponsesReader
from agent_harness.protocol.blocks import Block
from agent_harness.protocol.items import InputText, Message
from agent_harness.protocol.tools import NamedChoice, Tool, ToolChoice

LOOK_UP = Tool(name="lookup_widget")


def python_chunk(arguments: str | None, finish: str | None = None) -> dict[str, Any]:
    """
    A chunk of llama-cpp-python: the call in the old form and the new one, its id and name in every piece.
    """
    piece = None if arguments is None else {"name": "lookup_widget", "arguments": arguments}
    call = {"index": 0, "id": "call__0_lookup_widget_cmpl-408490db", "type": "function", "function": piece}
    delta = {"role": None, "content": None, "function_call": piece, "tool_calls": None if piece is None else [call]}
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "finish_reason": finish, "delta": delta}]}


def test_a_call_that_llama_cpp_python_sends_in_both_forms_is_one_call() -> None:
    reader = AnswerReader()
    deltas: list[Delta] = []
    for text in (None, '{"', "widget_id", '": 4', "2}", ""):
        deltas += reader.feed(python_chunk(text))
    deltas += [*reader.feed(python_chunk(None, "tool_calls")), *reader.end()]

    added = [delta for delta in deltas if isinstance(delta, ItemAdded)]
    assert added == [ItemAdded(0, "function_call", "call__0_lookup_widget_cmpl-408490db", "lookup_widget")]
    assert "".join(d.delta for d in deltas if isinstance(d, ArgumentsDelta)) == '{"widget_id": 42}'


def test_a_call_in_the_old_form_alone_is_still_a_call() -> None:
    reader = AnswerReader()
    chunk = python_chunk('{"widget_id": 42}')
    del chunk["choices"][0]["delta"]["tool_calls"]
    deltas = [*reader.feed(chunk), *reader.feed(python_chunk(None, "function_call")), *reader.end()]

    assert [delta for delta in deltas if isinstance(delta, ItemAdded)] == [
        ItemAdded(0, "function_call", "", "lookup_widget")
    ]


def test_a_responses_stream_of_llama_cpp_without_any_index_is_read() -> None:
    item = {"id": "fc_ps6L", "call_id": "call_ps6L", "name": "lookup_widget", "type": "function_call"}
    delta = {"type": "response.function_call_arguments.delta", "item_id": "fc_ps6L"}
    done = item | {"status": "completed", "arguments": '{"widget_id": 42}'}
    reader = ResponsesReader()
    deltas: list[Delta] = []
    for event in (
        {"type": "response.created", "response": {"id": "resp_POx9", "object": "response", "status": "in_progress"}},
        {"type": "response.output_item.added", "item": item | {"status": "in_progress", "arguments": ""}},
        delta | {"delta": '{"widget_id":'},
        delta | {"delta": " 42}"},
        {"type": "response.output_item.done", "item": done},
        {"type": "response.completed", "response": {"status": "completed", "output": [done], "usage": {}}},
    ):
        deltas += reader.read("", event)

    assert [delta for delta in deltas if isinstance(delta, ItemAdded | ItemDone)] == [
        ItemAdded(0, "function_call", "call_ps6L", "lookup_widget"),
        ItemDone(0, arguments='{"widget_id": 42}', hidden={"id": "fc_ps6L"}),
    ]
    assert isinstance(reader.ended, Ended)
    assert reader.ended.reason == "completed"


def sent_choice(choice: ToolChoice) -> Any:
    message = Message(id="msg_1", role="user", content=(InputText("hi"),), origin="client", created_at=0)
    request = Request(
        session_id="sess_1",
        provider="default",
        model="m",
        blocks=(Block((message,)),),
        tools=(LOOK_UP,),
        tool_choice=choice,
    )
    return orjson.loads(encode_body(request, ProviderSettings(api="chat"))).get("tool_choice")


def test_auto_is_not_asked_for_since_llama_cpp_python_cannot_stream_then() -> None:
    assert sent_choice("auto") is None
    assert [sent_choice(choice) for choice in ("none", "required")] == ["none", "required"]
    assert sent_choice(NamedChoice("lookup_widget")) == {"type": "function", "function": {"name": "lookup_widget"}}
