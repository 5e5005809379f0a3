"""
Messages: content, tools, tool_choice.
"""

import pytest

from agent_harness.llm.scripted import call, say
from tests.support import TOOL, heard, user

LOOK = '{"widget_id": 1}'


def tool(name: str, **extra) -> dict:
    return {"type": "function", "name": name, **extra}


def offered(request) -> list[str]:
    return [tool.name for tool in request.tools]


async def test_a_message_to_an_idle_session_starts_its_turn(serve):
    api = await serve(say("hi"))
    talk = await api.open()
    answer = await talk.send("hello")
    assert list(answer) == ["queued", "item_id", "response_id", "seq"]
    assert answer["queued"] is False and answer["seq"] == 0
    await talk.stream.until_status("idle")
    items = await talk.items()
    assert items[0]["id"] == answer["item_id"] and items[0]["response_id"] == answer["response_id"]
    assert items[0]["content"] == [{"type": "input_text", "text": "hello"}]
    assert (items[0]["role"], items[0]["origin"], items[0]["status"]) == ("user", "client", "completed")
    assert (items[1]["role"], items[1]["origin"], items[1]["status"]) == ("assistant", "model", "completed")
    assert items[1]["content"] == [{"type": "output_text", "text": "hi", "annotations": []}]
    assert heard(api.model, 0) == [{"type": "message", "role": "user", "content": "hello"}]


async def test_what_is_read_after_a_202_shows_that_the_turn_has_begun(serve):
    api = await serve(call("look_up", LOOK, "c1"), say("done"))
    talk = await api.open()
    answer = await talk.send(tools=[TOOL])
    snapshot = await talk.snapshot()
    assert snapshot["status"] in ("running", "waiting") and snapshot["response_id"] == answer["response_id"]
    assert snapshot["items"][0]["id"] == answer["item_id"] and snapshot["seq"] > answer["seq"]
    assert (await api.get("/v1/sessions"))["data"][0]["status"] in ("running", "waiting")


async def test_after_seq_of_the_answer_gives_everything_the_message_causes(serve):
    api = await serve(say("one"), say("two"))
    talk = await api.open()
    await talk.turn()
    answer = await talk.send("second")
    stream = await talk.follow(after=answer["seq"], until="idle")
    frames = await stream.rest()
    assert frames[1].id == answer["seq"] + 1 and frames[1].data["item"]["id"] == answer["item_id"]


async def test_parts_are_kept_as_they_are(serve):
    api = await serve(say("hi"))
    talk = await api.open()
    parts = [
        {"type": "input_text", "text": "look:"},
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"},
        {"type": "input_file", "file_id": "file_1", "filename": "a.pdf"},
    ]
    await talk.post({"type": "message", "data": {"role": "user", "content": parts}})
    await talk.stream.until_status("idle")
    assert (await talk.items())[0]["content"] == parts
    (block,) = api.model.requests[0].blocks
    assert [part.type for part in block.items[0].content] == [part["type"] for part in parts]


async def test_the_role_may_be_left_out_and_the_empty_text_is_a_message(serve):
    api = await serve(say("hi"))
    talk = await api.open()
    await talk.post({"type": "message", "data": {"content": ""}})
    await talk.stream.until_status("idle")
    assert heard(api.model, 0) == [{"type": "message", "role": "user", "content": ""}]


async def test_nul_in_a_message_is_replaced_when_kept(serve):
    """B068, for messages."""
    api = await serve(say("a\0b"), say("ok"))
    talk = await api.open()
    await talk.turn("x\0y\tz\n\x1b[31m")
    items = await talk.items()
    assert items[0]["content"][0]["text"] == "x\ufffdy\tz\n\x1b[31m" and items[1]["content"][0]["text"] == "a\ufffdb"
    await talk.turn()
    assert [item["content"] for item in heard(api.model, 1)] == ["x\ufffdy\tz\n\x1b[31m", "a\ufffdb", "hello"]


