"""
``GET /metrics``: the right numbers over what was played, for each application its own, with bounded labels.
"""

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient
from prometheus_client.parser import text_string_to_metric_families

from agent_harness.engine.harness import Harness
from agent_harness.llm.base import Retrying
from agent_harness.llm.scripted import ScriptedModel, Step, call, say
from agent_harness.protocol.commands import CreateSession
from agent_harness.protocol.requests import read_update
from agent_harness.server import HARNESS, Access, init_app, make_app
from tests.support import TOOL, WAIT_S, Api, Talk, types

LOOK = '{"widget_id": 1}'

Labels = frozenset[tuple[str, str]]
Samples = dict[str, dict[Labels, float]]


async def scrape(client: TestClient[Any, Any], path: str = "/metrics", **headers: str) -> Samples:
    """
    All samples by name (without the prefix) and labels.
    """
    async with asyncio.timeout(WAIT_S):
        answer = await client.get(path, headers=headers)
        text = await answer.text()
    assert answer.status == 200, text
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("agent_harness_")
            assert name != sample.name
            samples.setdefault(name, {})[frozenset(sample.labels.items())] = sample.value
    return samples


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples.get(name, {}).get(frozenset(labels.items()), 0.0)


async def settle(api: Api) -> None:
    """
    Wait until no turn's task is left: its model call is counted then.
    """
    async with asyncio.timeout(WAIT_S):
        while api.client.app[HARNESS].running_turns:
            await api.get("/health")


async def test_an_idle_server_says_that_there_is_nothing(serve: Any) -> None:
    api = await serve()
    samples = await scrape(api.client)

    gauges = ("sessions", "turns_running", "calls_open", "followers", "queued_messages", "queue_longest")
    for name in (*gauges, "events_published_total", "followers_lagged_total"):
        assert samples[name] == {frozenset(): 0.0}


async def test_a_parked_turn_shows_its_open_call_follower_and_queue_and_then_counts_as_ended(serve: Any) -> None:
    api = await serve(call("look_up", LOOK, "c1"), say("done"), say("next"))
    talk = await api.open()
    await talk.park()
    for text in ("waits", "waits too"):
        await talk.send(text)
    other = await api.open()
    parked = await scrape(api.client)
    assert value(parked, "sessions") == 2 and value(parked, "followers") == 2
    assert value(parked, "turns_running") == value(parked, "calls_open") == 1
    assert value(parked, "queued_messages") == value(parked, "queue_longest") == 2
    assert value(parked, "turns_total", outcome="completed") == 0
    seqs = [(await each.snapshot())["seq"] for each in (talk, other)]
    assert value(parked, "events_published_total") == sum(seqs)

    await talk.result("c1")
    await talk.stream.until_status("failed")
    await settle(api)
    ended = await scrape(api.client)
    assert value(ended, "turns_running") == value(ended, "calls_open") == value(ended, "queued_messages") == 0
    assert value(ended, "calls_total", closed_by="client") == 1
    # The script had no answer left for the last message.
    assert value(ended, "turns_total", outcome="completed") == 2
    assert value(ended, "turns_total", outcome="failed") == 1
    assert value(ended, "upstream_call_seconds_count", provider="default", outcome="completed") == 3
    assert value(ended, "upstream_call_seconds_count", provider="default", outcome="failed") == 1
    assert value(ended, "upstream_first_item_seconds_count", provider="default") == 3
    assert 0 < value(ended, "upstream_first_item_seconds_sum", provider="default") < WAIT_S


async def test_an_interrupt_counts_the_turn_the_call_and_the_queued_turn(serve: Any) -> None:
    api = await serve(call("look_up", LOOK, "c1"))
    talk = await api.open()
    await talk.park()
    await talk.send("waits")
    await talk.interrupt(clear_queue=True)
    samples = await scrape(api.client)

    assert samples["turns_total"] == {
        frozenset({("outcome", "cancelled")}): 1.0,
        frozenset({("outcome", "dropped")}): 1.0,
    }
    assert samples["calls_total"] == {frozenset({("closed_by", "interrupt")}): 1.0}


