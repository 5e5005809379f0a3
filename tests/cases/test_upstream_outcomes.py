"""
Streams that end badly or oddly, one row each: what a server sends, and what becomes of the turn.
"""

from typing import Any

import orjson
import pytest

from agent_harness.testing.strict import Dialect
from tests.cases.rig import DIALECTS, chat_stream, frame
from tests.support import types

ANSWER = {"text": "done"}
ENDS = ("response.completed", "response.failed", "response.incomplete", "response.cancelled")


def outcomes() -> dict[str, tuple[Dialect, dict[str, Any], str, str, str]]:
    """
    What a server sends, and what becomes of it: the turn's status, its code or reason, and the text that is kept.
    """
    said, half = {"content": "x"}, {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "look"}}]}
    half["tool_calls"][0]["function"]["arguments"] = '{"path":"a","content":"abc'
    whole = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "look", "arguments": '{"path":"x"}'}}]}
    begin = [
        frame({"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "x"}),
    ]
    item = {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "look", "arguments": ""}
    cut_call = [
        frame({"type": "response.output_item.added", "output_index": 0, "item": item}),
        frame(
            {"type": "response.function_call_arguments.delta", "output_index": 0, "item_id": "fc_1", "delta": '{"a":'}
        ),
    ]
    usage = {"prompt_tokens": 1, "completion_tokens": 5, "total_tokens": 6}
    incomplete = {"incomplete_details": {"reason": "max_output_tokens"}, "status": "incomplete"}
    boom = {"message": "boom", "code": 500}

    def chat(*stream: str, **extra: Any) -> Any:
        return {"raw": list(stream), **extra}

    open_end = {"finish": None, "done": False}
    failed, bad, cut = ("failed", "provider_unavailable"), ("failed", "upstream_invalid"), "upstream_disconnected"
    table: dict[str, Any] = {
        "B075 cut, called tool_calls": (
            "chat",
            chat(*chat_stream(half, done=False), frame({"choices": [], "usage": usage}), "data: [DONE]\n\n"),
            "incomplete",
            "max_output_tokens",
            "",
        ),
        "B076 whole, but length": (
            "chat",
            chat(*chat_stream(whole, finish="length")),
            "incomplete",
            "max_output_tokens",
            "",
        ),
        "B077 half a call": (
            "responses",
            chat(*cut_call, frame({"type": "response.incomplete", "response": incomplete})),
            "incomplete",
            "max_output_tokens",
            "",
        ),
        "B079 filter": ("chat", chat(*chat_stream(said, finish="content_filter")), "incomplete", "content_filter", "x"),
        "B079 half a call": (
            "chat",
            chat(*chat_stream(half, finish="content_filter")),
            "incomplete",
            "content_filter",
            "",
        ),
        "B080 no end marker": (
            "chat",
            chat(*chat_stream(said, finish="content_filter", done=False)),
            "incomplete",
            "content_filter",
            "x",
        ),
        "B083 usage with text": (
            "chat",
            chat(
                frame({"choices": [{"delta": {"content": "end"}, "finish_reason": "stop"}], "usage": usage}),
                "data: [DONE]\n\n",
            ),
            "completed",
            "",
            "end",
        ),
        "B085 mid call": ("chat", chat(*chat_stream(half, **open_end)), "failed", cut, ""),
        "B085 mid call, responses": ("responses", chat(*cut_call), "failed", cut, ""),
        "B100 no error key": (
            "chat",
            chat(*chat_stream(said, **open_end), frame(boom, "error"), "data: [DONE]\n\n"),
            *failed,
            "x",
        ),
        "B100 flat": ("responses", chat(*begin, frame({"type": "error", **boom}, "error")), *failed, "x"),
        "B100 nested": ("responses", chat(*begin, frame({"type": "error", "error": boom}, "error")), *failed, "x"),
        "B100 failed": (
            "responses",
            chat(*begin, frame({"type": "response.failed", "response": {"error": boom}})),
            *failed,
            "x",
        ),
        "B101 object": ("chat", chat(frame({"error": {"message": "boom"}}), "data: [DONE]\n\n"), "failed", "", ""),
        "B101 string": ("chat", chat(frame({"error": "boom"}), "data: [DONE]\n\n"), "failed", "", ""),
        "B101 beside": ("chat", chat(frame({"error": {"message": "boom"}, "choices": []})), "failed", "", ""),
        "B101 null": ("chat", chat(frame({"error": None}), *chat_stream(said, finish="stop")), "completed", "", "x"),
    }
    for dialect in DIALECTS:
        html = {"headers": {"content-type": "text/html"}}
        document = {"headers": {"content-type": "application/json"}}
        table |= {
            f"B086 nothing {dialect}": (dialect, chat(), *bad, ""),
            f"B086 comments {dialect}": (dialect, chat(": a\n\n", ": b\n\n"), *bad, ""),
            f"B086 end only {dialect}": (dialect, chat("data: [DONE]\n\n"), "failed", "", ""),
            f"B086 json {dialect}": (dialect, chat('{"error":{"message":"boom"}}', **document), "failed", "", ""),
            f"B086 html {dialect}": (dialect, chat("<html>Sign in</html>", **html), *bad, ""),
        }
    return table


@pytest.mark.parametrize("name", outcomes())
async def test_what_a_server_does_is_what_the_turn_says_and_the_next_message_works(play: Any, name: str) -> None:
    """
    B075, B076, B077, B079, B080, B083, B085, B086, B100, B101: one terminal event; text is kept; no call is given to
    the client or sent back; the next request passes STRICT.
    """
    dialect, entry, status, code, kept = outcomes()[name]
    case = await play(dialect, entry, ANSWER, agent={"max_output_tokens": 5}, provider={"max_retries": 0})
    sent = await case.send("go")
    await case.rests()
    record = await case.record(sent)
    assert record["status"] == status
    if status == "incomplete":
        assert record["incomplete_details"] == {"reason": code}
    if status == "failed":
        assert code in ("", record["error"]["code"])
        assert "boom" not in orjson.dumps(entry).decode() or "boom" in record["error"]["message"]
    if name.startswith("B083"):
        assert record["usage"]["total_tokens"] == 6
    told = types(case.stream.frames)
    assert [end for end in told if end in ENDS] == [f"response.{status}"]
    assert "session.status waiting" not in told
    assert await case.texts() == [("user", "go"), *([("assistant", kept)] if kept else [])]
    assert len(await case.requests()) == 1
    assert (await case.says("next"))["status"] == "completed"
    last = (await case.requests())[-1]
    assert (last.status, last.of("call")) == (200, [])
    assert last.of("assistant") == ([(kept,)] if kept else [])
