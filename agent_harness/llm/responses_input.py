"""
From what the transcript keeps to the body of a Responses request. Pure and deterministic: the same items are the same
bytes, so that each request begins with the one before it.

What a provider gave of its own comes back only whole: an answer's reasoning, in stream order, with the ids of what it
led to. Where one piece is missing (another provider or model since, no ``encrypted_content``, an id that another item
has too), the answer goes out without any: OpenAI refuses reasoning without its follower, and an id without its
reasoning.
"""

from collections.abc import Sequence, Set
from typing import Any

import attrs

from agent_harness.config import ProviderSettings
from agent_harness.errors import ModelError
from agent_harness.llm.base import Request
from agent_harness.llm.strict_json import encode_strict
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
)
from agent_harness.protocol.tools import NamedChoice, Tool

__all__ = ["FILE_STAND_IN", "IMAGE_STAND_IN", "build_body", "find_model"]

IMAGE_STAND_IN = "[an image that this model cannot be shown]"
"""What a provider set to take only text as a tool's output reads in place of an image."""

FILE_STAND_IN = "[a file that this model cannot be shown]"
"""The same for a file."""

ID_MAX = 64
"""Longest item id the Responses API takes back, in characters."""

_Sent = dict[str, Any]


def find_model(request: Request, settings: ProviderSettings) -> str:
    """
    The model to ask for.

    Raises:
        ModelError: neither the agent nor the provider names one.
    """
    model = request.model or settings.model
    if not model:
        raise ModelError(
            f"No model is named: set the agent's model, or the model of the provider {settings.name!r}.",
            code="provider_rejected",
        )
    return model


def build_body(request: Request, settings: ProviderSettings) -> bytes:
    """
    The whole body. Fills ``request.cache`` with the bytes of the closed blocks, and encodes only what is new.

    Raises:
        ModelError: no model is named.
    """
    model = find_model(request, settings)
    head = encode_strict(_build_head(request, settings, model))
    # Joined in one go: a long past is copied once.
    return b"".join((head[:-1], b',"input":[', *_build_input(request, settings, model), b"]}"))


def _build_head(request: Request, settings: ProviderSettings, model: str) -> _Sent:
    head: _Sent = {"model": model, "store": False, "stream": True, "include": ["reasoning.encrypted_content"]}
    if request.instructions is not None:
        head["instructions"] = request.instructions
    if request.tools:
        head["tools"] = [_encode_tool(tool) for tool in request.tools]
        # Without tools there is nothing to choose, and the API says so with a 400.
        choice = request.tool_choice
        if isinstance(choice, NamedChoice):
            head["tool_choice"] = {"type": "function", "name": choice.name}
        elif choice is not None:
            head["tool_choice"] = choice
        if request.parallel_tool_calls is not None:
            head["parallel_tool_calls"] = request.parallel_tool_calls
    for key in ("temperature", "top_p", "max_output_tokens", "reasoning", "text"):
        value = getattr(request, key)
        if value is not None:
            head[key] = value
    ours = ("input", "stream")
    return head | {key: value for key, value in settings.extra_body.items() if key not in ours}


def _encode_tool(tool: Tool) -> _Sent:
    described = {} if tool.description is None else {"description": tool.description}
    return {"type": "function", "name": tool.name, **described, "parameters": tool.schema, "strict": tool.strict}


def _build_input(request: Request, settings: ProviderSettings, model: str) -> list[bytes | bytearray]:
    """
    The items of ``input``, joined by commas, in pieces.
    """
    cache, closed = request.cache, request.closed
    merges = settings.merge_user_messages
    if merges:
        # A user message may still grow by the next one.
        while closed and request.blocks[closed - 1].is_user:
            closed -= 1
    key = ("responses", request.provider, model, str(merges), str(settings.tool_output_parts))
    if cache.key != key or cache.count > closed:
        cache.reset(key)
    encoder = _Encoder(request.provider, model, settings, cache.ids)
    for item in encoder.encode(request.blocks[cache.count : closed]):
        cache.data += b",%b" % item if cache.data else item
    cache.count = closed
    encoder.known, encoder.ids = cache.ids, set()
    rest = b",".join(encoder.encode(request.blocks[closed:]))
    return [cache.data, b"," if cache.data and rest else b"", rest]


