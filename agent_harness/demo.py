"""
The demo: the whole journey over HTTP, played as an outside client would, and printed for a person.

Nothing here touches the server's insides; what it prints came over the socket.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp

from agent_harness.protocol.sse import FrameReader

__all__ = ["play_demo"]

TOOL = {
    "type": "function",
    "name": "lookup_widget",
    "description": "Look up a widget by id and return its color.",
    "parameters": {
        "type": "object",
        "properties": {"widget_id": {"type": "integer", "description": "Widget id, e.g. 42."}},
        "required": ["widget_id"],
    },
}

Echo = Callable[[str], None]


async def play_demo(base_url: str, echo: Echo) -> bool:
    """
    Play two turns against the server at *base_url*: one with a tool that runs here, one that recalls its result.

    Returns whether the value, which nobody but the tool knows, came back both times.
    """
    color = f"ultramarine-{secrets.token_hex(2)}"
    async with aiohttp.ClientSession(base_url, timeout=aiohttp.ClientTimeout(total=30)) as client:
        session = await _post(client, "/v1/sessions", {"agent": {"name": "demo"}})
        path = f"/v1/sessions/{session['id']}"
        echo(f"POST /v1/sessions -> {session['id']}\n")
        first = await _play_turn(client, path, "What color is widget 42?", color, echo)
        echo("\nThe second turn attaches no tool: only the transcript can know the answer.\n")
        second = await _play_turn(client, path, "What color was it?", None, echo)
        await client.delete(path)
    done = color in first and color in second
    echo(f"\nTurn 1 said: {first}\nTurn 2 said: {second}")
    echo("The tool ran on the client's side, and its result was remembered." if done else "The result was lost.")
    return done


async def _play_turn(client: aiohttp.ClientSession, path: str, text: str, color: str | None, echo: Echo) -> str:
    """
    Open the stream, send a message, answer its calls, and return what the assistant said. The tool is offered if there
    is a *color* for it to find.
    """
    said: list[str] = []
    posted: list[asyncio.Task[None]] = []
    async with client.get(f"{path}/stream") as response:
        frames = _read_frames(response)
        _show(await anext(frames), echo)
        message = {"type": "message", "data": {"role": "user", "content": text}}
        echo(f"  -> POST {path}/events  {json.dumps(message)}{'  with tools: lookup_widget' if color else ''}")
        await _post(client, f"{path}/events", message | {"tools": [TOOL]} if color else message)
        async for event in frames:
            _show(event, echo)
            item = event.get("item") or {}
            if event["type"] == "response.output_item.done" and item.get("status") == "action_required":
                posted.append(asyncio.create_task(_answer(client, path, item, color, echo)))
            elif event["type"] == "response.output_text.delta":
                said.append(event["delta"])
            elif event["type"] == "session.status" and event["status"] in ("idle", "failed"):
                break
    await asyncio.gather(*posted)
    return "".join(said)


async def _answer(
    client: aiohttp.ClientSession, path: str, call: dict[str, Any], color: str | None, echo: Echo
) -> None:
    """
    Run the tool, here on the client's side, and post its result.
    """
    arguments = json.loads(call["arguments"])
    result = json.dumps({"widget_id": arguments["widget_id"], "color": color})
    body = {"type": "function_call_output", "data": {"call_id": call["call_id"], "output": result}}
    echo(f"  == lookup_widget({call['arguments']}) runs on the client -> {result}")
    echo(f"  -> POST {path}/events  {json.dumps(body)}")
    await _post(client, f"{path}/events", body)


async def _post(client: aiohttp.ClientSession, path: str, body: Any) -> Any:
    async with client.post(path, json=body) as response:
        answer = await response.json()
        if response.status >= 400:
            raise RuntimeError(f"POST {path} was refused: {answer['error']['message']}")
        return answer


async def _read_frames(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    reader = FrameReader()
    async for chunk in response.content.iter_any():
        for frame in reader.feed(chunk):
            if frame.data != b"[DONE]":
                yield json.loads(frame.data)


def _show(event: dict[str, Any], echo: Echo) -> None:
    """
    One line for one frame: its number, its type, and what is new in it.
    """
    item = event.get("item") or {}
    if item:
        detail = f"{item['type']} {item.get('name', item.get('role', ''))} {item['status']}".replace("  ", " ")
        detail += f"  {item['call_id']}" if "call_id" in item else ""
    else:
        detail = str(event.get("delta") or event.get("text") or event.get("arguments") or "")
        detail = f"{event['status']}" if event["type"] == "session.status" else detail
    echo(f"{event['seq']:>4}  {event['type']:<40} {detail}".rstrip())
