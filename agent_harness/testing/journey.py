"""
Helpers of the journey tests: synchronous, over HTTP, with whatever client is handed in (httpx's, or one like it).
"""

import json
import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import attrs

__all__ = [
    "JourneySession",
    "all_message_text",
    "configure_mock_llm",
    "failure_detail",
    "get_mock_requests",
    "open_journey_session",
    "poll_session_until_terminal",
    "release_mock_gate",
    "reset_mock_llm",
    "run_turn",
    "send_user_message_to_session",
    "set_fallback_mock_llm",
]

TIMEOUT_S = 50.0


@attrs.frozen
class JourneySession:
    """
    The session a journey is played in.
    """

    agent_name: str
    session_id: str


# The mock model server. With a real model server there is none: the url is None and nothing happens.


def configure_mock_llm(
    url: str | None, responses: list[dict[str, Any]], *, key: str = "default", match: str | None = None
) -> None:
    """
    Queue *responses* under *key*; *match* is a text that the last user message must hold for the queue to be taken.
    """
    body: dict[str, Any] = {"key": key, "responses": responses}
    _call_mock(url, "/mock/configure", body if match is None else body | {"match": match})


def reset_mock_llm(url: str | None) -> None:
    """
    Clear all queues and captured requests.
    """
    _call_mock(url, "/mock/reset", {})


def set_fallback_mock_llm(url: str | None, response: dict[str, Any] | None) -> None:
    """
    What an exhausted queue answers from now on; None for its error.
    """
    _call_mock(url, "/mock/set_fallback", {"response": response})


def release_mock_gate(url: str | None) -> None:
    """
    Let blocked answers go on.
    """
    _call_mock(url, "/gate/release", {})


def get_mock_requests(url: str | None, key: str | None = None) -> list[dict[str, Any]]:
    """
    The captured requests ``{"path", "headers", "body", "status"}``, those of one queue or all.
    """
    answer = _call_mock(url, "/mock/requests" + (f"?key={key}" if key else ""), None)
    return answer["requests"] if answer else []


def _call_mock(url: str | None, path: str, body: dict[str, Any] | None) -> Any:
    if url is None:
        return None
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return json.load(answer)


# The sessions API.


def open_journey_session(client: Any, agent_name: str = "journey", **agent: Any) -> JourneySession:
    """
    A new session with an agent of that name.
    """
    answer = client.post("/v1/sessions", json={"agent": {"name": agent_name, **agent}})
    answer.raise_for_status()
    return JourneySession(agent_name, answer.json()["id"])


def send_user_message_to_session(
    client: Any, *, session_id: str, content: Any, tools: list[dict[str, Any]] | None = None
) -> str:
    """
    Send a message and return its response_id.
    """
    return str(_send(client, session_id, content, tools)["response_id"])


def _send(client: Any, session_id: str, content: Any, tools: list[dict[str, Any]] | None) -> dict[str, Any]:
    body: dict[str, Any] = {"type": "message", "data": {"role": "user", "content": content}}
    if tools is not None:
        body["tools"] = tools
    answer = client.post(f"/v1/sessions/{session_id}/events", json=body)
    assert answer.status_code == 202, f"the message was refused: {answer.status_code} {answer.text[:300]}"
    result: dict[str, Any] = answer.json()
    return result


def poll_session_until_terminal(client: Any, *, session_id: str, timeout: float = TIMEOUT_S) -> dict[str, Any]:
    """
    Wait until the session rests, and return its snapshot. It waits on the stream, so it neither sleeps nor asks twice.
    """
    seq = client.get(f"/v1/sessions/{session_id}").json()["seq"]
    _wait_until_idle(client, session_id, seq, timeout)
    snapshot: dict[str, Any] = client.get(f"/v1/sessions/{session_id}").json()
    return snapshot


def run_turn(client: Any, *, session_id: str, content: Any, timeout: float = TIMEOUT_S) -> dict[str, Any]:
    """
    Send a message, wait for its turn's end, and return ``{"status", "output", "error"}``: the turn's status, the items
    it added, its error or None.
    """
    sent = _send(client, session_id, content, None)
    _wait_until_idle(client, session_id, sent["seq"], timeout)
    turn = client.get(f"/v1/sessions/{session_id}/responses/{sent['response_id']}").json()
    items = client.get(f"/v1/sessions/{session_id}").json()["items"]
    output = [item for item in items if item["response_id"] == sent["response_id"] and item["id"] != sent["item_id"]]
    return {"status": turn["status"], "output": output, "error": turn["error"]}


def _wait_until_idle(client: Any, session_id: str, after: int, timeout: float) -> None:
    path = f"/v1/sessions/{session_id}/stream?until=idle&after={after}"
    with client.stream("GET", path, timeout=timeout) as response:
        response.raise_for_status()
        for _ in response.iter_bytes():
            pass


def all_message_text(body: dict[str, Any]) -> str:
    """
    All that the assistant says in the output of `run_turn`.
    """
    return "".join(_texts(body))


def _texts(body: dict[str, Any]) -> Iterator[str]:
    for item in body["output"]:
        if item["type"] == "message" and item["role"] == "assistant":
            yield from (part.get("text") or part.get("refusal") or "" for part in item["content"])


def failure_detail(body: dict[str, Any]) -> str:
    """
    A turn's result in one line, for an assertion's message.
    """
    text = re.sub(r"\s+", " ", all_message_text(body))[:300]
    return f"status {body['status']!r}, error {body['error']!r}, {len(body['output'])} items, text {text!r}"
