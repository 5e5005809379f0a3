"""
What Chat Completions is asked: fields, messages, kept bytes; every body is held to what strict servers refuse.
"""

from __future__ import annotations

from typing import Any

import attrs
import orjson
import pytest

from agent_harness.config import ProviderSettings
from agent_harness.llm.base import Request, RequestCache
from agent_harness.llm.chat_request import encode_body, output_limit
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
from agent_harness.testing.strict import SessionMemory, StrictOptions, check_request, parse_body

PROVIDER = ProviderSettings(model="m", api="chat")
IMAGE = InputImage("data:image/png;base64,iVBORw0KGgo=", detail="low")
REFUSING = StrictOptions(refuse_nul=True, refuse_null_content=True, refuse_output_parts=True)


def user(*content: str | Part) -> Block:
    parts = tuple(InputText(part) if isinstance(part, str) else part for part in content)
    return Block((Message(id="msg_u", role="user", content=parts, origin="client", created_at=1),))


def said(*content: str | Part) -> Message:
    parts = tuple(OutputText(part) if isinstance(part, str) else part for part in content)
    return Message(id="msg_a", role="assistant", content=parts, origin="model", created_at=1)


def call(call_id: str, arguments: str = "{}", name: str = "look", hidden: dict[str, Any] | None = None) -> FunctionCall:
    return FunctionCall(
        id=f"fc_{call_id}",
        call_id=call_id,
        name=name,
        arguments=arguments,
        status="completed",
        created_at=1,
        provenance=Provenance("default", "m", hidden) if hidden is not None else None,
    )


def output(call_id: str, value: str | tuple[Part, ...] = "ok", *, is_error: bool = False) -> FunctionCallOutput:
    return FunctionCallOutput(id=f"fco_{call_id}", call_id=call_id, output=value, is_error=is_error, created_at=1)


def thought(text: str, key: str = "reasoning_content", model: str = "m", provider: str = "default") -> Reasoning:
    return Reasoning(
        id="rs_1",
        summary=(SummaryText(text),),
        status="completed",
        created_at=1,
        provenance=Provenance(provider, model, {key: text}),
    )


def request(*blocks: Block, closed: int = 0, **fields: Any) -> Request:
    return Request(**{"session_id": "s", "provider": "default", "model": None, **fields}, blocks=blocks, closed=closed)


def body_of(
    asked: Request, settings: ProviderSettings = PROVIDER, memory: SessionMemory | None = None
) -> dict[str, Any]:
    """
    The body, after a strict server took it.
    """
    raw = encode_body(asked, settings)
    memory = memory or SessionMemory()
    options = attrs.evolve(
        REFUSING,
        merge_user_messages=settings.merge_user_messages,
        drop_reasoning=settings.replay_reasoning_content == "turn",
    )
    memory.last = check_request("chat", parse_body(raw), raw, options, memory)
    body: dict[str, Any] = orjson.loads(raw)
    return body


def messages_of(*blocks: Block, settings: ProviderSettings = PROVIDER, **fields: Any) -> list[Any]:
    messages: list[Any] = body_of(request(*blocks, **fields), settings)["messages"]
    return messages


# The fields.


def test_a_plain_request_has_nothing_but_what_it_needs() -> None:
    assert body_of(request(user("hi"))) == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "hi"}],
    }


def test_all_settings_of_the_agent_are_sent() -> None:
    """
    B170: they stand in every request, whatever the transcript.
    """
    tools = (Tool(name="look", description="d", parameters={"type": "object", "properties": {}}, strict=False),)
    asked = request(
        user("hi"),
        model="other",
        instructions="be brief",
        tools=(*tools, Tool(name="now")),
        tool_choice=NamedChoice("look"),
        parallel_tool_calls=False,
        temperature=0.0,
        top_p=0.5,
        max_output_tokens=9,
        reasoning={"effort": "low", "summary": "auto"},
        text={"verbosity": "low"},
    )
    body = body_of(asked)
    none = {"type": "object", "properties": {}}
    assert body.pop("messages")[0] == {"role": "system", "content": "be brief"}
    assert body == {
        "model": "other",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
        "top_p": 0.5,
        "max_completion_tokens": 9,
        "reasoning_effort": "low",
        "verbosity": "low",
        "tools": [
            {"type": "function", "function": {"name": "look", "description": "d", "parameters": none, "strict": False}},
            {"type": "function", "function": {"name": "now", "parameters": none, "strict": False}},
        ],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "parallel_tool_calls": False,
    }


def test_choices_about_tools_are_left_out_where_there_are_none() -> None:
    body = body_of(request(user("hi"), tool_choice="auto", parallel_tool_calls=True))
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(body)


