"""
Tool turns over real sockets: server and mock model server in threads, results posted from other threads the instant
their frames are read.

Nothing is lost and nothing is stuck: every call is answered once, there is one model call per round, and STRICT refuses
none. The short form stands in the suite. The full form, as many turns as the variable says, with its figures::

    JOURNEY_TURNS=500 python -m pytest tests/integration/test_journeys.py -o log_cli=true -o log_cli_level=INFO
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random
from typing import Any

import httpx
import pytest

from agent_harness.testing.strict import Dialect
from tests.integration.both_dialects import DIALECTS, TOOLS, Servers, serve_both

WAIT_S = 5.0
TURNS = int(os.environ.get("JOURNEY_TURNS", "60"))
SESSIONS = 2 if TURNS <= 100 else 5
POSTERS = 8

log = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with serve_both(max_retries=0) as both:
        yield both


class Journey:
    """
    A session with a queue of its own at the mock server, played turn by turn by one thread that reads the stream and
    several that post.
    """

    def __init__(self, servers: Servers, dialect: Dialect, number: int, turns: int) -> None:
        self.servers, self.random, self.turns = servers, Random(number), turns
        self.key = f"{dialect}-{number}"
        self.counts = [self.random.choice((1, 2, 8)) for _ in range(turns)]
        self.names = [[f"{self.key}-{turn}-{n}" for n in range(count)] for turn, count in enumerate(self.counts)]
        servers.script([entry for names in self.names for entry in self.answers(names)], self.key)
        agent = {"provider": dialect, "model": self.key, "tools": TOOLS}
        self.path = f"/v1/sessions/{servers.api('', {'agent': agent})['id']}"
        self.local = threading.local()
        self.clients: list[httpx.Client] = []
        self.posted: list[Future[Any]] = []
        self.answered: list[str] = []
        self.ended: list[str] = []

    def answers(self, call_ids: list[str]) -> Iterator[dict[str, Any]]:
        yield {"tool_calls": [{"name": "look", "arguments": '{"a": 1}', "call_id": call_id} for call_id in call_ids]}
        yield {"text": "Done."}

    def play(self) -> float:
        """
        All turns; how long they took, in seconds.
        """
        start = time.perf_counter()
        try:
            with ThreadPoolExecutor(POSTERS) as pool, httpx.Client(base_url=self.servers.url, timeout=WAIT_S) as client:
                with client.stream("GET", f"{self.path}/stream") as response:
                    for event in read_events(response):
                        if self.take(event, pool):
                            break
                for future in self.posted:
                    future.result(WAIT_S)
        finally:
            for client in self.clients:
                client.close()
        return time.perf_counter() - start

    def take(self, event: dict[str, Any], pool: ThreadPoolExecutor) -> bool:
        """
        Do what an event asks for; whether it was the last.
        """
        item = event.get("item", {})
        if event["type"] == "response.output_item.done" and item.get("status") == "action_required":
            assert item["call_id"] not in self.answered, "a call was announced twice"
            self.answered.append(item["call_id"])
            # Every other turn in another order than that of the calls; else whoever is first.
            if len(self.ended) % 2:
                self.posted.append(pool.submit(self.post_result, item["call_id"]))
        elif event["type"] == "session.status" and event["status"] == "waiting" and not len(self.ended) % 2:
            call_ids = [action["call_id"] for action in event["required_actions"]]
            for call_id in self.random.sample(call_ids, len(call_ids)):
                self.posted.append(pool.submit(self.post_result, call_id))
        elif event["type"].startswith("response.") and "usage" in event.get("response", {}):
            if event["type"] != "response.created":
                self.ended.append(event["type"])
        elif event["type"] == "session.status" and event["status"] in ("idle", "failed"):
            if len(self.ended) == self.turns:
                return True
            body = {"type": "message", "data": {"role": "user", "content": f"Turn {len(self.ended)}"}}
            self.posted.append(pool.submit(self.post, body))
        return False

    def post_result(self, call_id: str) -> None:
        answer = self.post({"type": "function_call_output", "data": {"call_id": call_id, "output": f"of {call_id}"}})
        assert answer["duplicate"] is False

    def post(self, body: Any) -> Any:
        if not hasattr(self.local, "client"):
            self.local.client = httpx.Client(base_url=self.servers.url, timeout=WAIT_S)
            self.clients.append(self.local.client)
        answer = self.local.client.post(f"{self.path}/events", json=body)
        assert answer.status_code == 202, answer.text
        return answer.json()


def read_events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """
    The events of a stream. One that is stuck is told by its pings.
    """
    buffer = b""
    for chunk in response.iter_raw():
        assert chunk != b": ping\n", "nothing happens any more"
        buffer += chunk
        *frames, buffer = buffer.split(b"\n\n")
        for frame in frames:
            yield json.loads(next(line[6:] for line in frame.splitlines() if line.startswith(b"data: ")))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_results_posted_the_instant_their_calls_are_read_are_never_lost(
    servers: Servers, dialect: Dialect, caplog: pytest.LogCaptureFixture
) -> None:
    """
    B023 and the seed's race: 1, 2 and 8 parallel calls, answered in any order from other threads.
    """
    for name in ("httpx", "httpx2"):
        caplog.set_level(logging.WARNING, name)
    servers.clear()
    journeys = [Journey(servers, dialect, number, TURNS // SESSIONS) for number in range(SESSIONS)]

    with ThreadPoolExecutor(SESSIONS) as pool:
        took = list(pool.map(lambda journey: journey.play(), journeys))

    statuses = [asked.status for asked in servers.asked]
    turns, calls = sum(journey.turns for journey in journeys), sum(sum(journey.counts) for journey in journeys)
    log.info(
        "%s: %d turns, %d calls, %d model requests in %d sessions at once: %.1f s, %.0f turns/s",
        dialect, turns, calls, len(statuses), SESSIONS, max(took), turns / max(took),
    )  # fmt: skip
    assert statuses == [200] * (2 * turns)
    for journey in journeys:
        assert journey.ended == ["response.completed"] * journey.turns
        assert journey.answered == [call_id for names in journey.names for call_id in names]
        check_last_request(servers, journey)


def check_last_request(servers: Servers, journey: Journey) -> None:
    """
    The last request holds each call's own output once, those of one answer in the order of its calls.
    """
    last = [asked.body for asked in servers.asked if f'"{journey.key}"'.encode() in asked.raw][-1]
    outputs = [
        (item.get("call_id") or item["tool_call_id"], item.get("output") or item["content"])
        for item in last.get("input") or last["messages"]
        if item.get("type") == "function_call_output" or item.get("role") == "tool"
    ]
    assert outputs == [(call_id, f"of {call_id}") for call_id in journey.answered]