async def test_retries_are_counted_by_provider(serve: Any) -> None:
    api = await serve(Step((Retrying(1, 0.0, "x"), Retrying(2, 0.0, "x"))) + say("ok"))
    await (await api.open()).turn()
    samples = await scrape(api.client)

    assert samples["upstream_retries_total"] == {frozenset({("provider", "default")}): 2.0}


async def test_a_follower_that_lags_is_counted_once_and_stays_counted_when_its_session_is_gone(serve: Any) -> None:
    api = await serve()
    talk = Talk(api, (await api.create())["id"])
    session = api.client.app[HARNESS].get(talk.id)
    follower = session.follow()
    # It had no chance to read this before it was forgotten.
    session.update(read_update({"metadata": {"a": "b"}}))
    session.feed.forget()
    assert follower.lagged
    before = await scrape(api.client)
    assert value(before, "followers_lagged_total") == 1 and value(before, "followers") == 0

    await api.ask("DELETE", talk.path)
    after = await scrape(api.client)
    assert value(after, "followers_lagged_total") == 1 and value(after, "sessions") == 0
    assert value(after, "events_published_total") == value(before, "events_published_total") + 1


async def test_answers_are_counted_by_method_template_and_status_whatever_clients_write(serve: Any) -> None:
    api = await serve(say("one"))
    talk = Talk(api, (await api.create())["id"])
    await talk.turn()
    await api.get(talk.path)
    for path in ("/v1/sessions/none", "/v1/sessions/%0Aother", "/nothing", "/nothing/else"):
        await api.ask("GET", path)
    await api.ask("PUT", "/v1/sessions")
    await api.ask("PROPFIND", "/v1/sessions")
    counted = (await scrape(api.client))["http_answers_total"]

    session = "/v1/sessions/{session_id}"
    expected = {
        ("POST", "/v1/sessions", "201"): 1,
        ("POST", f"{session}/events", "200"): 1,
        ("GET", session, "200"): 1,
        ("GET", session, "404"): 2,
        ("GET", "unknown", "404"): 2,
        ("PUT", "unknown", "405"): 1,
        ("other", "unknown", "405"): 1,
    }
    assert counted == {
        frozenset({("method", method), ("route", route), ("status", status)}): float(count)
        for (method, route, status), count in expected.items()
    }


async def test_no_label_bears_what_a_client_chose(serve: Any) -> None:
    api = await serve(call("look_up", LOOK, "my-call"), say("done"), models={"named": ScriptedModel()})
    for provider in ("my-provider", None):
        talk = await api.open(agent={"name": "my-agent", "model": "my-model", "provider": provider})
        await talk.send("my-text", tools=[TOOL])
        await talk.stream.until(lambda frame: frame.event == "session.status" and frame.data["status"] != "running")
    await talk.result("my-call")
    await talk.stream.until_status("idle")
    text = await (await api.client.get("/metrics", headers={"x-request-id": "my-request"})).text()

    assert 'turns_total{outcome="failed"} 1.0' in text and 'turns_total{outcome="completed"} 1.0' in text
    assert "my-" not in text and "sess_" not in text and "resp_" not in text


async def test_two_applications_of_one_process_count_apart(aiohttp_client: Any) -> None:
    apis = []
    for _ in range(2):
        model = ScriptedModel([say("one")])
        apis.append(Api(await aiohttp_client(make_app(Harness({"default": model}))), model))
    await (await apis[0].open()).turn()
    first, second = [await scrape(api.client) for api in apis]

    assert value(first, "turns_total", outcome="completed") == value(first, "sessions") == 1
    assert value(second, "turns_total", outcome="completed") == value(second, "sessions") == 0
    assert "http_answers_total" not in second