def test_strict_is_sent_as_the_tool_has_it() -> None:
    schema = {"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False}
    body = body_of(request(user("hi"), tools=(Tool(name="f", parameters=schema, strict=True),), tool_choice="required"))
    assert body["tools"][0]["function"]["strict"] is True
    assert body["tool_choice"] == "required"


@pytest.mark.parametrize(
    "given, sent",
    [
        (
            {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True, "description": None},
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}},
        ),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, {"type": "json_schema", "json_schema": {"name": "n"}}),
        ({"type": "json_object"}, {"type": "json_object"}),
        ({"type": "text"}, None),
        (None, None),
    ],
)
def test_the_text_format_takes_this_dialects_form(given: Any, sent: Any) -> None:
    assert body_of(request(user("hi"), text={"format": given})).get("response_format") == sent


def test_the_provider_names_the_role_of_the_instructions_and_the_output_bound() -> None:
    settings = ProviderSettings(model="m", system_role="developer", max_tokens_field="max_tokens")
    body = body_of(request(user("hi"), instructions="x", max_output_tokens=5), settings)
    assert body["messages"][0] == {"role": "developer", "content": "x"}
    assert body["max_tokens"] == 5
    assert "max_completion_tokens" not in body


def test_extra_body_wins_over_fields_but_not_over_messages_and_stream() -> None:
    extra = {"stream": False, "messages": [], "stream_options": None, "temperature": 1, "min_p": 0.1, "max_tokens": 7}
    settings = ProviderSettings(model="m", extra_body=extra)
    asked = request(user("hi"), temperature=0.2)
    body = body_of(asked, settings)
    assert body.pop("messages") == [{"role": "user", "content": "hi"}]
    assert body == {"model": "m", "stream": True, "temperature": 1, "min_p": 0.1, "max_tokens": 7}
    assert output_limit(asked, settings) == 7
    assert output_limit(request(user("hi"), max_output_tokens=3), settings) == 3
    assert output_limit(asked, PROVIDER) is None


def test_no_model_is_no_field() -> None:
    assert b'"model"' not in encode_body(request(user("hi")), ProviderSettings(model=None))


# The messages.


def test_a_user_message_of_one_text_is_a_string_and_of_more_a_list() -> None:
    assert messages_of(user("a"), user("a", "b"), user(), user("")) == [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": ""},
        {"role": "user", "content": ""},
    ]


def test_images_and_files_of_a_user_become_parts_or_a_line_that_stands_for_them() -> None:
    parts = (
        "see",
        IMAGE,
        InputImage(file_id="file_1"),
        InputFile(file_data="data:a/b;base64,AA==", filename="a.pdf"),
        InputFile(file_id="file_2"),
        InputFile(file_url="https://h/x.pdf", filename="x.pdf"),
        InputFile(file_url="data:a/b;base64,AA=="),
        InputFile(),
    )
    assert messages_of(user(*parts))[0]["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": IMAGE.image_url, "detail": "low"}},
        {"type": "text", "text": "[an image by file id, which Chat Completions cannot show]"},
        {"type": "file", "file": {"file_data": "data:a/b;base64,AA==", "filename": "a.pdf"}},
        {"type": "file", "file": {"file_id": "file_2"}},
        {"type": "text", "text": "[file x.pdf at https://h/x.pdf]"},
        {"type": "file", "file": {"file_data": "data:a/b;base64,AA=="}},
        {"type": "text", "text": "[an empty file]"},
    ]


def test_a_plain_answer_has_no_tool_calls_key() -> None:
    """
    B051.
    """
    assert messages_of(user("a"), Block((said("hi"),)))[1] == {"role": "assistant", "content": "hi"}


