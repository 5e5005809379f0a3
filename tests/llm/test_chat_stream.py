"""
What is made of Chat Completions streams, good and broken: the reader alone, and the adapter over real sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import attrs
import orjson
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from agent_harness.config import ProviderSettings
from agent_harness.errors import ModelError
from agent_harness.llm import chat
from agent_harness.llm.base import (
    ArgumentsDelta,
    Delta,
    Ended,
    ItemAdded,
    ItemDone,
    RefusalDelta,
    Request,
    Retrying,
    SummaryDelta,
    TextDelta,
)
from agent_harness.llm.chat import ChatModel
from agent_harness.llm.chat_reader import AnswerReader
from agent_harness.llm.upstream_frames import EventReader
from agent_harness.protocol.blocks import Block
from agent_harness.protocol.items import InputText, Message, Usage
from agent_harness.testing.app_server import AppServer

T = TypeVar("T")
Chunk = dict[str, Any]
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
DONE = b"data: [DONE]\n\n"


async def soon(thing: Awaitable[T]) -> T:
    return await asyncio.wait_for(thing, 5)


# Streams in short.


def cc(delta: Any = None, finish: Any = None, **fields: Any) -> Chunk:
    """
    A chunk as OpenAI sends it, with *delta* and *finish* in it.
    """
    choice = {"index": 0, "delta": {} if delta is None else delta, "finish_reason": finish, "logprobs": None}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
        **fields,
    }


def text(content: Any, finish: Any = None, **fields: Any) -> Chunk:
    return cc({"content": content}, finish, **fields)


def call(index: int = 0, id: Any = None, name: Any = None, args: Any = None) -> Chunk:
    entry = {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": args}}
    return cc({"tool_calls": [entry]})


def frames(*chunks: Chunk, done: bool = True) -> bytes:
    return b"".join(b"data: %b\n\n" % orjson.dumps(chunk) for chunk in chunks) + (DONE if done else b"")


@attrs.define
class Item:
    """
    An item as a reader of the deltas knows it.
    """

    type: str
    call_id: str = ""
    name: str = ""
    parts: dict[int, str] = attrs.field(factory=dict)
    done: ItemDone | None = None

    @property
    def text(self) -> str:
        return "".join(self.parts.values())


@attrs.define
class Answer:
    items: list[Item]
    end: Ended | None

    @property
    def texts(self) -> list[str]:
        return [item.text for item in self.items if item.type == "message"]

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        return [(item.call_id, item.name, item.text) for item in self.items if item.type == "function_call"]


def follow(deltas: list[Delta]) -> Answer:
    """
    The answer that *deltas* tell of, held to the contract of models.
    """
    answer = Answer([], None)
    for delta in deltas:
        assert answer.end is None
        if isinstance(delta, Retrying):
            assert not answer.items
        elif isinstance(delta, Ended):
            answer.end = delta
        elif isinstance(delta, ItemAdded):
            assert delta.index == len(answer.items)
            answer.items.append(Item(delta.type, delta.call_id, delta.name))
        else:
            item = answer.items[delta.index]
            assert item.done is None
            if isinstance(delta, ItemDone):
                item.done = delta
                continue
            part = getattr(delta, "content_index", 0)
            item.parts[part] = item.parts.get(part, "") + delta.delta
            assert delta.delta
            delta.delta.encode()
    if answer.end is not None and answer.end.reason == "completed":
        assert all(item.done for item in answer.items)
    return answer


def read(*chunks: Any, limit: int | None = None) -> list[Delta]:
    reader = AnswerReader(limit)
    return [*(delta for chunk in chunks for delta in reader.feed(chunk)), *reader.end()]


def answer_of(*chunks: Any, limit: int | None = None) -> Answer:
    return follow(read(*chunks, limit=limit))


# The reader alone.


def test_a_text_answer_is_one_message() -> None:
    assert read(
        cc({"role": "assistant", "content": ""}), text("Hel"), text("lo"), cc(finish="stop"), cc(usage=USAGE)
    ) == [
        ItemAdded(0, "message"),
        TextDelta(0, "Hel"),
        TextDelta(0, "lo"),
        ItemDone(0),
        Ended("completed", Usage(7, 5, 12)),
    ]


def test_text_and_a_call_in_one_chunk_are_both_taken() -> None:
    both = cc(
        {"content": "I look", "tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]}
    )
    assert read(both, cc(finish="tool_calls")) == [
        ItemAdded(0, "message"),
        TextDelta(0, "I look"),
        ItemAdded(1, "function_call", "a", "f"),
        ArgumentsDelta(1, "{}"),
        ItemDone(0),
        ItemDone(1),
        Ended(),
    ]


def test_a_ghost_call_next_to_the_text_is_ignored() -> None:
    """
    B037.
    """
    ghost = cc({"tool_calls": [{"index": 0, "id": "", "type": "function"}]})
    answer = answer_of(text("All done"), ghost, cc(finish="stop"))
    assert (answer.texts, answer.calls) == (["All done"], [])


def test_text_before_a_call_of_index_one_makes_no_phantom_call() -> None:
    """
    B050.
    """
    answer = answer_of(text("Let me look"), call(1, "a", "f", ""), call(1, args="{}"), cc(finish="tool_calls"))
    assert (answer.texts, answer.calls) == (["Let me look"], [("a", "f", "{}")])


def test_white_space_between_calls_makes_no_message() -> None:
    """
    B052.
    """
    answer = answer_of(
        call(0, "a", "f", "{}"), text("\n"), call(0, "b", "g", "{}"), text(" \n"), cc(finish="tool_calls")
    )
    assert (answer.texts, answer.calls) == ([], [("a", "f", "{}"), ("b", "g", "{}")])


def test_white_space_before_a_text_belongs_to_it() -> None:
    assert answer_of(text("\n"), text("\n"), text("Hi "), text(" \n"), cc(finish="stop")).texts == ["\n\nHi  \n"]


def test_text_behind_calls_is_a_message_behind_them() -> None:
    answer = answer_of(call(0, "a", "f", "{}"), text("so"), call(1, "b", "f", "{}"), text("!"), cc(finish="tool_calls"))
    assert [item.type for item in answer.items] == ["function_call", "message", "function_call"]
    assert answer.texts == ["so!"]


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        ["a", "b"],
        {"type": "text", "text": "ab"},
        [{"type": "image"}, None, 3, {"type": "text", "text": "ab"}, {"type": "text", "text": None}],
    ],
)
def test_content_in_parts_is_their_text(content: Any) -> None:
    assert answer_of(text(content), cc(finish="stop")).texts == ["ab"]


def test_a_refusal_is_its_own_part_of_the_message() -> None:
    deltas = read(text("Well"), cc({"refusal": "I can"}), cc({"refusal": "not"}), text("."), cc(finish="stop"))
    assert deltas[1:5] == [
        TextDelta(0, "Well"),
        RefusalDelta(0, "I can", 1),
        RefusalDelta(0, "not", 1),
        TextDelta(0, "."),
    ]
    alone = read(cc({"refusal": "no", "content": None}), cc(finish="stop"))
    assert alone[:2] == [ItemAdded(0, "message"), RefusalDelta(0, "no")]


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_is_an_item_of_its_own_and_kept_to_be_sent_back(key: str) -> None:
    other = "reasoning" if key == "reasoning_content" else "reasoning_content"
    thinking = [
        cc({key: part, other: nothing, "content": None}) for part, nothing in (("\n", ""), ("I ", None), ("see", ""))
    ]
    assert read(*thinking, text("ok"), cc(finish="stop")) == [
        ItemAdded(0, "reasoning"),
        SummaryDelta(0, "\nI "),
        SummaryDelta(0, "see"),
        ItemAdded(1, "message"),
        TextDelta(1, "ok"),
        ItemDone(0, hidden={key: "\nI see"}),
        ItemDone(1),
        Ended(),
    ]


def test_reasoning_under_both_keys_is_taken_once() -> None:
    answer = answer_of(cc({"reasoning": "hm", "reasoning_content": "hm"}), text("ok"), cc(finish="stop"))
    assert [item.text for item in answer.items] == ["hm", "ok"]


def test_reasoning_that_was_empty_is_remembered_with_the_first_call() -> None:
    chunks = (cc({"reasoning_content": "", "content": None}), call(0, "a", "f", "{}"), call(1, "b", "f", "{}"))
    answer = answer_of(*chunks, cc(finish="tool_calls"))
    assert [item.done and item.done.hidden for item in answer.items] == [{"reasoning_content": ""}, None]


def test_thinking_parts_are_reasoning_that_is_not_sent_back() -> None:
    thinking = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]
    assert read(text(thinking), text("ok"), cc(finish="stop"))[:2] == [ItemAdded(0, "reasoning"), SummaryDelta(0, "hm")]
    assert ItemDone(0) in read(text(thinking), text("ok"), cc(finish="stop"))


@pytest.mark.parametrize(
    "noise",
    [
        {},
        {"choices": None},
        {"choices": []},
        {"choices": {}},
        {"choices": [None, 3, "x", []]},
        {"choices": [{}]},
        {"choices": [{"index": 0, "delta": None}]},
        {"choices": [{"index": 0, "delta": "x"}]},
        {"choices": [{"index": 0, "delta": {"content": None, "tool_calls": None, "refusal": None, "role": 3}}]},
        {"choices": [{"index": 0, "delta": {"content": 3, "tool_calls": 3, "function_call": 3, "reasoning": {}}}]},
        {"choices": [{"index": 1, "delta": {"content": "other"}, "finish_reason": "length"}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": ""}]},
        {"error": None, "usage": None, "x_new": {"a": 1}},
    ],
)
def test_chunks_that_say_nothing_change_nothing(noise: Chunk) -> None:
    """
    B083, B101, B171.
    """
    assert read(noise, text("a"), noise, cc(finish="stop"), noise) == read(text("a"), cc(finish="stop"))


def test_only_the_first_of_several_choices_is_taken() -> None:
    choices = [{"index": n, "delta": {"content": str(n)}, "finish_reason": "stop"} for n in (1, 0, 2)]
    assert answer_of({"choices": choices}).texts == ["0"]
    assert answer_of({"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}).texts == ["a"]


def test_a_whole_message_instead_of_deltas_is_taken_once() -> None:
    whole = {"role": "assistant", "content": "hi", "tool_calls": []}
    assert answer_of({"choices": [{"message": whole, "finish_reason": "stop"}]}).texts == ["hi"]
    repeated = {"choices": [{"message": whole, "finish_reason": "stop"}]}
    assert answer_of(text("hi"), repeated).texts == ["hi"]


def test_usage_in_the_last_text_chunk_loses_neither() -> None:
    """
    B083.
    """
    answer = answer_of(text("end", "stop", usage=USAGE))
    assert (answer.texts, answer.end) == (["end"], Ended("completed", Usage(7, 5, 12)))


@pytest.mark.parametrize(
    "given, usage",
    [
        (None, Usage()),
        ({}, Usage()),
        ({"prompt_tokens": None, "completion_tokens": "5", "total_tokens": -1}, Usage()),
        (
            {
                **USAGE,
                "prompt_tokens_details": {"cached_tokens": 4},
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
            Usage(7, 5, 12, 4, 0),
        ),
        ({**USAGE, "prompt_tokens_details": None, "completion_tokens_details": {}}, Usage(7, 5, 12)),
        ({**USAGE, "prompt_cache_hit_tokens": 3}, Usage(7, 5, 12, 3)),
        ({**USAGE, "cached_tokens": 2}, Usage(7, 5, 12, 2)),
    ],
)
def test_usage_is_what_was_reported_and_unknown_otherwise(given: Any, usage: Usage) -> None:
    """
    B171.
    """
    assert answer_of(text("a", "stop"), {"choices": [], "usage": given}).end == Ended("completed", usage)


def test_the_last_usage_wins_wherever_it_stands() -> None:
    growing = [text("a", usage={**USAGE, "completion_tokens": n}) for n in range(3)]
    assert answer_of(*growing, cc(finish="stop")).end == Ended("completed", Usage(7, 2, 12))
    inner = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": USAGE}]}
    assert answer_of(inner).end == Ended("completed", Usage(7, 5, 12))


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "function_call", "eos", "STOP", 1, {"type": "stop"}])
def test_known_and_unknown_reasons_end_the_answer_well(finish: Any) -> None:
    assert answer_of(text("a"), cc(finish=finish)).end == Ended()


@pytest.mark.parametrize("finish", ["length", "max_tokens", "model_length"])
def test_a_length_cut_is_a_cut_even_if_the_call_looks_whole(finish: str) -> None:
    """
    B076.
    """
    answer = answer_of(call(0, "a", "write", '{"path":"x"}'), cc(finish=finish), cc(finish="stop"))
    assert answer.end == Ended("max_output_tokens")
    assert answer.items[0].done is None


def test_a_call_cut_by_the_limit_is_a_cut_whatever_the_server_calls_it() -> None:
    """
    B075.
    """
    chunks = (call(0, "a", "f", '{"path":"a","content":"abc'), cc(finish="tool_calls"), cc(usage=USAGE))
    assert answer_of(*chunks, limit=5).end == Ended("max_output_tokens", Usage(7, 5, 12))
    # Without the limit reached it is the session that answers such a call.
    assert answer_of(*chunks, limit=6).end == Ended("completed", Usage(7, 5, 12))
    assert answer_of(*chunks).end == Ended("completed", Usage(7, 5, 12))
    whole = (call(0, "a", "f", "{}"), cc(finish="tool_calls"), cc(usage=USAGE))
    assert answer_of(*whole, limit=5).end == Ended("completed", Usage(7, 5, 12))
    assert answer_of(text("a"), cc(finish="stop"), cc(usage=USAGE), limit=5).end == Ended("completed", Usage(7, 5, 12))


def test_a_filtered_answer_keeps_its_text_and_says_so() -> None:
    """
    B079.
    """
    answer = answer_of(text("I am sorry, but"), cc(finish="content_filter"))
    assert (answer.texts, answer.end) == (["I am sorry, but"], Ended("content_filter"))
    half = answer_of(call(0, "a", "f", '{"a'), cc(finish="content_filter"))
    assert half.end == Ended("content_filter")


def test_an_answer_with_a_reason_and_nothing_else_has_no_items() -> None:
    assert read(cc(finish="stop")) == [Ended()]
    assert read(text("\n"), cc(finish="stop")) == [Ended()]


def test_half_characters_are_joined_across_chunks() -> None:
    """
    B090.
    """
    assert answer_of(text("a\ud83d"), text("\ude00b"), cc(finish="stop")).texts == ["a😀b"]
    assert answer_of(text("\ud83d"), cc(finish="stop")).texts == ["\ufffd"]
    refused = answer_of(cc({"refusal": "\ud83d"}), cc({"refusal": "\ude00"}), cc(finish="stop"))
    assert refused.texts == ["😀"]
    thought = answer_of(cc({"reasoning": "\ud83d"}), cc({"reasoning": "\ude00"}), text("a"), cc(finish="stop"))
    assert thought.items[0].done == ItemDone(0, hidden={"reasoning": "😀"})
    assert answer_of(call(0, "a", "f", '"\ud83d'), call(0, args='\ude00"'), cc(finish="stop")).calls == [
        ("a", "f", '"😀"')
    ]


@pytest.mark.parametrize("finish", ["error", "abort", "network_error", "insufficient_system_resource"])
def test_a_server_that_gives_up_is_a_failure(finish: str) -> None:
    with pytest.raises(ModelError) as caught:
        read(text("a"), cc(finish=finish))
    assert caught.value.code == "provider_unavailable"


def test_a_server_that_gives_up_in_its_own_words_is_quoted() -> None:
    choice = {"index": 0, "delta": {}, "finish_reason": "error", "error": {"message": "boom", "code": 429}}
    with pytest.raises(ModelError, match="boom") as caught:
        read({"choices": [choice]})
    assert caught.value.code == "rate_limited"


def test_an_answer_without_a_reason_was_cut() -> None:
    """
    B085.
    """
    reader = AnswerReader()
    assert follow(reader.feed(call(0, "a", "f", '{"content":"long'))).calls == [("a", "f", '{"content":"long')]
    with pytest.raises(ModelError) as caught:
        reader.end()
    assert caught.value.code == "upstream_disconnected"


@pytest.mark.parametrize("chunks", [[], [{"choices": []}], [{"choices": None, "usage": USAGE}]])
def test_an_answer_with_nothing_in_it_is_invalid(chunks: list[Chunk]) -> None:
    """
    B086.
    """
    with pytest.raises(ModelError) as caught:
        read(*chunks)
    assert caught.value.code == "upstream_invalid"


WIRE = (
    b": hello\n\n"
    + b'data:{"choices":\ndata:[{"delta":{"content":"a\xe2\x80\xa8b\xc2\x85\xe5\xa5\xbd\xf0\x9f\x99\x82"}}]}\n\n'
    + b'event: ping\ndata:\n\nid: 3\r\nretry: 10\r\n\r\ndata: {"choices":[{"delta":{"content":"\\ud83d"}}]}\r\n\r\n'
    + b'data: {"choices":[{"delta":{"content":"\\ude00"}}],"error":null}\n\n'
    + frames(call(0, "x", "f", '{"q":'), call(0, args='"\n\ndata: é"}'), cc(finish="tool_calls"), cc(usage=USAGE))
)


def read_bytes(*pieces: bytes) -> list[Delta]:
    events, reader = EventReader(), AnswerReader()
    deltas = [delta for piece in pieces for _, chunk in events.feed(piece) for delta in reader.feed(chunk)]
    assert events.failure is None
    return [*deltas, *reader.end()]


def test_a_stream_split_at_any_byte_gives_the_same_deltas() -> None:
    """
    B091, B092, B094, B097, B099.
    """
    expected = read_bytes(WIRE)
    answer = follow(expected)
    assert answer.texts == ["a\u2028b\u0085好🙂😀"]
    assert answer.calls == [("x", "f", '{"q":"\n\ndata: é"}')]
    for place in range(len(WIRE)):
        assert read_bytes(WIRE[:place], WIRE[place:]) == expected
    assert read_bytes(*(WIRE[n : n + 1] for n in range(len(WIRE)))) == expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "\n", "stop", "a", "\ud83d", "\ude00", "{}"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["text", "type", "thinking", "index", "id", "name", "function"]), inner, max_size=3
        )
    ),
    max_leaves=5,
)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({}, optional={name: value | JSON for name, value in fields.items()})


DELTA = some(
    content=st.text(max_size=3),
    refusal=st.text(max_size=3),
    reasoning_content=st.text(max_size=3),
    reasoning=st.text(max_size=3),
    function_call=some(name=st.just("f"), arguments=st.just("{}")),
    tool_calls=st.lists(
        some(
            index=st.integers(0, 2),
            id=st.sampled_from(["a", "b"]),
            function=some(name=st.just("f"), arguments=st.sampled_from(["{", "}", "{}"])),
        ),
        max_size=2,
    ),
)
CHUNK = some(
    choices=st.lists(
        some(
            index=st.just(0),
            delta=DELTA,
            message=DELTA,
            finish_reason=st.sampled_from(["stop", "length", "error", None]),
            usage=JSON,
        ),
        max_size=2,
    ),
    usage=some(prompt_tokens=st.integers(), completion_tokens=st.integers(), prompt_tokens_details=JSON),
).filter(lambda chunk: isinstance(chunk, dict))


@given(st.lists(CHUNK, max_size=6), st.none() | st.integers(0, 3))
def test_whatever_comes_the_contract_is_kept(chunks: list[Any], limit: int | None) -> None:
    reader = AnswerReader(limit)
    deltas = [delta for chunk in chunks for delta in reader.feed(chunk)]
    try:
        deltas += reader.end()
    except ModelError:
        assert follow(deltas).end is None
    else:
        assert follow(deltas).end is not None


# Over real sockets.

Write = Callable[[bytes], Awaitable[None]]
Script = Callable[[web.Request, Write], Awaitable[None]]


class Server:
    """
    Answers each request with the next script; `closed` is set when a client leaves before its answer ends.
    """

    def __init__(self) -> None:
        self.scripts: list[bytes | Script] = []
        self.bodies: list[Any] = []
        self.headers: list[Mapping[str, str]] = []
        self.peers: list[Any] = []
        self.closed = asyncio.Event()
        self.content_type = "text/event-stream"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(orjson.loads(await request.read()))
        self.headers.append(request.headers)
        assert request.transport is not None
        self.peers.append(request.transport.get_extra_info("peername"))
        script = self.scripts.pop(0)
        response = web.StreamResponse(headers={"Content-Type": self.content_type})
        if callable(script):
            try:
                await response.prepare(request)
                await script(request, response.write)
            except (asyncio.CancelledError, ConnectionError):
                self.closed.set()
                raise
        elif script.startswith(b"HTTP "):
            return web.Response(status=int(script[5:8]), body=script[8:], headers={"Retry-After": "0"})
        else:
            await response.prepare(request)
            await response.write(script)
        return response


@contextlib.asynccontextmanager
async def serving(*scripts: bytes | Script, **settings: Any) -> AsyncIterator[tuple[Server, ChatModel]]:
    server = Server()
    server.scripts = list(scripts)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.handle)
    test_server = AppServer(app, handler_cancellation=True)
    await test_server.start_server(shutdown_timeout=0.1)
    fields: dict[str, Any] = {"api": "chat", "model": "m", "api_key": "k", "max_retries": 0, **settings}
    model = ChatModel(ProviderSettings(base_url=str(test_server.make_url("/v1")), **fields))
    try:
        yield server, model
    finally:
        await model.aclose()
        await test_server.close()


REQUEST = Request(
    session_id="sess_1",
    provider="default",
    model=None,
    blocks=(Block((Message(id="msg_1", role="user", content=(InputText("hi"),), origin="client", created_at=1),)),),
)


async def collect(model: ChatModel, into: list[Delta] | None = None, request: Request = REQUEST) -> list[Delta]:
    deltas = [] if into is None else into

    async def run() -> None:
        async with contextlib.aclosing(model.stream(request)) as stream:
            async for delta in stream:
                deltas.append(delta)

    await soon(run())
    return deltas


async def fail(model: ChatModel) -> tuple[ModelError, list[Delta]]:
    deltas: list[Delta] = []
    with pytest.raises(ModelError) as caught:
        await collect(model, deltas)
    return caught.value, deltas


async def test_a_stream_is_read_and_the_request_is_the_body() -> None:
    async with serving(WIRE, WIRE) as (server, model):
        assert await collect(model) == read_bytes(WIRE)
        assert await collect(model) == read_bytes(WIRE)
        assert server.bodies[0] == orjson.loads(model.body(REQUEST))
        assert server.headers[0]["x-session-id"] == "sess_1"
        assert server.headers[0]["authorization"] == "Bearer k"
        assert server.peers[0] == server.peers[1]
        assert model.default_model == "m"


async def test_a_stream_that_comes_byte_by_byte_gives_the_same() -> None:
    """
    B092.
    """

    async def drip(request: web.Request, write: Write) -> None:
        for place in range(len(WIRE)):
            await write(WIRE[place : place + 1])

    async with serving(drip) as (_, model):
        assert follow(await collect(model)) == follow(read_bytes(WIRE))


async def test_a_line_of_a_megabyte_is_read() -> None:
    """
    B098.
    """
    long = "é" * 1024 * 1024
    async with serving(frames(text(long), call(0, "a", "f", long), cc(finish="stop"))) as (_, model):
        answer = follow(await collect(model))
        assert (answer.texts, answer.calls) == ([long], [("a", "f", long)])


@pytest.mark.parametrize("finish", ["stop", "content_filter"])
async def test_an_answer_needs_no_end_marker_after_its_reason(finish: str) -> None:
    """
    B080.
    """
    async with serving(frames(text("a"), cc(finish=finish), done=False), max_retries=2) as (server, model):
        answer = follow(await collect(model))
        assert answer.texts == ["a"]
        assert answer.end is not None
        assert len(server.bodies) == 1


@pytest.mark.parametrize("done", [True, False])
async def test_a_stream_that_ends_inside_a_call_fails(done: bool) -> None:
    """
    B085: also when the marker of the end comes without a reason.
    """
    async with serving(frames(call(0, "a", "f", '{"content":"long'), done=done), max_retries=2) as (server, model):
        error, deltas = await fail(model)
        assert error.code == "upstream_disconnected"
        assert follow(deltas).calls == [("a", "f", '{"content":"long')]
        assert len(server.bodies) == 1


@pytest.mark.parametrize(
    "body, content_type",
    [
        (b"", "text/event-stream"),
        (b": a\n\n: b\n\n", "text/event-stream"),
        (DONE, "text/event-stream"),
        (b'{"error":{"message":"no"}}', "application/json"),
        (b"<html><title>Log in</title>", "text/html"),
        (frames({"choices": []}), "text/event-stream"),
    ],
)
async def test_an_empty_or_foreign_answer_is_invalid(body: bytes, content_type: str) -> None:
    """
    B086.
    """
    async with serving(body, body, body) as (server, model):
        server.content_type = content_type
        error, deltas = await fail(model)
        assert (error.code, deltas) == ("upstream_invalid", [])


@pytest.mark.parametrize(
    "frame",
    [
        b'event: error\ndata: {"message":"boom","code":500}\n\n',
        b'data: {"error":{"message":"boom"}}\n\n',
        b'data: {"error":"boom"}\n\n',
        b'data: {"error":{"message":"boom"},"choices":[]}\n\n',
    ],
)
async def test_an_error_in_the_stream_fails_it_and_keeps_what_was_said(frame: bytes) -> None:
    """
    B100, B101.
    """
    async with serving(frames(text("x"), done=False) + frame + DONE, max_retries=2) as (server, model):
        error, deltas = await fail(model)
        assert "boom" in error.message
        assert follow(deltas).texts == ["x"]
        assert len(server.bodies) == 1


async def test_a_reset_after_output_began_is_not_retried() -> None:
    """
    B104.
    """

    async def reset(request: web.Request, write: Write) -> None:
        await write(frames(text("Hel"), done=False))
        assert request.transport is not None
        request.transport.close()

    async with serving(reset, frames(text("Hello"), cc(finish="stop")), max_retries=2) as (server, model):
        error, deltas = await fail(model)
        assert error.code == "upstream_disconnected"
        assert follow(deltas).texts == ["Hel"]
        assert len(server.bodies) == 1


async def test_a_failure_before_any_output_is_announced_and_retried() -> None:
    """
    B106.
    """
    began = frames(cc({"role": "assistant", "content": ""}), text("\n"), call(0, "a", "f", ""), done=False)
    good = frames(text("hi"), cc(finish="stop"))
    async with serving(b"HTTP 503{}", began, good, max_retries=2, retry_base_s=0.01) as (server, model):
        deltas = await collect(model)
        assert [delta.attempt for delta in deltas if isinstance(delta, Retrying)] == [1, 2]
        assert follow(deltas).texts == ["hi"]
        assert server.bodies[0] == server.bodies[2]


async def test_silence_ends_the_stream_though_comments_come() -> None:
    """
    B107.
    """

    async def heartbeat(request: web.Request, write: Write) -> None:
        await write(frames(text("a"), done=False))
        while True:
            await write(b": hb\n\n")
            await asyncio.sleep(0)

    async with serving(heartbeat, idle_timeout_s=0.2) as (server, model):
        error, deltas = await fail(model)
        assert error.code == "upstream_idle"
        assert follow(deltas).texts == ["a"]
        await soon(server.closed.wait())


async def hang(request: web.Request, write: Write) -> None:
    await write(frames(text("a"), cc(finish="stop"), done=False))
    await asyncio.Event().wait()


async def test_a_server_that_neither_reports_usage_nor_ends_holds_the_answer_only_shortly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat, "USAGE_WAIT_S", 0.05)
    async with serving(hang) as (server, model):
        assert follow(await collect(model)).end == Ended()
        await soon(server.closed.wait())


@pytest.mark.parametrize("rest", [b"data: {broken\n\n", b"data: [1]\n\n", b'data: {"choices": [', b"data: \xff\n\n"])
async def test_what_breaks_behind_the_reason_breaks_nothing(rest: bytes) -> None:
    async with serving(frames(text("a"), cc(finish="stop"), done=False) + rest) as (_, model):
        answer = follow(await collect(model))
        assert (answer.texts, answer.end) == (["a"], Ended())


async def test_an_error_behind_the_reason_is_an_error() -> None:
    body = frames(text("a"), cc(finish="stop"), {"error": {"message": "boom"}})
    async with serving(body) as (_, model):
        error, _ = await fail(model)
        assert error.message == "boom"


async def test_usage_in_a_chunk_behind_the_reason_is_waited_for() -> None:
    async with serving(frames(text("a", "stop"), {"choices": [], "usage": USAGE})) as (_, model):
        assert follow(await collect(model)).end == Ended("completed", Usage(7, 5, 12))


async def test_the_bound_that_was_asked_for_tells_a_cut_call() -> None:
    """
    B075.
    """
    body = frames(call(0, "a", "f", '{"path":"a'), cc(finish="tool_calls"), {"choices": [], "usage": USAGE})
    async with serving(body) as (server, model):
        answer = follow(await collect(model, request=attrs.evolve(REQUEST, max_output_tokens=5)))
        assert answer.end == Ended("max_output_tokens", Usage(7, 5, 12))
        assert server.bodies[0]["max_completion_tokens"] == 5


async def test_leaving_the_stream_closes_the_connection_at_once() -> None:
    async def stall(request: web.Request, write: Write) -> None:
        await write(frames(text("a"), done=False))
        await asyncio.Event().wait()

    async with serving(stall, stall) as (server, model):
        async with contextlib.aclosing(model.stream(REQUEST)) as stream:
            assert await soon(anext(stream)) == ItemAdded(0, "message")
        await soon(server.closed.wait())
        server.closed.clear()
        started = asyncio.Event()

        async def follow_stream() -> None:
            async with contextlib.aclosing(model.stream(REQUEST)) as stream:
                async for _ in stream:
                    started.set()

        task = asyncio.create_task(follow_stream())
        await soon(started.wait())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(task)
        await soon(server.closed.wait())