@attrs.define
class _Encoder:
    """
    Encodes blocks for one provider and model. ``ids`` are the provider's item ids that it sends, ``known`` those that
    were sent before.
    """

    provider: str
    model: str
    settings: ProviderSettings
    ids: set[str]
    known: Set[str] = frozenset()

    def encode(self, blocks: Sequence[Block]) -> list[bytes]:
        """
        The items of *blocks*, each as JSON.
        """
        sent: list[_Sent] = []
        for block in blocks:
            if block.is_user:
                self._add_user(sent, block)
            else:
                sent += self._encode_answer(block)
                sent += [self._encode_output(output) for output in block.outputs]
        return [encode_strict(item) for item in sent]

    def _add_user(self, sent: list[_Sent], block: Block) -> None:
        parts = [_encode_part(part) for item in block.items if isinstance(item, Message) for part in item.content]
        if self.settings.merge_user_messages and sent and sent[-1].get("role") == "user":
            sent[-1]["content"] += parts
        else:
            sent.append({"type": "message", "role": "user", "content": parts})

    def _encode_answer(self, block: Block) -> list[_Sent]:
        given = [self._find_given(item.provenance) for item in block.items]
        replays = self._can_replay(block, given)
        sent: list[_Sent] = []
        has_reasoning = False
        for item, own in zip(block.items, given, strict=True):
            if isinstance(item, Reasoning):
                if replays:
                    has_reasoning = True
                    sent.append(_encode_reasoning(item, own))
                continue
            # An id means nothing without the reasoning before it.
            own_id = own.get("id") if has_reasoning else None
            sent.append(_encode_call(item, own_id) if isinstance(item, FunctionCall) else _encode_said(item, own_id))
        return sent

    def _find_given(self, provenance: Provenance | None) -> _Sent:
        """
        What this provider and model gave with an item, as far as it can go back.
        """
        if provenance is None or (provenance.provider, provenance.model) != (self.provider, self.model):
            return {}
        item_id = provenance.data.get("id")
        if not isinstance(item_id, str) or not 0 < len(item_id) <= ID_MAX:
            return {}
        if any("\ufffd" in value for value in provenance.data.values() if isinstance(value, str)):
            # What was replaced when it was kept is not its provider's own any more.
            return {}
        return dict(provenance.data)

    def _can_replay(self, block: Block, given: Sequence[_Sent]) -> bool:
        """
        Whether the answer's reasoning goes back: all of it, with ids that no other item has. Notes the ids then.
        """
        reasoning = [own for item, own in zip(block.items, given, strict=True) if isinstance(item, Reasoning)]
        if not reasoning or not all(own.get("encrypted_content") for own in reasoning):
            return False
        ids = [own["id"] for own in given if own]
        if len(set(ids)) < len(ids) or not self.ids.isdisjoint(ids) or not set(ids).isdisjoint(self.known):
            return False
        self.ids.update(ids)
        return True

    def _encode_output(self, output: FunctionCallOutput) -> _Sent:
        value: str | list[_Sent]
        error = "Error: " if output.is_error else ""
        if isinstance(output.output, str):
            value = error + output.output
        elif self.settings.tool_output_parts:
            value = [_encode_part(part) for part in output.output]
            if error:
                value.insert(0, {"type": "input_text", "text": error})
        else:
            value = error + "\n".join(_describe_part(part) for part in output.output)
        return {"type": "function_call_output", "call_id": output.call_id, "output": value}


def _encode_reasoning(item: Reasoning, own: _Sent) -> _Sent:
    summary = [{"type": "summary_text", "text": part.text} for part in item.summary]
    return {
        "type": "reasoning",
        "id": own["id"],
        "summary": summary,
        "encrypted_content": own["encrypted_content"],
    }


def _encode_call(item: FunctionCall, own_id: str | None) -> _Sent:
    own = {"id": own_id} if own_id else {}
    return {"type": "function_call", **own, "call_id": item.call_id, "name": item.name, "arguments": item.arguments}


def _encode_said(item: Message, own_id: str | None) -> _Sent:
    own = {"id": own_id, "status": "completed"} if own_id else {}
    parts = [_encode_part(part) for part in item.content if not _is_empty(part)]
    return {"type": "message", **own, "role": "assistant", "content": parts}


def _encode_part(part: Part) -> _Sent:
    if isinstance(part, InputText):
        return {"type": "input_text", "text": part.text}
    if isinstance(part, OutputText):
        # Annotations point into the provider's own tools; it wants the key, not them.
        return {"type": "output_text", "text": part.text, "annotations": []}
    fields = {key: value for key, value in attrs.asdict(part, recurse=False).items() if value is not None}
    return {"type": fields.pop("type"), **fields}


def _is_empty(part: Part) -> bool:
    return (isinstance(part, OutputText) and not part.text) or (isinstance(part, Refusal) and not part.refusal)


def _describe_part(part: Part) -> str:
    if isinstance(part, InputImage):
        return IMAGE_STAND_IN
    if isinstance(part, InputFile):
        return f"{FILE_STAND_IN[:-1]}: {part.filename}]" if part.filename else FILE_STAND_IN
    return part.refusal if isinstance(part, Refusal) else part.text
