"""
The mock model server's queues, captured requests and strictness, over real sockets.
"""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import aiohttp
import pytest

from tests.testing.mock_client import CALL, Mock, join_text, make_body, read_events, soon

BOTH = pytest.mark.parametrize("dialect", ["responses", "chat"])


@BOTH
async def test_a_queue_is_chosen_by_the_last_user_text_then_the_model_then_default(mock: Mock, dialect: str) -> None:
    await mock.script({"text": "by match"}, key="one", match="blue widget")
    await mock.script({"text": "by model"}, key="gpt")
    await mock.script({"text": "by default"})
    matching = [{"role": "user", "content": "a blue widget?"}, {"role": "assistant", "content": "no"}]
    elsewhere = [*matching, {"role": "user", "content": "a red one?"}]

    async def say(text: Any, model: str) -> str:
        return join_text(dialect, (await mock.ask(dialect, text, model=model, stream=True))[1])

    assert await say(elsewhere, "other") == "by default"
    assert await say(elsewhere, "gpt") == "by model"
    assert await say(matching, "gpt") == "by match"
    assert [held["key"] for held in await mock.captured()] == ["default", "gpt", "one"]
    assert [held["body"]["model"] for held in await mock.captured("gpt")] == ["gpt"]


@BOTH
async def test_an_exhausted_queue_answers_500_naming_the_key_unless_a_fallback_is_set(mock: Mock, dialect: str) -> None:
    status, body = await mock.ask(dialect)
    assert (status, body["error"]["code"]) == (500, "mock_queue_exhausted")
    assert "'default'" in body["error"]["message"]
    await mock.script(key="gpt")
    assert "'gpt'" in (await mock.ask(dialect, model="gpt"))[1]["error"]["message"]
    await mock.post("/mock/set_fallback", {"response": {"text": "again"}})
    for _ in range(2):
        assert join_text(dialect, (await mock.ask(dialect, stream=True))[1]) == "again"
    await mock.post("/mock/set_fallback", {"response": None})
    assert (await mock.ask(dialect))[0] == 500


async def test_configuring_a_key_replaces_its_queue(mock: Mock) -> None:
    await mock.script({"text": "old"}, {"text": "old"})
    await mock.script({"text": "new"})
    assert join_text("chat", (await mock.ask("chat", stream=True))[1]) == "new"
    assert (await mock.ask("chat"))[0] == 500


@pytest.mark.parametrize(
    "body,path",
    [
        ({"responses": [{"txt": "a"}]}, "responses[0].txt"),
        ({"responses": [{"text": 1}]}, "responses[0].text"),
        ({"responses": [{"tool_calls": [{"call_id": "a"}]}]}, "responses[0].tool_calls[0].name"),
        ({"responses": [{"recall": "("}]}, "responses[0].recall"),
        ({"responses": [{"raw": [1]}]}, "responses[0].raw[0]"),
        ({"responses": {}}, "responses"),
        ({"strict": {"prefx": False}}, "strict.prefx"),
        ({"strict": {"prefix": 0}}, "strict.prefix"),
        ({"answers": []}, "answers"),
        ([], "body"),
    ],
)
async def test_a_script_with_a_mistake_is_refused_with_its_path(mock: Mock, body: Any, path: str) -> None:
    async with mock.client.post(f"{mock.url}/mock/configure", json=body) as response:
        assert response.status == 400
        assert (await response.json())["error"]["message"].startswith(f"{path}:")


async def test_requests_are_captured_with_path_headers_body_and_status(mock: Mock) -> None:
    await mock.script({"text": "a"})
    await mock.ask("responses", session="sess_1")
    await mock.ask("chat")
    async with mock.client.post(f"{mock.url}/v1/responses", data=b'{"input": NaN}') as response:
        assert response.status == 400
    first, second, third = await mock.captured()
    assert (first["path"], first["status"], first["key"]) == ("/v1/responses", 200, "default")
    assert first["body"] == make_body("responses", "hi")
    assert first["headers"]["x-session-id"] == "sess_1"
    assert (second["path"], second["status"]) == ("/v1/chat/completions", 500)
    assert (third["body"], third["status"], third["key"]) == ('{"input": NaN}', 400, None)


async def test_reset_forgets_everything_and_drops_what_is_parked(mock: Mock) -> None:
    await mock.script({"block": True})
    await mock.script({"text": "b"}, key="gpt", strict=False)
    parked = asyncio.create_task(mock.ask("chat"))
    await soon(mock.get("/gate/pending?wait=1"))
    await mock.post("/mock/reset")
    with pytest.raises(aiohttp.ClientConnectionError):
        await soon(parked)
    assert await mock.captured() == []
    assert await mock.get("/stats") == {"requests": {}, "open": 0, "disconnects": 0, "pending": 0}
    assert (await mock.ask("chat", model="gpt"))[0] == 500


