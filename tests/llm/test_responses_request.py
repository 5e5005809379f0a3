"""
The body of a Responses request: what is in it, in which order, and that its past never changes a byte.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import orjson
import pytest

from agent_harness.config import ProviderSettings
from agent_harness.errors import ModelError
from agent_harness.llm.base import Request, RequestCache
from agent_harness.llm.responses import ResponsesModel
from agent_harness.llm.responses_input import FILE_STAND_IN, IMAGE_STAND_IN
from agent_harness.protocol.blocks import Block
from agent_harness.protocol.items import (
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Message,
    OutputText,
    Part,
    Provenance,
    Reasoning,
    Refusal,
    SummaryText,
)
from agent_harness.protocol.tools import NamedChoice, Tool
from agent_harness.testing.strict import has_nul, parse_body

SETTINGS = ProviderSettings(model="m1")
IMAGE = InputImage(image_url="data:image/png;base64,iVBOR")


def make_given(data: Mapping[str, Any] | None, model: str = "m1", provider: str = "default") -> Provenance | None:
    return None if data is None else Provenance(provider, model, data)


def said(text: str = "hi", given: Mapping[str, Any] | None = None, *parts: Part) -> Message:
    return Message(
        id="msg_ours",
        role="assistant",
        content=parts or (OutputText(text),),
        origin="model",
        created_at=1,
        provenance=make_given(given),
    )


def asked(*parts: Part | str) -> Block:
    content = tuple(InputText(part) if isinstance(part, str) else part for part in parts)
    return Block((Message(id="msg_user", role="user", content=content, origin="client", created_at=1),))


def call(call_id: str = "c1", given: Mapping[str, Any] | None = None, model: str = "m1") -> FunctionCall:
    return FunctionCall(
        id="fc_ours",
        call_id=call_id,
        name="f",
        arguments='{"q": 1}',
        status="completed",
        created_at=1,
        provenance=make_given(given, model),
    )


def output(call_id: str = "c1", value: str | tuple[Part, ...] = "out", is_error: bool = False) -> FunctionCallOutput:
    return FunctionCallOutput(id="fco_ours", call_id=call_id, output=value, is_error=is_error, created_at=1)


def thought(item_id: str | None, encrypted: str | None = "E", *summary: str, model: str = "m1") -> Reasoning:
    data = {"id": item_id, "encrypted_content": encrypted}
    return Reasoning(
        id="rs_ours",
        summary=tuple(SummaryText(text) for text in summary),
        status="completed",
        created_at=1,
        provenance=make_given({key: value for key, value in data.items() if value}, model),
    )


def make_request(*blocks: Block, closed: int | None = None, **fields: Any) -> Request:
    fields = {"session_id": "s", "provider": "default", "model": None} | fields
    return Request(blocks=blocks, closed=max(0, len(blocks) - 1) if closed is None else closed, **fields)


def read_body(*blocks: Block, settings: ProviderSettings = SETTINGS, **fields: Any) -> dict[str, Any]:
    body = orjson.loads(ResponsesModel(settings).body(make_request(*blocks, **fields)))
    assert isinstance(body, dict)
    return body


def read_input(*blocks: Block, settings: ProviderSettings = SETTINGS, **fields: Any) -> list[dict[str, Any]]:
    found = read_body(*blocks, settings=settings, **fields)["input"]
    assert isinstance(found, list)
    return found


def test_a_plain_request_has_only_the_keys_that_were_set() -> None:
    assert read_body(asked("hello")) == {
        "model": "m1",
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}],
    }


def test_every_setting_has_its_place() -> None:
    body = read_body(
        asked("hello"),
        model="m2",
        instructions="Be brief.",
        tools=(Tool(name="f", description="d", parameters={"type": "object"}, strict=True), Tool(name="g")),
        tool_choice=NamedChoice("f"),
        parallel_tool_calls=False,
        temperature=0.0,
        top_p=0.5,
        max_output_tokens=7,
        reasoning={"effort": "low"},
        text={"format": {"type": "json_object"}},
    )
    del body["input"]
    assert body == {
        "model": "m2",
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "instructions": "Be brief.",
        "tools": [
            {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
            {"type": "function", "name": "g", "parameters": {"type": "object", "properties": {}}, "strict": False},
        ],
        "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": False,
        "temperature": 0.0,
        "top_p": 0.5,
        "max_output_tokens": 7,
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_object"}},
    }


def test_a_choice_without_tools_is_not_sent() -> None:
    body = read_body(asked("hello"), tool_choice="required", parallel_tool_calls=True)
    assert "tool_choice" not in body
    assert "parallel_tool_calls" not in body


def test_no_nul_half_character_or_nan_is_ever_sent() -> None:
    """
    B068, B069, B090: in the form that the other dialect has them, too.
    """
    settings = ProviderSettings(model="m1", extra_body={"x": {"t\0": "\0", "n": float("inf"), "big": 2**70}})
    old_call = attrs.evolve(call(), call_id="c\0")
    raw = ResponsesModel(settings).body(
        make_request(asked("x\0"), Block((old_call,), (output("c\0", "\ud83d"),)), instructions="i\0")
    )
    body = parse_body(raw)
    assert not has_nul(body)
    assert body["x"] == {"t\ufffd": "\ufffd", "n": None, "big": 2**70}
    assert [item.get("call_id") for item in body["input"]] == [None, "c\ufffd", "c\ufffd"]


@pytest.mark.parametrize("item_id, encrypted", [("rs_\ufffd", "E"), ("rs_1", "E\ufffd")])
def test_what_a_provider_gave_and_was_not_kept_whole_is_not_sent_back(item_id: str, encrypted: str) -> None:
    """
    Its provider would not know it again, and refuse every later request.
    """
    sent = read_input(asked(), Block((thought(item_id, encrypted), call("c1", {"id": "fc_1"})), (output(),)))
    assert [item["type"] for item in sent[1:]] == ["function_call", "function_call_output"]
    assert "id" not in sent[1]


def test_extra_body_is_merged_and_replaces_neither_input_nor_stream() -> None:
    settings = ProviderSettings(model="m1", extra_body={"store": True, "user": "u", "input": [], "stream": False})
    body = read_body(asked("hello"), settings=settings)
    assert (body["store"], body["user"], body["stream"], len(body["input"])) == (True, "u", True, 1)


def test_a_request_without_any_model_says_where_to_set_one() -> None:
    with pytest.raises(ModelError, match="set the agent's model, or the model of the provider 'default'") as caught:
        read_body(asked("hello"), settings=ProviderSettings(model=None))
    assert caught.value.code == "provider_rejected"


def test_a_request_without_anything_said_has_an_empty_input() -> None:
    assert read_input() == []


def test_every_request_of_a_session_has_the_same_instructions_tools_and_settings() -> None:
    """
    B170: the first request, the one after a result, the one after a queued message, and a repeat.
    """
    fields: dict[str, Any] = {
        "instructions": "I",
        "tools": (Tool(name="f"),),
        "temperature": 0.3,
        "cache": RequestCache(),
    }
    history = [asked("a"), Block((call(),), (output(),)), Block((said(),)), asked("b")]
    heads = []
    for count in (1, 2, 4, 4):
        body = read_body(*history[:count], **fields)
        del body["input"]
        heads.append(body)
    assert heads[0]["instructions"] == "I"
    assert all(head == heads[0] for head in heads)


def test_parts_go_out_with_the_fields_that_they_have() -> None:
    image = InputImage(file_id="file_1", detail="low")
    document = InputFile(file_data="data:text/plain;base64,aGk=", filename="a.txt")
    assert read_input(asked("look", IMAGE, image, document))[0]["content"] == [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": "data:image/png;base64,iVBOR"},
        {"type": "input_image", "file_id": "file_1", "detail": "low"},
        {"type": "input_file", "file_data": "data:text/plain;base64,aGk=", "filename": "a.txt"},
    ]


def test_an_answer_is_its_text_and_its_refusal_without_empty_parts() -> None:
    annotated = OutputText("see", ({"type": "url_citation", "url": "u"},))
    message = said("", None, annotated, OutputText(""), Refusal("no"))
    assert read_input(asked("a"), Block((message,)))[1] == {
        "type": "message",
        "role": "assistant",
        "content": [
            {"type": "output_text", "text": "see", "annotations": []},
            {"type": "refusal", "refusal": "no"},
        ],
    }


def test_a_call_and_its_output_go_out_to_the_letter() -> None:
    text = 'a\u2028b\u0085c"\\ \t\n好🙂'
    items = read_input(asked("a"), Block((call(),), (output(value=text),)))
    assert items[1:] == [
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"q": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": text},
    ]


@pytest.mark.parametrize(
    "value, is_error, sent",
    [
        ("boom", True, "Error: boom"),
        ("", True, "Error: "),
        ("", False, ""),
        (
            (InputText("t"), IMAGE),
            True,
            [
                {"type": "input_text", "text": "Error: "},
                {"type": "input_text", "text": "t"},
                {"type": "input_image", "image_url": "data:image/png;base64,iVBOR"},
            ],
        ),
        (
            (InputText("t"), IMAGE),
            False,
            [
                {"type": "input_text", "text": "t"},
                {"type": "input_image", "image_url": "data:image/png;base64,iVBOR"},
            ],
        ),
    ],
)
def test_an_output_is_a_string_or_parts_and_an_error_says_so(value: Any, is_error: bool, sent: Any) -> None:
    """
    B061, B071, B072.
    """
    assert read_input(asked("a"), Block((call(),), (output("c1", value, is_error),)))[2]["output"] == sent


def test_a_server_that_takes_only_text_reads_stand_ins() -> None:
    """
    B062: a provider with ``tool_output_parts=False`` never sees a list, so that nothing in the history is refused.
    """
    settings = ProviderSettings(model="m1", tool_output_parts=False)
    value: tuple[Part, ...] = (InputText("t"), IMAGE, InputFile(file_id="x"), InputFile(file_id="y", filename="a.pdf"))
    items = read_input(asked("a"), Block((call(),), (output("c1", value, True),)), settings=settings)
    expected = f"Error: t\n{IMAGE_STAND_IN}\n{FILE_STAND_IN}\n{FILE_STAND_IN[:-1]}: a.pdf]"
    assert items[2]["output"] == expected


def test_reasoning_goes_back_directly_before_its_call_with_both_ids() -> None:
    """
    B014.
    """
    block = Block((thought("rs_1", "E", "I think"), call(given={"id": "fc_1"})), (output(),))
    assert read_input(asked("a"), block)[1:3] == [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "I think"}],
            "encrypted_content": "E",
        },
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": '{"q": 1}'},
    ]


@pytest.mark.parametrize(
    "reasoning, fields",
    [
        (thought("rs_1", None), {}),
        (thought(None, "E"), {}),
        (thought("r" * 65, "E"), {}),
        (thought("rs_1", "E"), {"model": "m2"}),
        (thought("rs_1", "E"), {"provider": "other"}),
    ],
    ids=["no encrypted content", "no id", "an id too long", "another model", "another provider"],
)
def test_without_its_reasoning_a_call_goes_out_without_its_id(reasoning: Reasoning, fields: dict[str, Any]) -> None:
    """
    B014, B018: never an item id without the reasoning before it, never a bare reference.
    """
    block = Block((reasoning, call(given={"id": "fc_1"})), (output(),))
    items = read_input(asked("a"), block, **fields)
    assert [item["type"] for item in items] == ["message", "function_call", "function_call_output"]
    assert "id" not in items[1]
    assert items[1]["call_id"] == "c1"


def test_several_reasoning_items_keep_the_order_of_the_stream() -> None:
    """
    B015: rs_A, fc_A, rs_B, fc_B, then both outputs; an empty summary is no reason to leave one out.
    """
    block = Block(
        (
            thought("rs_A", "EA"),
            call("a", {"id": "fc_A"}),
            thought("rs_B", "EB"),
            call("b", {"id": "fc_B"}),
        ),
        (output("a"), output("b")),
    )
    items = read_input(asked("go"), block)[1:]
    assert [item.get("id") or item["call_id"] for item in items] == ["rs_A", "fc_A", "rs_B", "fc_B", "a", "b"]
    assert items[0]["summary"] == []


def test_if_one_of_several_reasoning_items_cannot_go_back_none_does() -> None:
    """
    B015, B018.
    """
    block = Block(
        (thought("rs_A", "EA"), call("a", {"id": "fc_A"}), thought("rs_B", None), call("b", {"id": "fc_B"})),
        (output("a"), output("b")),
    )
    items = read_input(asked("go"), block)[1:]
    assert [item["type"] for item in items] == ["function_call"] * 2 + ["function_call_output"] * 2
    assert not any("id" in item for item in items)


def test_a_message_gets_its_id_back_only_behind_its_reasoning() -> None:
    """
    B014.
    """
    with_reasoning = Block((thought("rs_1"), said("hi", {"id": "msg_1"})))
    without = Block((said("hi", {"id": "msg_2"}), thought("rs_2"), said("ho", {"id": "msg_3"})))
    items = read_input(asked("a"), with_reasoning, asked("b"), without)
    assert (items[2]["id"], items[2]["status"]) == ("msg_1", "completed")
    assert "id" not in items[4]
    assert (items[5]["id"], items[6]["id"]) == ("rs_2", "msg_3")


@pytest.mark.parametrize("is_closed", [True, False])
def test_an_id_that_a_server_gives_twice_is_sent_once(is_closed: bool) -> None:
    """
    Servers that imitate the API number their items anew in each answer; a request with one id twice is refused.
    """
    first = Block((thought("rs_1"), call("a", {"id": "fc_1"})), (output("a"),))
    second = Block((thought("rs_1"), call("b", {"id": "fc_1"})), (output("b"),))
    items = read_input(asked("go"), first, second, closed=3 if is_closed else 0)
    assert [item["id"] for item in items if "id" in item] == ["rs_1", "fc_1"]
    assert [item["call_id"] for item in items if item["type"] == "function_call"] == ["a", "b"]


def make_history() -> list[Block]:
    return [
        asked("one", IMAGE),
        Block(
            (thought("rs_1", "E1", "s"), call("a", {"id": "fc_1"}), call("b", {"id": "fc_2"})),
            (output("a"), output("b")),
        ),
        Block((said("done", {"id": "msg_1"}),)),
        asked("two"),
        asked("three"),
        Block((thought("rs_1", "E2"), call("c", {"id": "fc_1"})), (output("c", "x", True),)),
        Block((said("好🙂"),)),
        asked("four"),
    ]


@pytest.mark.parametrize("settings", [SETTINGS, ProviderSettings(model="m1", tool_output_parts=False)])
def test_each_request_begins_with_the_bytes_of_the_one_before(settings: ProviderSettings) -> None:
    history, cache, model = make_history(), RequestCache(), ResponsesModel(settings)
    before = b""
    for count in range(1, len(history) + 1):
        body = model.body(make_request(*history[:count], cache=cache))
        fresh = model.body(make_request(*history[:count], closed=0))
        items = body[body.index(b'"input":[') :].removesuffix(b"]}")
        assert body == fresh
        assert items.startswith(before)
        before = items


def test_a_closed_block_is_encoded_once() -> None:
    history, cache = make_history(), RequestCache()
    model = ResponsesModel(SETTINGS)
    model.body(make_request(*history[:3], cache=cache))
    kept = bytes(cache.data)
    assert cache.count == 2
    assert model.body(make_request(*history, cache=cache)).count(kept) == 1
    assert bytes(cache.data).startswith(kept)
    # What the cache holds is not looked at again.
    cache.data[:] = cache.data.replace(b'"one"', b'"ONE"')
    assert b'"ONE"' in model.body(make_request(*history, cache=cache))


def test_another_model_starts_the_cache_anew_and_sends_no_reasoning() -> None:
    history, cache, model = make_history(), RequestCache(), ResponsesModel(SETTINGS)
    with_reasoning = model.body(make_request(*history, cache=cache))
    assert b"rs_1" in with_reasoning
    assert b"rs_1" not in model.body(make_request(*history, cache=cache, model="m2"))
    assert model.body(make_request(*history, cache=cache)) == with_reasoning


def test_a_preview_with_a_cache_of_its_own_leaves_the_sessions_alone() -> None:
    history, cache, model = make_history(), RequestCache(), ResponsesModel(SETTINGS)
    body = model.body(make_request(*history, cache=cache))
    model.body(make_request(*history, asked("steered"), cache=RequestCache()))
    assert model.body(make_request(*history, cache=cache)) == body


def roles(items: Sequence[dict[str, Any]]) -> list[str]:
    return [item.get("role") or item["type"] for item in items]


def test_neighbouring_user_messages_are_merged_when_the_provider_asks_for_it() -> None:
    settings = ProviderSettings(model="m1", merge_user_messages=True)
    history, cache, model = make_history(), RequestCache(), ResponsesModel(settings)
    before: list[dict[str, Any]] = []
    for count in range(1, len(history) + 1):
        items = orjson.loads(model.body(make_request(*history[:count], cache=cache)))["input"]
        last_user = max((place for place, item in enumerate(before) if item.get("role") == "user"), default=None)
        assert all(items[place] == item for place, item in enumerate(before) if place != last_user)
        before = items
    assert "user" not in [b for a, b in zip(roles(before), roles(before)[1:], strict=False) if a == "user"]
    assert [part["text"] for part in before[7]["content"]] == ["two", "three"]
