"""
Content of Chat Completions messages: parts, tool outputs, and user messages that become one. Pure.
"""

from collections.abc import Sequence
from typing import Any

from agent_harness.config import ProviderSettings
from agent_harness.protocol.items import FunctionCallOutput, InputFile, InputImage, Message, Part, Refusal

__all__ = ["merge_user_messages", "read_output", "text_of", "user_message"]


def user_message(message: Message) -> dict[str, Any]:
    parts = [_user_part(part) for part in message.content]
    if not parts:
        return {"role": "user", "content": ""}
    if len(parts) == 1 and parts[0]["type"] == "text":
        return {"role": "user", "content": parts[0]["text"]}
    return {"role": "user", "content": parts}


def _user_part(part: Part) -> dict[str, Any]:
    value = _show(part)
    return {"type": "text", "text": value} if isinstance(value, str) else value


def read_output(output: FunctionCallOutput, settings: ProviderSettings) -> tuple[str, list[dict[str, Any]]]:
    """
    What the ``tool`` message says, and the parts that must be shown in a user message.
    """
    head = "Error: " if output.is_error else ""
    if isinstance(output.output, str):
        return head + output.output, []
    lines: list[str] = []
    media: list[dict[str, Any]] = []
    count = 0
    for part in output.output:
        value = _show(part)
        if isinstance(value, str):
            lines.append(value)
            continue
        count += 1
        name = f"{'image' if isinstance(part, InputImage) else 'file'} {count} of the output of {output.call_id}"
        if settings.tool_output_parts:
            lines.append(f"[{name}: see the user message below]")
            media += [{"type": "text", "text": f"[{name}]"}, value]
        else:
            lines.append(f"[{name}: left out, the model server takes only text from tools]")
    return head + "\n".join(lines), media


def _show(part: Part) -> dict[str, Any] | str:
    """
    A part as this dialect has it: text as a string, an image or file as a content part, or a line that stands for it.
    """
    if isinstance(part, InputImage):
        if part.image_url is None:
            return "[an image by file id, which Chat Completions cannot show]"
        detail = {} if part.detail is None else {"detail": part.detail}
        return {"type": "image_url", "image_url": {"url": part.image_url, **detail}}
    if isinstance(part, InputFile):
        return _show_file(part)
    return text_of(part)


def _show_file(part: InputFile) -> dict[str, Any] | str:
    data, url = part.file_data, part.file_url
    if data is None and url is not None and url.startswith("data:"):
        data = url
    file = {"file_data": data, "file_id": part.file_id, "filename": part.filename}
    if data is None and part.file_id is None:
        return f"[file {part.filename or ''} at {url}]".replace("  ", " ") if url else "[an empty file]"
    return {"type": "file", "file": {name: value for name, value in file.items() if value is not None}}


def text_of(part: Part) -> str:
    if isinstance(part, Refusal):
        return part.refusal
    return "" if isinstance(part, InputImage | InputFile) else part.text


def merge_user_messages(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """
    *messages* with neighbouring user messages made one: texts with an empty line between, anything else as one list.
    """
    merged: list[dict[str, Any]] = []
    for message in messages:
        if not merged or message["role"] != "user" or merged[-1]["role"] != "user":
            merged.append(message)
            continue
        left, right = merged[-1]["content"], message["content"]
        if isinstance(left, str) and isinstance(right, str):
            content: Any = f"{left}\n\n{right}"
        else:
            content = [*_as_parts(left), *_as_parts(right)]
        merged[-1] = {"role": "user", "content": content}
    return merged


def _as_parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