async def test_both_shapes_of_a_function_are_taken(serve):
    api = await serve(say("hi"))
    talk = await api.open()
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    flat = {
        "type": "function",
        "name": "flat",
        "description": "d",
        "parameters": schema,
        "strict": True,
        "timeout_s": 3,
    }
    inner = {"name": "nested", "description": "d", "parameters": schema, "strict": True}
    bare = {"type": "function", "function": {"name": "bare"}}
    await talk.turn(tools=[flat, {"type": "function", "function": inner, "timeout_s": 4.5}, bare])
    first, second, third = api.model.requests[0].tools
    for one, name, timeout in ((first, "flat", 3), (second, "nested", 4.5)):
        assert (one.name, one.description, dict(one.parameters), one.strict, one.timeout_s) == (
            name,
            "d",
            schema,
            True,
            timeout,
        )
    assert (third.name, third.strict, third.timeout_s) == ("bare", False, None)


async def test_128_tools_can_be_offered_and_names_may_have_64_characters(serve):
    api = await serve(say("hi"))
    talk = await api.open()
    tools = [tool(f"{n:_<60}-aZ{n % 10}") for n in range(128)]
    await talk.turn(tools=tools)
    assert offered(api.model.requests[0]) == [each["name"] for each in tools]
    assert all(len(each["name"]) == 64 for each in tools)
    body = user("x", tools=[*tools, tool("more")])
    await talk.refused(body, status=400, code="invalid_tool", param="tools")


async def test_the_tools_of_agent_and_message_are_offered_together_and_the_message_wins_on_a_name(serve):
    api = await serve(say("one"), say("two"))
    talk = await api.open(agent={"tools": [tool("a", description="agent"), tool("b", description="agent")]})
    await talk.turn(tools=[tool("b", description="message"), tool("c", description="message")])
    await talk.turn()
    first, second = api.model.requests
    assert {each.name: each.description for each in first.tools} == {"a": "agent", "b": "message", "c": "message"}
    assert {each.name: each.description for each in second.tools} == {"a": "agent", "b": "agent"}


async def test_a_messages_tools_hold_for_all_model_calls_of_its_turn_and_no_longer(serve):
    api = await serve(call("look_up", LOOK, "c1"), say("done"), say("next"))
    talk = await api.open()
    await talk.park()
    await talk.result("c1", "blue")
    await talk.stream.until_status("idle")
    await talk.turn("what was it?")
    assert [offered(request) for request in api.model.requests] == [["look_up"], ["look_up"], []]
    assert heard(api.model, 2)[2] == {"type": "function_call_output", "call_id": "c1", "output": "blue"}


async def test_an_empty_list_of_tools_adds_none(serve):
    api = await serve(say("hi"))
    talk = await api.open(agent={"tools": [tool("a")]})
    await talk.turn(tools=[])
    assert offered(api.model.requests[0]) == ["a"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "look_up"}])
async def test_a_forcing_tool_choice_holds_for_the_first_model_call_of_the_turn(serve, choice):
    api = await serve(call("look_up", LOOK, "c1"), say("done"), say("next"))
    talk = await api.open(agent={"tools": [TOOL]})
    await talk.park(tools=None, tool_choice=choice)
    await talk.result("c1")
    await talk.stream.until_status("idle")
    await talk.turn()
    first, second, third = (request.tool_choice for request in api.model.requests)
    assert (first if isinstance(choice, str) else {"type": first.type, "name": first.name}) == choice
    assert second in (None, "auto") and third in (None, "auto")


@pytest.mark.parametrize("choice", ["auto", "none"])
async def test_auto_and_none_hold_for_the_whole_turn(serve, choice):
    api = await serve(call("look_up", LOOK, "c1"), say("done"), say("next"))
    talk = await api.open(agent={"tools": [TOOL]})
    await talk.park(tools=None, tool_choice=choice)
    await talk.result("c1")
    await talk.stream.until_status("idle")
    await talk.turn()
    assert [request.tool_choice for request in api.model.requests] == [choice, choice, None]