def test_an_answer_is_one_message_directly_followed_by_its_outputs_in_call_order() -> None:
    answer = Block((said("let me"), call("a"), said("and"), call("b", '{"q": 1}')), (output("a"), output("b", "é\n")))
    assert messages_of(user("x"), answer, user("y"))[1:4] == [
        {
            "role": "assistant",
            "content": "let me\n\nand",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}},
                {"id": "b", "type": "function", "function": {"name": "look", "arguments": '{"q": 1}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "ok"},
        {"role": "tool", "tool_call_id": "b", "content": "é\n"},
    ]


def test_an_answer_without_text_has_an_empty_one_and_never_null() -> None:
    assert messages_of(user("x"), Block((call("a"),), (output("a"),)))[1]["content"] == ""


def test_a_refusal_is_the_answers_text() -> None:
    assert messages_of(user("x"), Block((said("a", Refusal("no")),)))[1] == {"role": "assistant", "content": "ano"}


@pytest.mark.parametrize("text", ["", "real", "a\nb\tc\u2028d", '{"x":1}'])
def test_an_output_is_sent_as_it_is(text: str) -> None:
    """
    B072: an empty one is the empty string; B091.
    """
    assert messages_of(user("x"), Block((call("a"),), (output("a", text),)))[2]["content"] == text


def test_an_output_that_is_an_error_says_so() -> None:
    """
    B071.
    """
    outputs = (
        output("a", "boom", is_error=True),
        output("b", "", is_error=True),
        output("c", (InputText("p"),), is_error=True),
    )
    messages = messages_of(user("x"), Block((call("a"), call("b"), call("c")), outputs))
    assert [message["content"] for message in messages[2:]] == ["Error: boom", "Error: ", "Error: p"]


def test_an_image_in_an_output_is_shown_behind_the_last_output() -> None:
    """
    B061.
    """
    outputs = (output("a", (InputText("t"), IMAGE, InputFile(file_id="f"))), output("b"))
    messages = messages_of(user("x"), Block((call("a"), call("b")), outputs), Block((said("ok"),)))
    assert messages[2:] == [
        {
            "role": "tool",
            "tool_call_id": "a",
            "content": "t\n[image 1 of the output of a: see the user message below]\n"
            "[file 2 of the output of a: see the user message below]",
        },
        {"role": "tool", "tool_call_id": "b", "content": "ok"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "[image 1 of the output of a]"},
                {"type": "image_url", "image_url": {"url": IMAGE.image_url, "detail": "low"}},
                {"type": "text", "text": "[file 2 of the output of a]"},
                {"type": "file", "file": {"file_id": "f"}},
            ],
        },
        {"role": "assistant", "content": "ok"},
    ]


def test_an_image_in_an_output_is_left_out_for_a_server_that_takes_only_text() -> None:
    """
    B061, B062.
    """
    settings = ProviderSettings(model="m", tool_output_parts=False)
    messages = messages_of(user("x"), Block((call("a"),), (output("a", (InputText("t"), IMAGE)),)), settings=settings)
    assert len(messages) == 3
    assert messages[2]["content"].startswith("t\n[image 1 of the output of a: left out")
    assert "base64" not in orjson.dumps(messages).decode()


def test_open_calls_are_shown_without_outputs() -> None:
    raw = encode_body(request(user("x"), Block((call("a"),))), PROVIDER)
    assert len(orjson.loads(raw)["messages"]) == 2


# Reasoning.


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_goes_back_under_the_key_it_came_under(key: str) -> None:
    answer = Block((thought("hm", key), call("a")), (output("a"),))
    assert messages_of(user("x"), answer)[1][key] == "hm"


@pytest.mark.parametrize(
    "foreign", [thought("hm", model="n"), thought("hm", provider="p"), attrs.evolve(thought("hm"), provenance=None)]
)
def test_reasoning_of_another_model_or_provider_stays_here(foreign: Reasoning) -> None:
    assert messages_of(user("x"), Block((foreign, said("hi"))))[1] == {"role": "assistant", "content": "hi"}


def test_empty_reasoning_that_a_call_kept_is_sent_back_empty() -> None:
    answer = Block((call("a", hidden={"reasoning_content": ""}), call("b")), (output("a"), output("b")))
    assert messages_of(user("x"), answer)[1]["reasoning_content"] == ""


def test_reasoning_is_replayed_always_or_in_its_turn_or_never() -> None:
    blocks = (
        user("x"),
        Block((thought("one"), call("a")), (output("a"),)),
        user("y"),
        Block((thought("two"), call("b")), (output("b"),)),
        Block((thought("three"), call("c")), (output("c"),)),
    )
    shown = {}
    for replay in ("always", "turn", "never"):
        settings = ProviderSettings(model="m", replay_reasoning_content=replay)
        shown[replay] = [
            m["reasoning_content"] for m in messages_of(*blocks, settings=settings) if "reasoning_content" in m
        ]
    assert shown == {"always": ["one", "two", "three"], "turn": ["two", "three"], "never": []}
    assert PROVIDER.replay_reasoning_content == "always"


# Merging.


def test_neighbouring_user_messages_become_one_where_the_provider_wants_it() -> None:
    settings = ProviderSettings(model="m", merge_user_messages=True)
    blocks = (user("a"), user("b"), user("c", IMAGE), Block((call("i"),), (output("i", (IMAGE,)),)), user("d"))
    messages = messages_of(*blocks, settings=settings)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user"]
    assert messages[0]["content"][0] == {"type": "text", "text": "a\n\nb"}
    assert [part["type"] for part in messages[0]["content"]] == ["text", "text", "image_url"]
    assert messages[3]["content"][-1] == {"type": "text", "text": "d"}
    assert messages_of(user("a"), user("b"), settings=settings) == [{"role": "user", "content": "a\n\nb"}]


