"""
The journey of the project, with its proof: what the model was sent, as the mock model server captured it.
"""

import json
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import configure_mock_llm, get_mock_requests, send_user_message_to_session
from tests.integration.conftest import JourneySession
from tests.integration.helpers import all_message_text, failure_detail, run_turn

TOOL = {
    "type": "function",
    "function": {
        "name": "lookup_widget",
        "parameters": {"type": "object", "properties": {"widget_id": {"type": "integer"}}, "required": ["widget_id"]},
    },
}

OUTPUT = json.dumps({"color": "b\u00e4ige \u2028 \U0001f642", "spaces": "  kept  "}, ensure_ascii=False)
"""Posted to the byte: escapes, spaces and separators must reach the model as they are."""


def read_events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    buffer = b""
    for chunk in response.iter_raw():
        buffer += chunk
        *frames, buffer = buffer.split(b"\n\n")
        for frame in frames:
            data = next(line[6:] for line in frame.splitlines() if line.startswith(b"data: "))
            if data == b"[DONE]":
                return
            yield json.loads(data)


def play_first_turn(base_url: str, session_id: str) -> str:
    """
    One turn whose call is answered from another thread the instant its frame is read.
    """
    failures: list[BaseException] = []
    threads: list[threading.Thread] = []

    def in_thread(work: Any) -> None:
        def run() -> None:
            try:
                with httpx.Client(base_url=base_url, timeout=10) as client:
                    work(client)
            except BaseException as error:
                failures.append(error)

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    def post_output(call_id: str) -> None:
        body = {"type": "function_call_output", "data": {"call_id": call_id, "output": OUTPUT}}
        in_thread(lambda client: client.post(f"/v1/sessions/{session_id}/events", json=body).raise_for_status())

    said: list[str] = []
    with (
        httpx.Client(base_url=base_url, timeout=10) as client,
        client.stream("GET", f"/v1/sessions/{session_id}/stream?until=idle") as response,
    ):
        for event in read_events(response):
            if event["type"] == "session.status" and event["seq"] == 0:
                in_thread(
                    lambda client: send_user_message_to_session(
                        client, session_id=session_id, content="What color is widget 42?", tools=[TOOL]
                    )
                )
            item = event.get("item", {})
            if event["type"] == "response.output_item.done" and item.get("status") == "action_required":
                post_output(item["call_id"])
            said.append(event["delta"] if event["type"] == "response.output_text.delta" else "")
    for thread in threads:
        thread.join(10)
    assert not failures, failures
    return "".join(said)


def request_items(request: dict[str, Any]) -> list[Any]:
    """
    The items of a request in either dialect, without the instructions.
    """
    items = request["body"].get("input") or request["body"]["messages"]
    return [item for item in items if item.get("role") not in ("system", "developer")]


def test_the_second_turn_knows_the_result_because_the_request_holds_it(
    live_server: str, journey_session: JourneySession, mock_llm_server_url: str | None
) -> None:
    """
    B005 too: the output the model is sent is what was posted, byte for byte, in the right place.
    """
    if mock_llm_server_url is None:
        pytest.skip("asserts on captured requests, which a real provider does not give")
    call_id = f"call_{uuid.uuid4().hex[:8]}"
    session_id = journey_session.session_id
    call = {"call_id": call_id, "name": "lookup_widget", "arguments": '{"widget_id":  42}'}
    recall = r"b\u00e4ige \u2028 \U0001f642"
    configure_mock_llm(mock_llm_server_url, [{"tool_calls": [call]}, {"recall": recall}, {"recall": recall}])

    first = play_first_turn(live_server, session_id)
    with httpx.Client(base_url=live_server, timeout=10) as client:
        second = run_turn(client, session_id=session_id, content="What color was it?")

    assert second["status"] == "completed", failure_detail(second)
    assert first == all_message_text(second) == "b\u00e4ige \u2028 \U0001f642"
    requests = get_mock_requests(mock_llm_server_url)
    assert [request["status"] for request in requests] == [200, 200, 200]
    assert requests[0]["body"]["tools"] and "tools" not in requests[2]["body"]
    sent = json.dumps(request_items(requests[1])[-1])
    assert call_id in sent and json.dumps(OUTPUT) in sent
    assert json.dumps(call["arguments"]) in json.dumps(request_items(requests[1])[-2])
    length = len(request_items(requests[1]))
    assert request_items(requests[2])[:length] == request_items(requests[1])
    assert {request["headers"]["x-session-id"] for request in requests} == {session_id}