async def test_the_agents_forcing_tool_choice_holds_for_the_first_call_of_each_turn(serve):
    api = await serve(call("look_up", LOOK, "c1"), say("done"), say("next"))
    talk = await api.open(agent={"tools": [TOOL], "tool_choice": "required"})
    await talk.park(tools=None)
    await talk.result("c1")
    await talk.stream.until_status("idle")
    await talk.turn()
    assert [request.tool_choice for request in api.model.requests] == ["required", None, "required"]


async def test_the_nested_shape_of_a_named_tool_choice_is_taken(serve):
    api = await serve(say("hi"))
    talk = await api.open()
    await talk.turn(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "look_up"}})
    assert api.model.requests[0].tool_choice.name == "look_up"


BAD_TOOLS = [
    (tool("a b"), "invalid_tool", "tools[0].name"),
    (tool(""), "invalid_tool", "tools[0].name"),
    (tool("a\n"), "invalid_tool", "tools[0].name"),
    (tool("a" * 65), "invalid_tool", "tools[0].name"),
    (tool("é"), "invalid_tool", "tools[0].name"),
    ({"type": "function"}, "invalid_tool", "tools[0].name"),
    ({"type": "function", "function": {}}, "invalid_tool", "tools[0].function.name"),
    ({"type": "function", "function": {"name": "a b"}}, "invalid_tool", "tools[0].function.name"),
    ({"type": "function", "function": "a"}, "invalid_tool", "tools[0].function"),
    ({"name": "a"}, "invalid_tool", "tools[0].type"),
    ({"type": "web_search"}, "invalid_tool", None),
    (tool("a", parameters="x"), "invalid_tool", "tools[0].parameters"),
    (tool("a", strict="yes"), "invalid_tool", "tools[0].strict"),
    (tool("a", timeout_s=0), "invalid_tool", "tools[0].timeout_s"),
    (tool("a", timeout_s="1"), "invalid_tool", "tools[0].timeout_s"),
    (tool("a", colour="red"), "unknown_field", "tools[0].colour"),
    ({"type": "function", "function": {"name": "a", "timeout_s": 1}}, "unknown_field", "tools[0].function.timeout_s"),
    ("a", "invalid_tool", "tools[0]"),
]


@pytest.mark.parametrize("bad, code, param", BAD_TOOLS)
async def test_a_tool_that_cannot_be_offered_is_refused_with_its_path(serve, bad, code, param):
    api = await serve()
    talk = await api.open()
    answer = await api.ask("POST", f"{talk.path}/events", json=user("x", tools=[bad]))
    assert answer.status == 400 and answer.body["error"]["code"] == code
    assert param is None or answer.body["error"]["param"] == param
    agent = {"agent": {"tools": [bad]}}
    answer = await api.ask("POST", "/v1/sessions", json=agent)
    assert answer.status == 400 and answer.body["error"]["code"] == code
    assert param is None or answer.body["error"]["param"] == f"agent.{param}"
    assert (await talk.snapshot())["seq"] == 0


async def test_two_tools_of_one_name_are_refused(serve):
    api = await serve()
    talk = await api.open()
    body = user("x", tools=[tool("a"), tool("b"), {"type": "function", "function": {"name": "a"}}])
    error = await api.ask("POST", f"{talk.path}/events", json=body)
    assert error.body["error"]["code"] == "invalid_tool" and error.body["error"]["param"].startswith("tools[2]")
    await talk.refused(user("x", tools={}), status=400, code="invalid_tool", param="tools")
    for choice in ("any", 1, {"type": "function"}, {"type": "function", "name": "nope"}, []):
        answer = await api.ask("POST", f"{talk.path}/events", json=user("x", tools=[tool("a")], tool_choice=choice))
        assert answer.status == 400 and answer.body["error"]["param"].startswith("tool_choice"), choice
