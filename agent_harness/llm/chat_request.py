"""
From a `Request` to the body of a Chat Completions call. Pure, and the same bytes for the same request.

====================================  ==================================================================================
in the transcript                     in ``messages``
====================================  ==================================================================================
instructions                          the first message, with the provider's ``system_role``
a user message                        ``content`` is a string for one text, else a list of parts
an answer of the model                ONE assistant message: its texts as a string (``""`` when there is none: llama.cpp
                                      refuses null), its calls, and its reasoning under the key it came under
an output                             one ``tool`` message, always a string; several texts are joined by line feeds
an image or file in an output         a line of text in its place, and itself in one user message behind the answer's
                                      last output: a ``tool`` message takes only text, and nothing may stand between.
                                      Without ``tool_output_parts`` the line says that it was left out
an image by file id, a file by URL    a line of text: Chat Completions has no form for them
neighbouring user messages            one message, with ``merge_user_messages``
====================================  ==================================================================================

Reasoning goes back only to the provider and model that wrote it; by default always, since DeepSeek, Kimi and GLM want
it in every later request, and what is taken out again costs the prompt cache. ``extra_body`` wins over every field but
``messages`` and ``stream``; a null in it takes the field out, for servers that refuse one (``stream_options``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agent_harness.config import ProviderSettings
from agent_harness.llm.base import Request
from agent_harness.llm.chat_parts import merge_user_messages, read_output, text_of, user_message
from agent_harness.llm.strict_json import encode_strict
from agent_harness.protocol.blocks import Block
from agent_harness.protocol.items import FunctionCall, Message, Provenance
from agent_harness.protocol.tools import NamedChoice, Tool

__all__ = ["REASONING_KEYS", "encode_body", "output_limit"]

REASONING_KEYS = ("reasoning_content", "reasoning")
"""
Keys under which servers stream reasoning: DeepSeek's, and that of OpenRouter, vLLM and Ollama.
"""

_LIMIT_FIELDS = ("max_completion_tokens", "max_tokens")


def encode_body(request: Request, settings: ProviderSettings) -> bytes:
    """
    The JSON body for *request*. Uses and extends ``request.cache``.
    """
    fields = encode_strict(_build_fields(request, settings))
    return b"".join((fields[:-1], b',"messages":[', *_encode_messages(request, settings), b"]}"))


def output_limit(request: Request, settings: ProviderSettings) -> int | None:
    """
    The bound on output tokens that the request asks for, by the agent or by ``extra_body``.
    """
    bounds = (request.max_output_tokens, *(settings.extra_body.get(name) for name in _LIMIT_FIELDS))
    return next((bound for bound in bounds if isinstance(bound, int) and not isinstance(bound, bool)), None)


# The fields beside the messages.


def _build_fields(request: Request, settings: ProviderSettings) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "model": request.model or settings.model,
        "stream_options": {"include_usage": True},
        "temperature": request.temperature,
        "top_p": request.top_p,
        settings.max_tokens_field: request.max_output_tokens,
        "reasoning_effort": (request.reasoning or {}).get("effort"),
        "verbosity": (request.text or {}).get("verbosity"),
        "response_format": _response_format((request.text or {}).get("format")),
    }
    if request.tools:
        # OpenAI refuses both fields where no tools are offered.
        choice = request.tool_choice
        fields["tools"] = [_tool(tool) for tool in request.tools]
        # With tools "auto" is what every server does unasked; llama-cpp-python cannot stream when it is asked for it.
        fields["tool_choice"] = (
            _named(choice) if isinstance(choice, NamedChoice) else None if choice == "auto" else choice
        )
        fields["parallel_tool_calls"] = request.parallel_tool_calls
    fields.update(settings.extra_body)
    fields.pop("messages", None)
    fields["stream"] = True
    return {name: value for name, value in fields.items() if value is not None}


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    # A null schema is refused by some servers, and a missing `strict` is read as true by others.
    function["parameters"] = tool.schema
    function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _named(choice: NamedChoice) -> dict[str, Any]:
    return {"type": "function", "function": {"name": choice.name}}


def _response_format(given: Any) -> Any:
    """
    The Responses API's ``text.format`` in this dialect, which nests what the schema needs below ``json_schema``.
    """
    if not isinstance(given, Mapping) or given.get("type") == "text":
        return None
    if given.get("type") != "json_schema" or "json_schema" in given:
        return given
    schema = {name: value for name, value in given.items() if name != "type" and value is not None}
    return {"type": "json_schema", "json_schema": schema}


# The messages.


def _encode_messages(request: Request, settings: ProviderSettings) -> list[bytes | bytearray]:
    """
    The messages as bytes, the kept ones first. The instructions stand before the first block's, and so in the key: what
    was kept with other instructions is of no use.
    """
    cache = request.cache
    form = "chat" if settings.tool_output_parts else "chat, outputs as text"
    key = (form, request.provider, request.model or settings.model or "", request.instructions or "")
    stable = _count_stable(request, settings)
    if cache.key != key or cache.count > stable:
        cache.reset(key)
    if stable > cache.count:
        new = _encode_range(request, settings, cache.count, stable)
        if cache.data:
            cache.data += b","
        cache.data += new
        cache.count = stable
    tail = _encode_range(request, settings, stable, len(request.blocks))
    return [cache.data, b"," if cache.data and tail else b"", tail]


def _count_stable(request: Request, settings: ProviderSettings) -> int:
    """
    How many blocks give the same bytes in every later request: the closed ones, without those that lose their reasoning
    when their turn is over, and without a user message that the next one will be joined to.
    """
    blocks, stable = request.blocks, request.closed
    if settings.replay_reasoning_content == "turn":
        for index in range(_last_user(blocks) + 1, stable):
            if _find_reasoning(blocks[index], request, settings):
                stable = index
                break
    if settings.merge_user_messages:
        while stable and _ends_as_user(blocks[stable - 1], settings) and _begins_as_user(blocks, stable):
            stable -= 1
    return stable


def _last_user(blocks: Sequence[Block]) -> int:
    return next((index for index in range(len(blocks) - 1, -1, -1) if blocks[index].is_user), -1)


def _begins_as_user(blocks: Sequence[Block], index: int) -> bool:
    return index >= len(blocks) or blocks[index].is_user


def _ends_as_user(block: Block, settings: ProviderSettings) -> bool:
    return block.is_user or any(read_output(output, settings)[1] for output in block.outputs)


def _encode_range(request: Request, settings: ProviderSettings, start: int, end: int) -> bytes:
    """
    The messages of ``blocks[start:end]`` as bytes, behind the instructions if it is the first range.
    """
    blocks, replay = request.blocks, settings.replay_reasoning_content
    first_replayed = {"never": len(blocks), "always": 0, "turn": _last_user(blocks) + 1}[replay]
    messages: list[dict[str, Any]] = []
    if start == 0 and request.instructions:
        messages.append({"role": settings.system_role, "content": request.instructions})
    for index in range(start, end):
        block = blocks[index]
        if block.is_user:
            messages += [user_message(item) for item in block.items if isinstance(item, Message)]
        else:
            reasoning = _find_reasoning(block, request, settings) if index >= first_replayed else {}
            messages += _answer_messages(block, reasoning, settings)
    if settings.merge_user_messages:
        messages = merge_user_messages(messages)
    return b",".join(encode_strict(message) for message in messages)


def _find_reasoning(block: Block, request: Request, settings: ProviderSettings) -> dict[str, str]:
    """
    The answer's reasoning by the key it came under, as far as it is this provider's and model's own.
    """
    found: dict[str, str] = {}
    for item in block.items:
        own = item.provenance
        if own is None or not _is_own(own, request, settings):
            continue
        for key in REASONING_KEYS:
            text = own.data.get(key)
            if isinstance(text, str):
                found[key] = found.get(key, "") + text
    return found


def _is_own(own: Provenance, request: Request, settings: ProviderSettings) -> bool:
    return own.provider == request.provider and own.model in (request.model or "", request.model or settings.model)


def _answer_messages(block: Block, reasoning: Mapping[str, str], settings: ProviderSettings) -> list[dict[str, Any]]:
    texts = ["".join(text_of(part) for part in item.content) for item in block.items if isinstance(item, Message)]
    calls = [_call(item) for item in block.items if isinstance(item, FunctionCall)]
    answer: dict[str, Any] = {"role": "assistant", "content": "\n\n".join(text for text in texts if text), **reasoning}
    if calls:
        answer["tool_calls"] = calls
    messages, shown = [answer], []
    for output in block.outputs:
        text, media = read_output(output, settings)
        messages.append({"role": "tool", "tool_call_id": output.call_id, "content": text})
        shown += media
    if shown:
        messages.append({"role": "user", "content": shown})
    return messages


def _call(item: FunctionCall) -> dict[str, Any]:
    return {
        "id": item.call_id,
        "type": "function",
        "function": {"name": item.name, "arguments": item.arguments},
    }