@BOTH
async def test_a_request_that_strict_refuses_uses_up_no_answer(mock: Mock, dialect: str) -> None:
    await mock.script({"text": "a"})
    orphan = {"responses": {"type": "function_call_output", "call_id": "x", "output": ""}}.get(
        dialect, {"role": "tool", "tool_call_id": "x", "content": ""}
    )
    status, body = await mock.ask(dialect, [orphan])
    path = "input[0]" if dialect == "responses" else "messages[0]"
    assert (status, body["error"]["param"]) == (400, path)
    assert body["error"]["message"].startswith(f"STRICT rule 1: {path}")
    assert (await mock.ask(dialect))[0] == 200


@BOTH
async def test_a_session_must_begin_with_the_items_of_its_last_good_request(mock: Mock, dialect: str) -> None:
    await mock.script({"text": "a"}, {"error": "no"}, {"text": "b"}, {"text": "c"}, {"text": "d"})
    one, two, three = ([{"role": "user", "content": text}] for text in ("one", "two", "three"))
    assert (await mock.ask(dialect, one, session="s"))[0] == 200
    assert (await mock.ask(dialect, one + two, session="s"))[0] == 500
    status, body = await mock.ask(dialect, two, session="s")
    assert status == 400
    assert "STRICT rule 9" in body["error"]["message"]
    assert (await mock.ask(dialect, one + three, session="s"))[0] == 200  # the one answered 500 does not count
    assert (await mock.ask(dialect, two, session="other"))[0] == 200
    assert (await mock.ask(dialect, three))[0] == 200  # a request that names no session has no past
    assert (await mock.ask(dialect, one + three, session="s"))[0] == 500


@BOTH
async def test_strictness_is_set_by_key_and_stays_until_it_is_set_again(mock: Mock, dialect: str) -> None:
    await mock.script(
        {"text": "a"}, {"text": "b"}, key="lax", match="lax", strict={"prefix": False, "refuse_nul": True}
    )
    assert (await mock.ask(dialect, "lax one", session="s"))[0] == 200
    assert (await mock.ask(dialect, "lax two", session="s"))[0] == 200
    await mock.script({"text": "c"}, key="lax", match="lax")
    assert (await mock.ask(dialect, "lax \0", session="s"))[0] == 400
    await mock.script({"text": "c"}, key="lax", match="lax", strict=False)
    assert (await mock.ask(dialect, [{"role": "user", "content": "lax", "odd": 1}]))[0] == 200


async def test_reasoning_is_judged_by_what_the_session_was_answered(mock: Mock) -> None:
    await mock.script({"reasoning": "Hm.", "tool_calls": [CALL]}, {"text": "b"}, {"text": "c"})
    fields = {"store": False, "include": ["reasoning.encrypted_content"]}
    user = {"role": "user", "content": "hi"}
    _, body = await mock.ask("responses", [user], session="s", **fields)
    reasoning, call = body["output"]
    output = {"type": "function_call_output", "call_id": "call_1", "output": ""}
    status, refused = await mock.ask("responses", [user, call, output], session="s", **fields)
    assert status == 400
    assert f"required 'reasoning' item: '{reasoning['id']}'" in refused["error"]["message"]
    bare = {key: value for key, value in reasoning.items() if key != "encrypted_content"}
    assert (await mock.ask("responses", [user, bare, call, output], session="s", **fields))[0] == 400
    assert (await mock.ask("responses", [user, reasoning, user, call, output], session="s", **fields))[0] == 400
    assert (await mock.ask("responses", [user, reasoning, call, output], session="s", **fields))[0] == 200


async def test_reasoning_in_a_raw_stream_is_remembered_too(mock: Mock) -> None:
    told = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "E"},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": "{}"},
    ]
    events = [f"data: {json.dumps({'type': 'response.output_item.done', 'item': item})}\n\n" for item in told]
    await mock.script({"raw": ["data: [DONE]\n\n", *events]}, {"text": "b"})
    user = {"role": "user", "content": "hi"}
    await mock.ask("responses", [user], session="s", stream=True, store=False)
    output = {"type": "function_call_output", "call_id": "c1", "output": ""}
    assert (await mock.ask("responses", [user, told[1], output], session="s", store=False))[0] == 400
    assert (await mock.ask("responses", [user, *told, output], session="s", store=False))[0] == 200


async def test_a_large_output_is_taken(mock: Mock) -> None:
    await mock.script({"recall": "needle"})
    items = [
        {"type": "function_call", **CALL},
        {"type": "function_call_output", "call_id": "call_1", "output": "x" * 10_000_000 + "needle"},
    ]
    body = io.BytesIO(json.dumps(make_body("responses", items, stream=True)).encode())
    async with mock.client.post(f"{mock.url}/v1/responses", data=body) as response:
        assert join_text("responses", read_events(await response.text())) == "needle"
