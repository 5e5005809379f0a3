"""
Making, reading and listing sessions.
"""

import pytest

from agent_harness.llm.scripted import call, say
from agent_harness.version import VERSION
from tests.support import TOOL, Talk, heard

SNAPSHOT = [
    "id", "object", "status", "created_at", "updated_at", "agent", "metadata", "response_id", "required_actions",
    "queued", "seq", "usage", "last_error", "items",
]  # fmt: skip

PAST = [
    {"type": "message", "role": "user", "content": "what is widget 42?"},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I look."}]},
    {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": '{"widget_id": 42}'},
    {"type": "function_call_output", "call_id": "c1", "output": "blue"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is blue."}]},
]


async def test_an_empty_body_makes_an_idle_session_of_the_default_model(serve):
    api = await serve(say("hi"))
    for options in ({"json": {}}, {}):
        answer = await api.ask("POST", "/v1/sessions", **options)
        assert answer.status == 201
        body = answer.body
        assert list(body) == SNAPSHOT
        assert body["id"].startswith("sess_") and body["object"] == "session" and body["status"] == "idle"
        assert isinstance(body["created_at"], int) and body["created_at"] == body["updated_at"]
        assert (
            body["metadata"] == {} and body["required_actions"] == [] and body["queued"] == [] and body["items"] == []
        )
        assert body["response_id"] is body["usage"] is body["last_error"] is None
        assert body["seq"] == 0
        assert body["agent"]["max_model_calls"] == 50 and body["agent"]["tool_timeout_s"] == 3600
        assert body["agent"]["model"] is None and body["agent"]["tools"] == []


async def test_the_agent_is_copied_into_the_session_and_used_by_its_model_calls(serve):
    api = await serve(say("hi"))
    agent = {
        "name": "clerk", "model": "m-1", "instructions": "Be brief.", "tools": [TOOL], "tool_choice": "auto",
        "parallel_tool_calls": False, "temperature": 0.5, "top_p": 1, "max_output_tokens": 99,
        "reasoning": {"effort": "low"}, "text": {"verbosity": "low"}, "max_model_calls": 3, "tool_timeout_s": None,
    }  # fmt: skip
    talk = Talk(api, (await api.create(agent=agent, metadata={"case": "7"}))["id"])
    kept = await talk.snapshot()
    assert kept["metadata"] == {"case": "7"}
    for name in set(agent) - {"tools"}:
        assert kept["agent"][name] == agent[name], name
    assert kept["agent"]["tools"][0]["name"] == "look_up"
    assert "base_url" not in kept["agent"] and "api_key" not in kept["agent"]
    await talk.turn()
    request = api.model.requests[0]
    assert (request.model, request.instructions, request.temperature, request.top_p) == ("m-1", "Be brief.", 0.5, 1)
    assert (request.max_output_tokens, request.parallel_tool_calls, request.tool_choice) == (99, False, "auto")
    assert dict(request.reasoning) == {"effort": "low"} and dict(request.text) == {"verbosity": "low"}
    assert [tool.name for tool in request.tools] == ["look_up"]
    assert request.session_id == talk.id


async def test_null_for_an_optional_key_means_absent(serve):
    api = await serve()
    body = await api.create(agent={"name": None, "tools": None, "max_model_calls": None}, metadata=None, items=None)
    assert body["agent"]["max_model_calls"] == 50 and body["agent"]["tools"] == [] and body["items"] == []
    assert (await api.create(agent=None))["agent"]["name"] is None


async def test_metadata_takes_16_keys_of_64_and_512_characters(serve):
    api = await serve()
    metadata = {f"{n:064d}": "é" * 512 for n in range(16)}
    assert (await api.create(metadata=metadata))["metadata"] == metadata
    for bad, param in (
        ({str(n): "" for n in range(17)}, "metadata"),
        ({"k": "x" * 513}, "metadata.k"),
        ({"k": 1}, "metadata.k"),
        ([], "metadata"),
    ):
        await api.refused("POST", "/v1/sessions", json={"metadata": bad}, status=400, code="invalid_value", param=param)


async def test_items_given_at_create_are_the_past_of_the_first_turn(serve):
    api = await serve(say("still blue"))
    body = await api.create(items=PAST)
    assert [item["type"] for item in body["items"]] == [item["type"] for item in PAST]
    prefixes = ["msg", "rs", "fc", "fco", "msg"]
    assert [item["id"].partition("_")[0] for item in body["items"]] == prefixes
    assert all(item["response_id"] is None and item["created_at"] for item in body["items"])
    assert [item["status"] for item in body["items"]] == ["completed"] * 5
    assert [item.get("origin") for item in body["items"]] == ["client", None, None, "client", "model"]
    assert body["items"][0]["content"] == [{"type": "input_text", "text": "what is widget 42?"}]
    assert body["items"][3]["is_error"] is False
    assert (body["status"], body["response_id"], body["seq"]) == ("idle", None, 0)
    assert api.model.requests == []
    await Talk(api, body["id"]).turn("and now?")
    assert heard(api.model, 0) == [
        {"type": "message", "role": "user", "content": "what is widget 42?"},
        {"type": "reasoning"},
        {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": '{"widget_id": 42}'},
        {"type": "function_call_output", "call_id": "c1", "output": "blue"},
        {"type": "message", "role": "assistant", "content": "It is blue."},
        {"type": "message", "role": "user", "content": "and now?"},
    ]


async def test_a_call_in_items_without_output_is_closed_by_the_harness(serve):
    api = await serve(say("ok"))
    talk = Talk(api, (await api.create(items=PAST[:3]))["id"])
    items = await talk.items()
    assert [item["type"] for item in items][-2:] == ["function_call", "function_call_output"]
    assert items[2]["status"] == "incomplete"
    assert (items[3]["origin"], items[3]["is_error"], items[3]["call_id"]) == ("harness", True, "c1")
    body = {"type": "function_call_output", "data": {"call_id": "c1", "output": "late"}}
    error = await talk.refused(body, status=409, code="call_closed", param="data.call_id")
    assert error["closed_by"] == "harness"
    await talk.turn()
    sent = heard(api.model, 0)
    assert [item["type"] for item in sent[-3:]] == ["function_call", "function_call_output", "message"]


async def test_a_call_in_items_with_an_error_output_has_failed(serve):
    api = await serve()
    output = {"type": "function_call_output", "call_id": "c1", "output": "boom", "is_error": True}
    items = (await api.create(items=[*PAST[:3], output]))["items"]
    assert (items[2]["status"], items[3]["is_error"], items[3]["origin"]) == ("failed", True, "client")


async def test_the_call_id_of_a_past_call_is_not_taken_twice(serve):
    api = await serve(call("look_up", '{"widget_id": 1}', "c1"), say("done"))
    talk = await api.open(items=PAST)
    await talk.park()
    (action,) = (await talk.snapshot())["required_actions"]
    assert action["call_id"] != "c1" and 1 <= len(action["call_id"]) <= 64
    await talk.result(action["call_id"], "red")
    await talk.stream.until_status("idle")
    outputs = [item for item in heard(api.model, 1) if item["type"] == "function_call_output"]
    assert [(item["call_id"], item["output"]) for item in outputs] == [("c1", "blue"), (action["call_id"], "red")]


@pytest.mark.parametrize(
    "items, code, param",
    [
        ([PAST[3]], "invalid_value", "items[0].call_id"),
        ([PAST[3], PAST[2]], "invalid_value", "items[0].call_id"),
        ([PAST[2], PAST[2]], "invalid_value", "items[1].call_id"),
        ([PAST[2], PAST[3], PAST[3]], "invalid_value", "items[2].call_id"),
        ([{**PAST[2], "arguments": "[1]"}], "invalid_value", "items[0].arguments"),
        ([{**PAST[2], "arguments": {}}], "invalid_value", "items[0].arguments"),
        ([{**PAST[2], "name": "a b"}], "invalid_value", "items[0].name"),
        ([{**PAST[2], "call_id": ""}], "invalid_value", "items[0].call_id"),
        ([{**PAST[2], "call_id": "c" * 65}], "invalid_value", "items[0].call_id"),
        ([{**PAST[2], "id": "fc_1"}], "unknown_field", "items[0].id"),
        ([{**PAST[0], "status": "completed"}], "unknown_field", "items[0].status"),
        ([{**PAST[0], "response_id": None, "created_at": 1}], "unknown_field", "items[0].created_at"),
        ([PAST[0], {"role": "user", "content": "x"}], "missing_field", "items[1].type"),
        ([{"type": "item_reference"}], "invalid_value", "items[0].type"),
        ([{"type": "message", "role": "system", "content": "x"}], "invalid_value", "items[0].role"),
        ([{"type": "message", "role": "user", "content": [{"type": "output_text", "text": "x"}]}],
         "invalid_value", "items[0].content[0].type"),
        ([{"type": "message", "role": "assistant", "content": [{"type": "input_text", "text": "x"}]}],
         "invalid_value", "items[0].content[0].type"),
        ({}, "invalid_value", "items"),
        (["x"], "invalid_value", "items[0]"),
    ],
)  # fmt: skip
async def test_items_that_are_no_transcript_are_refused_with_their_path(serve, items, code, param):
    api = await serve()
    await api.refused("POST", "/v1/sessions", json={"items": items}, status=400, code=code, param=param)
    assert (await api.get("/v1/sessions"))["data"] == []


async def test_an_agent_by_name_that_the_server_does_not_have_is_not_found(serve):
    api = await serve()
    body = {"agent_id": "clerk"}
    await api.refused("POST", "/v1/sessions", json=body, status=404, code="unknown_agent", param="agent_id")


async def test_a_client_can_never_name_a_url(serve):
    api = await serve()
    for name in ("base_url", "url", "api_key", "headers"):
        body = {"agent": {name: "http://203.0.113.1/v1"}}
        await api.refused("POST", "/v1/sessions", json=body, status=400, code="unknown_field", param=f"agent.{name}")


async def test_a_snapshot_can_leave_its_items_out(serve):
    api = await serve()
    body = await api.create(items=PAST)
    short = await api.get(f"/v1/sessions/{body['id']}?include_items=false")
    assert list(short) == SNAPSHOT[:-1]
    assert (
        await api.get(f"/v1/sessions/{body['id']}?include_items=true")
        == body
        == await api.get(f"/v1/sessions/{body['id']}")
    )


async def test_sessions_are_listed_newest_first_in_pages_without_items(serve):
    api = await serve()
    assert await api.get("/v1/sessions") == {
        "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False,
    }  # fmt: skip
    ids = [(await api.create(items=PAST))["id"] for _ in range(23)]
    page = await api.get("/v1/sessions")
    assert list(page) == ["object", "data", "first_id", "last_id", "has_more"]
    assert [row["id"] for row in page["data"]] == ids[:2:-1] and page["has_more"] is True
    assert (page["first_id"], page["last_id"]) == (ids[-1], ids[3])
    assert all("items" not in row and row["object"] == "session" for row in page["data"])
    last = await api.get(f"/v1/sessions?after={page['last_id']}")
    assert [row["id"] for row in last["data"]] == ids[2::-1] and last["has_more"] is False
    whole = await api.get("/v1/sessions?limit=100&order=asc")
    assert [row["id"] for row in whole["data"]] == ids and whole["has_more"] is False
    exact = await api.get(f"/v1/sessions?limit=1&order=asc&after={ids[-2]}")
    assert [row["id"] for row in exact["data"]] == ids[-1:] and exact["has_more"] is False
    end = await api.get(f"/v1/sessions?order=asc&after={ids[-1]}")
    assert (end["data"], end["first_id"], end["last_id"], end["has_more"]) == ([], None, None, False)


@pytest.mark.parametrize("tail", ["", "/{id}/items", "/{id}/responses"])
async def test_bad_page_parameters_are_refused_and_unknown_ones_ignored(serve, tail):
    api = await serve()
    path = "/v1/sessions" + tail.format(id=(await api.create())["id"])
    for limit in ("0", "101", "-1", "", "x", "1.5", "%2B1", "1e1", "9" * 400, "%D9%A1", "null"):
        await api.refused("GET", f"{path}?limit={limit}", status=400, code="invalid_value", param="limit")
    for order in ("up", "", "ASC"):
        await api.refused("GET", f"{path}?order={order}", status=400, code="invalid_value", param="order")
    for after in ("nope", "", "%00"):
        await api.refused("GET", f"{path}?after={after}", status=400, code="invalid_value", param="after")
    assert (await api.get(f"{path}?before=x&colour=blue&limit=1"))["object"] == "list"


async def test_health_tells_version_and_counts(serve):
    api = await serve(call("look_up", "{}", "c1"), say("done"))
    empty = await api.get("/health")
    assert empty["version"] == VERSION and empty["sessions"] == 0
    talk = await api.open()
    await talk.park()
    busy = await api.get("/health")
    assert busy["sessions"] == 1 and busy["running_turns"] == 1


async def test_head_answers_like_get_without_a_body(serve):
    api = await serve()
    session_id = (await api.create())["id"]
    for path in ("/health", "/v1/sessions", f"/v1/sessions/{session_id}", f"/v1/sessions/{session_id}/items"):
        answer = await api.ask("HEAD", path)
        assert (answer.status, answer.raw) == (200, b"")
    assert (await api.ask("HEAD", "/v1/sessions/sess_none")).status == 404
    assert (await api.ask("HEAD", f"/v1/sessions/{session_id}/stream")).status == 405


async def test_ids_are_random_and_bear_their_kind(serve):
    api = await serve(call("look_up", '{"widget_id": 1}', "c1"), say("done"))
    talk = await api.open()
    answer = await talk.park()
    assert answer["item_id"].startswith("msg_") and answer["response_id"].startswith("resp_")
    result = await talk.result("c1")
    assert result["item_id"].startswith("fco_")
    await talk.stream.until_status("idle")
    ids = [item["id"] for item in await talk.items()]
    assert [name.partition("_")[0] for name in ids] == ["msg", "fc", "fco", "msg"]
    assert len({*ids, talk.id, answer["response_id"]}) == 6
    assert all(len(name.partition("_")[2]) >= 20 for name in ids)