async def test_sessions_that_are_older_than_the_application_count_from_when_it_is_made(aiohttp_client: Any) -> None:
    async with asyncio.timeout(WAIT_S):
        harness = Harness({"default": ScriptedModel([say("one"), say("two")])})
        session = await harness.create_session()
        assert [event async for event in session.run("hi")]
        before = session.feed.seq
        client = await aiohttp_client(make_app(harness))
        assert value(await scrape(client), "events_published_total") == 0
        assert [event async for event in session.run("again")]
        assert value(await scrape(client), "events_published_total") == session.feed.seq - before
        assert value(await scrape(client), "turns_total", outcome="completed") == 1


async def test_metrics_need_a_key_like_all_but_health(aiohttp_client: Any) -> None:
    api = Api(await aiohttp_client(make_app(Harness({}), Access(keys={"a": "key-a"}))), ScriptedModel())
    await api.refused("GET", "/metrics", status=401, code="missing_key")

    samples = await scrape(api.client, Authorization="Bearer key-a")
    route = {"method": "GET", "route": "/metrics", "status": "401"}
    assert value(samples, "http_answers_total", **route) == 1
    assert "key-a" not in str(samples)


async def test_an_embedded_server_has_its_metrics_below_its_prefix_and_counts_no_others(aiohttp_client: Any) -> None:
    async def own(request: web.Request) -> web.Response:
        return web.json_response({})

    app = web.Application()
    app.router.add_get("/own", own)
    init_app(app, Harness({}))
    client = await aiohttp_client(app)
    await client.get("/own")
    await client.get("/agents-backend/health")
    samples = await scrape(client, "/agents-backend/metrics")

    route = {"method": "GET", "route": "/agents-backend/health", "status": "200"}
    assert samples["http_answers_total"] == {frozenset(route.items()): 1.0}


async def test_openmetrics_is_answered_to_those_who_ask_for_it(serve: Any) -> None:
    api = await serve()
    answer = await api.client.get("/metrics", headers={"Accept": "application/openmetrics-text"})

    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    assert (await answer.text()).endswith("# EOF\n")


async def test_without_the_extra_the_path_is_unknown_and_says_what_to_install(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    api = await serve(say("one"))
    error = await api.refused("GET", "/metrics", status=404, code="unknown_path")

    assert "agent-harness[metrics]" in error["message"]
    assert api.client.app[HARNESS].watch.observers == []
    assert types(await (await api.open()).turn())[-1] == "[DONE]"


async def test_a_fault_in_the_extra_itself_is_not_taken_for_its_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    import prometheus_client

    class Broken:
        def __init__(self, *_: Any, **__: Any) -> None:
            raise ModuleNotFoundError("no", name="something_else")

    monkeypatch.setattr(prometheus_client, "CollectorRegistry", Broken)
    with pytest.raises(ModuleNotFoundError):
        make_app(Harness({}))


async def test_the_page_names_every_metric_with_its_kind_and_labels(serve: Any) -> None:
    api = await serve(Step((Retrying(1, 0.0, "x"),)) + call("look_up", LOOK, "c1"), say("done"))
    talk = await api.open()
    await talk.park()
    await talk.result("c1")
    await talk.stream.until_status("idle")
    await settle(api)
    # The text names the kind of all, and samples are there of all by now.
    text = await (await api.client.get("/metrics")).text()
    found = {}
    for family in text_string_to_metric_families(text):
        if not family.name.endswith("_created"):
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            found[family.name + "_total" * (family.type == "counter")] = (family.type, labels)

    page = (Path(__file__).parents[2] / "docs" / "observability.md").read_text()
    rows = re.findall(r"^\| `(agent_harness_\w+)` \| (\w+) \|([^|]*)\| ", page, re.MULTILINE)
    assert {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows} == found


async def test_ten_thousand_sessions_are_counted_in_one_look(serve: Any) -> None:
    api = await serve()
    harness = api.client.app[HARNESS]
    for _ in range(10_000):
        harness.create(CreateSession())
    samples = await scrape(api.client)

    assert value(samples, "sessions") == 10_000
