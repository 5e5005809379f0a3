"""
The OpenAPI document says what the server does: every route, field, code and event; and every answer of it fits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, get_args

import attrs
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator, validate

from agent_harness.engine.harness import Harness
from agent_harness.errors import RequestError
from agent_harness.llm.scripted import ScriptedModel, call, say, think
from agent_harness.protocol import events, items
from agent_harness.protocol.agents import Agent
from agent_harness.protocol.commands import CreateSession, ForkSession, Interrupt, SendMessage, SubmitOutput
from agent_harness.server import Access, init_app, make_app
from tests.server.document import DOCUMENT, OPERATIONS, SCHEMAS, body_of, content_of, faults, fits, headers_of, resolve
from tests.support import DONE, TOOL, Answer, Api, Frame, user


def refusals(base: type[RequestError] = RequestError) -> Iterator[type[RequestError]]:
    for cls in base.__subclasses__():
        yield cls
        yield from refusals(cls)


# It is a document, and a whole one.


def test_it_is_valid_openapi_3_1() -> None:
    validate(DOCUMENT, cls=OpenAPIV31SpecValidator)


def test_every_schema_is_valid_and_every_component_is_used() -> None:
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)
    used = set(re.findall(r'"#/components/(\w+/\w+)"', json.dumps(DOCUMENT)))
    kinds = {kind: set(DOCUMENT["components"][kind]) for kind in ("schemas", "responses", "parameters", "headers")}

    made = {f"{kind}/{name}" for kind, names in kinds.items() for name in names}
    # No documented operation is answered 405: its method exists.
    assert made - used == {"responses/MethodNotAllowed"} and used <= made


def test_the_routes_of_the_application_are_its_paths() -> None:
    app = make_app(Harness({}))
    routes = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource}

    assert {(method, path) for method, path, _ in OPERATIONS} == {route for route in routes if route[0] != "HEAD"}


@pytest.mark.parametrize(
    "method, path, operation", OPERATIONS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_an_operation_names_its_path_parameters_and_says_what_it_does(method: str, path: str, operation: Any) -> None:
    named = {ref["$ref"].rpartition("/")[2] for ref in operation["parameters"]}

    assert set(re.findall(r"\{(\w+)\}", path)) <= named
    assert operation["summary"] and ("requestBody" in operation) == (method in ("POST", "PATCH"))
    assert (operation.get("security") == []) == (path == "/health") == ("401" not in operation["responses"])


def test_every_refusal_has_its_status_and_every_code_stands_in_it() -> None:
    for cls in refusals():
        error = SCHEMAS[cls.__name__]["properties"]["error"]["properties"]
        assert error["type"]["const"] == cls.type and error["code"]["enum"] == list(cls.codes)
        content = DOCUMENT["components"]["responses"][cls.__name__]["content"]["application/json"]
        assert content["schema"] == {"$ref": f"#/components/schemas/{cls.__name__}"}
        for code in cls.codes:
            assert fits(content["examples"][code]["value"], content["schema"])
    for _, _, operation in OPERATIONS:
        for status, answer in operation["responses"].items():
            if status >= "400":
                [cls] = [cls for cls in refusals() if answer["$ref"].endswith(f"/{cls.__name__}")]
                assert str(cls.status) == status


def test_every_event_has_a_schema_with_exactly_its_fields() -> None:
    union = SCHEMAS["Event"]
    mapping = union["discriminator"]["mapping"]

    assert [ref["$ref"] for ref in union["oneOf"]] == list(mapping.values())
    assert len(mapping) == len(get_args(events.Event))
    for cls in get_args(events.Event):
        fields = attrs.fields_dict(cls)
        schema = resolve({"$ref": mapping[fields["type"].default]})
        assert schema["properties"]["type"]["const"] == fields["type"].default
        assert set(schema["properties"]) - {"seq", "at"} == set(fields)


@pytest.mark.parametrize("cls", [SendMessage, SubmitOutput, Interrupt], ids=lambda cls: str(cls.__name__))
def test_every_command_has_its_fields(cls: Any) -> None:
    schema = SCHEMAS[cls.__name__]
    data = resolve(schema["properties"]["data"].get("anyOf", [schema["properties"]["data"]])[0])

    assert {"$ref": f"#/components/schemas/{cls.__name__}"} in body_of("post_events")["anyOf"]
    assert set(schema["properties"]) == set(attrs.fields_dict(cls))
    inner: Any = attrs.fields_dict(cls)["data"].type
    assert set(data["properties"]) == set(attrs.fields_dict(inner))


def test_agents_items_and_bodies_have_their_fields() -> None:
    agent = set(attrs.fields_dict(Agent))
    assert set(SCHEMAS["Agent"]["properties"]) == set(SCHEMAS["AgentParam"]["properties"]) == agent
    for cls in get_args(items.Item):
        assert set(SCHEMAS[cls.__name__]["properties"]) == set(attrs.fields_dict(cls)) - {"provenance"}
    assert set(resolve(body_of("create_session"))["properties"]) == set(attrs.fields_dict(CreateSession))
    assert set(resolve(body_of("fork_session"))["properties"]) == set(attrs.fields_dict(ForkSession))


def test_nothing_hidden_is_in_it() -> None:
    assert '"provenance":' not in json.dumps(DOCUMENT)


# What it is served as.


async def test_it_is_served_whole_and_the_same_bytes_each_time(serve: Any) -> None:
    api = await serve()
    first, second = await api.ask("GET", "/openapi.json"), await api.ask("GET", "/openapi.json")

    assert first.status == 200 and first.body == DOCUMENT and first.raw == second.raw


async def test_it_needs_a_key_where_the_server_has_one(aiohttp_client: Any) -> None:
    model = ScriptedModel()
    api = Api(await aiohttp_client(make_app(Harness({"default": model}), Access(keys={"a": "key-of-a"}))), model)
    await api.refused("GET", "/openapi.json", status=401, code="missing_key")
    assert (await api.ask("GET", "/openapi.json", headers={"Authorization": "Bearer key-of-a"})).status == 200


async def test_below_a_prefix_it_names_the_prefix(aiohttp_client: Any) -> None:
    from aiohttp import web

    app = web.Application()
    init_app(app, Harness({}), prefix="/api/agents")
    client = await aiohttp_client(app)
    async with client.get("/api/agents/openapi.json") as answer:
        document = await answer.json()
    assert document == DOCUMENT | {"servers": [{"url": "/api/agents"}]}


# What the server answers fits it.


TRANSPORT = {"content-type", "content-length", "date", "server", "connection", "allow"}


class CheckedApi(Api):
    """
    Holds every answer against the document.
    """

    def __init__(self, api: Api) -> None:
        super().__init__(api.client, api.model)
        self.seen: set[tuple[str, int]] = set()

    async def ask(self, method: str, path: str, **options: Any) -> Answer:
        answer = await super().ask(method, path, **options)
        where = path.partition("?")[0]
        for known, template, operation in OPERATIONS:
            if known == method and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), where):
                schema = content_of(operation, str(answer.status))["application/json"]["schema"]
                assert faults(answer.body, schema) == [], answer.raw[:1000]
                assert {name.lower() for name in answer.headers} - TRANSPORT <= set(
                    headers_of(operation, str(answer.status))
                )
                self.seen.add((operation["operationId"], answer.status))
        return answer


async def play(api: Api) -> list[Frame]:
    """
    A session with calls, reasoning, a failed turn, a queue, a steered message and an interrupt; all that its followers
    heard.
    """
    talk = await api.open(
        agent={"tools": [TOOL], "tool_choice": "required", "text": {"verbosity": "low"}}, metadata={"a": "b"}
    )
    await talk.park()
    streamed = await talk.send_streamed("second", delivery="steer")
    await talk.send("third")
    await talk.snapshot()
    parts = [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "data:,"}]
    await talk.result("c1", parts)
    await talk.stream.until_status("idle")
    await talk.result("c1", parts)
    frames = await streamed.rest()
    talk.api.model.steps += [call("look_up", "[1", "c2"), call("look_up", "{}", "c3"), say("x")]
    await talk.park("again")
    frames += await (await talk.follow(after=9999, until="idle")).until("response.output_item.done")
    await talk.api.ask("POST", f"{talk.path}/events", json={"events": [result("c3")["events"][0]]})
    await talk.stream.until_status("idle")
    await talk.turn("no answer is left: this turn fails")
    talk.api.model.steps.append(call("look_up", "{}", "c4"))
    await talk.send("park")
    await talk.stream.until_status("waiting")
    await talk.send("waits")
    await talk.interrupt(clear_queue=True)
    await api.ask("PATCH", talk.path, json={"agent": {"temperature": 1}, "metadata": {"a": None}})
    for path in ("", "/items", "/responses", "/request", "?include_items=false"):
        await api.get(talk.path + path)
    record = (await api.get(f"{talk.path}/responses"))["data"][0]
    await api.get(f"{talk.path}/responses/{record['id']}")
    await api.get("/v1/sessions")
    await api.ask("POST", f"{talk.path}/fork", json={})
    return frames + await finish(talk)


def result(call_id: str) -> dict[str, Any]:
    return {"events": [{"type": "function_call_output", "data": {"call_id": call_id, "output": "ok"}}]}


async def finish(talk: Any) -> list[Frame]:
    """
    Refusals, then the end of the session.
    """
    api = talk.api
    await api.ask("GET", "/v1/sessions/none")
    await api.ask("GET", f"{talk.path}?include_items=1")
    await api.ask("GET", f"{talk.path}/responses/none")
    await api.ask("POST", f"{talk.path}/events", json=result("none"))
    await api.ask(
        "POST",
        f"{talk.path}/events",
        json={"type": "function_call_output", "data": {"call_id": "c4", "output": "late"}},
    )
    await api.ask("POST", f"{talk.path}/events", data=b"{}", headers={"Content-Type": "text/plain"})
    await api.ask("POST", f"{talk.path}/events?stream=true", json=user("x", delivery=1))
    await api.ask("POST", "/v1/sessions", json={"agent_id": "none"})
    await api.ask("POST", "/v1/sessions", data=b" " * 5000, headers={"Content-Type": "application/json"})
    await api.ask("GET", "/health")
    await api.ask("DELETE", talk.path)
    await talk.stream.rest()
    frames: list[Frame] = talk.stream.frames
    return frames


async def test_answers_and_events_of_a_played_session_fit_its_schemas(serve: Any) -> None:
    steps = (think("hm") + call("look_up", '{"widget_id": 1}', "c1"), say("one"), say("two"))
    api = CheckedApi(await serve(*steps, body_bytes=4000))
    frames = await play(api)

    heard = {frame.event for frame in frames if frame.data != DONE}
    for frame in frames:
        if frame.data != DONE:
            assert faults(frame.data, {"$ref": "#/components/schemas/Event"}) == [], frame.raw
            assert fits(frame.data, SCHEMAS["Event"]["discriminator"]["mapping"][frame.event or ""] and {
                "$ref": SCHEMAS["Event"]["discriminator"]["mapping"][frame.event or ""]
            })  # fmt: skip
    assert len(heard) >= 16 and {"session.gap", "response.failed", "response.cancelled", "session.deleted"} <= heard
    asked = {name for name, status in api.seen if status < 300}
    assert asked == {operation["operationId"] for _, _, operation in OPERATIONS} - {
        "follow_session",
        "get_openapi",
        "get_metrics",
    }
    assert {400, 404, 409, 413, 415} <= {status for _, status in api.seen}