def test_instructions_in_a_user_message_are_joined_to_the_first_one() -> None:
    settings = ProviderSettings(model="m", merge_user_messages=True, system_role="user")
    assert messages_of(user("a"), instructions="be", settings=settings) == [{"role": "user", "content": "be\n\na"}]


# Kept bytes.

HISTORY = (
    user("a"),
    Block((thought("one"), said("\n"), call("1"), call("2")), (output("1"), output("2", (IMAGE,)))),
    Block((said("done"),)),
    user("failed"),
    user("again"),
    Block((thought("two"), call("3")), (output("3"),)),
    Block((call("4"),), (output("4", "x", is_error=True),)),
    Block((said("end"),)),
    user("b"),
    user("c"),
    Block((call("5"),), (output("5", (IMAGE,)),)),
    user("steered"),
)
SETTINGS = [
    attrs.evolve(PROVIDER, merge_user_messages=merge, replay_reasoning_content=replay, system_role=role)
    for merge in (False, True)
    for replay in ("never", "turn", "always")
    for role in ("system", "user")
]


def describe(settings: ProviderSettings) -> str:
    merge = "merge" if settings.merge_user_messages else "apart"
    return f"{merge}-{settings.replay_reasoning_content}-{settings.system_role}"


@pytest.mark.parametrize("settings", SETTINGS, ids=describe)
@pytest.mark.parametrize("instructions", [None, "be brief"])
def test_a_body_made_of_kept_bytes_is_the_one_made_anew(settings: ProviderSettings, instructions: str | None) -> None:
    cache = RequestCache()
    counts = []
    for end in range(1, len(HISTORY) + 1):
        fields: dict[str, Any] = {"closed": end - 1, "instructions": instructions}
        body = encode_body(request(*HISTORY[:end], **fields, cache=cache), settings)
        assert body == encode_body(request(*HISTORY[:end], instructions=instructions), settings)
        assert body == encode_body(request(*HISTORY[:end], **fields, cache=cache), settings)
        counts.append(cache.count)
    assert counts == sorted(counts)
    assert counts[-1] >= len(HISTORY) - 3


@pytest.mark.parametrize("settings", SETTINGS, ids=describe)
def test_each_request_begins_with_the_bytes_of_the_one_before(settings: ProviderSettings) -> None:
    memory, cache = SessionMemory(), RequestCache()
    for end in range(1, len(HISTORY) + 1):
        body_of(request(*HISTORY[:end], closed=end - 1, instructions="be", cache=cache), settings, memory)


def test_what_is_kept_is_not_encoded_again() -> None:
    cache = RequestCache()
    encode_body(request(*HISTORY[:3], closed=2, cache=cache), PROVIDER)
    broken: Any = Block((call("1", arguments=None),))  # type: ignore[arg-type]
    body = encode_body(request(broken, broken, *HISTORY[2:5], closed=4, cache=cache), PROVIDER)
    assert body == encode_body(request(*HISTORY[:5]), PROVIDER)
    assert (cache.count, cache.key) == (4, ("chat", "default", "m", ""))


@pytest.mark.parametrize("change", [{"model": "n"}, {"instructions": "new"}, {"provider": "p"}, {"closed": 0}])
def test_bytes_kept_for_other_settings_are_forgotten(change: dict[str, Any]) -> None:
    cache = RequestCache()
    encode_body(request(*HISTORY[:5], closed=4, cache=cache), PROVIDER)
    fields = {"closed": 4, **change}
    assert encode_body(request(*HISTORY[:5], **fields, cache=cache), PROVIDER) == encode_body(
        request(*HISTORY[:5], **change), PROVIDER
    )


# Bytes.


def test_no_nul_half_character_or_nan_is_ever_sent() -> None:
    """
    B068, B069, B090.
    """
    schema = {"type": "object", "properties": {"a\0": {"maximum": float("nan"), "enum": ("\ud83d",), "minimum": 2**70}}}
    settings = ProviderSettings(model="m", extra_body={"x": {"t": "\0", "n": float("inf")}})
    asked = request(
        user("x\0"), tools=(Tool(name="f", description="d\0\udc00", parameters=schema),), instructions="\ud83d"
    )
    raw = encode_body(asked, settings)
    assert b"\\u0000" not in raw
    assert b"NaN" not in raw
    assert b"Infinity" not in raw
    body = body_of(asked, settings)
    assert body["messages"][1]["content"] == "x\ufffd"
    assert body["x"] == {"t": "\ufffd", "n": None}


def test_text_about_a_nul_escape_is_sent_as_it_is() -> None:
    assert messages_of(user("\\u0000"))[0]["content"] == "\\u0000"
