"""
The fixtures and helpers that journeys import do what they are said to do.
"""

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import (
    configure_mock_llm,
    get_mock_requests,
    poll_session_until_terminal,
    release_mock_gate,
    reset_mock_llm,
    send_user_message_to_session,
    set_fallback_mock_llm,
)

WAIT_S = 5.0

TOOL = {"type": "function", "name": "look_up", "parameters": {"type": "object"}}


def create(client: httpx.Client, **agent: Any) -> str:
    answer = client.post("/v1/sessions", json={"agent": agent})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def pending(url: str, wait: int) -> int:
    """
    How many requests are parked, once that is *wait*.
    """
    count: int = httpx.get(f"{url}/gate/pending?wait={wait}", timeout=2 * WAIT_S).json()["pending"]
    return count


def texts(snapshot: dict[str, Any]) -> list[str]:
    return [part["text"] for item in snapshot["items"] for part in item.get("content", [])]


@contextmanager
def in_thread(work: Any) -> Iterator[list[Any]]:
    """
    *work* runs while the block does and has ended after it; the list then holds what it returned.
    """
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    yield results
    thread.join(WAIT_S)
    assert not thread.is_alive() and len(results) == 1


@pytest.fixture
def mock(mock_llm_server_url: str | None) -> str:
    if mock_llm_server_url is None:
        pytest.skip("a real provider has no mock to look into")
    return mock_llm_server_url


def test_live_server_is_a_base_url_that_any_client_reaches(live_server: str) -> None:
    assert live_server.startswith("http://127.0.0.1:") and not live_server.endswith("/")
    with urllib.request.urlopen(f"{live_server}/health", timeout=WAIT_S) as answer:
        assert answer.status == 200


def test_http_client_speaks_to_the_live_server(http_client: httpx.Client, live_server: str) -> None:
    assert str(http_client.base_url).rstrip("/") == live_server
    session_id = create(http_client, name="mine")

    assert httpx.get(f"{live_server}/v1/sessions/{session_id}", timeout=WAIT_S).json()["agent"]["name"] == "mine"


def test_sent_message_gives_the_id_of_the_response_it_starts(http_client: httpx.Client, mock: str) -> None:
    configure_mock_llm(mock, [{"text": "Good day."}])
    session_id = create(http_client)

    response_id = send_user_message_to_session(http_client, session_id=session_id, content="hello", tools=[TOOL])
    snapshot = poll_session_until_terminal(http_client, session_id=session_id, timeout=WAIT_S)

    assert http_client.get(f"/v1/sessions/{session_id}/responses/{response_id}").json()["status"] == "completed"
    assert (snapshot["status"], texts(snapshot)) == ("idle", ["hello", "Good day."])
    [request] = get_mock_requests(mock)
    assert request["status"] == 200 and len(request["body"]["tools"]) == 1


def test_polling_waits_until_the_turn_has_ended(http_client: httpx.Client, mock: str) -> None:
    configure_mock_llm(mock, [{"text": "at last", "block": True}])
    session_id = create(http_client)
    send_user_message_to_session(http_client, session_id=session_id, content="hello")
    assert pending(mock, 1) == 1

    with in_thread(lambda: poll_session_until_terminal(http_client, session_id=session_id, timeout=WAIT_S)) as polled:
        assert not polled
        release_mock_gate(mock)

    assert texts(polled[0]) == ["hello", "at last"]
    assert pending(mock, 0) == 0


def test_polling_a_session_that_rests_returns_at_once(http_client: httpx.Client) -> None:
    session_id = create(http_client)

    snapshot = poll_session_until_terminal(http_client, session_id=session_id, timeout=WAIT_S)

    assert (snapshot["id"], snapshot["status"], snapshot["seq"]) == (session_id, "idle", 0)


def test_polling_returns_a_failed_session_with_its_error(http_client: httpx.Client, mock: str) -> None:
    configure_mock_llm(mock, [{"error": "no such model", "status_code": 404}])
    session_id = create(http_client)
    send_user_message_to_session(http_client, session_id=session_id, content="hello")

    snapshot = poll_session_until_terminal(http_client, session_id=session_id, timeout=WAIT_S)

    assert (snapshot["status"], snapshot["last_error"]["code"]) == ("failed", "provider_rejected")


def test_released_gate_lets_every_blocked_answer_go_on(http_client: httpx.Client, mock: str) -> None:
    configure_mock_llm(mock, [{"text": "one", "block": True}, {"text": "two", "block": True}])
    sessions = [create(http_client) for _ in range(2)]
    for session_id in sessions:
        send_user_message_to_session(http_client, session_id=session_id, content="hello")
    assert pending(mock, 2) == 2

    release_mock_gate(mock)

    ended = [poll_session_until_terminal(http_client, session_id=session_id, timeout=WAIT_S) for session_id in sessions]
    assert sorted(texts(snapshot)[1] for snapshot in ended) == ["one", "two"]


def test_fallback_answers_when_the_queue_is_empty_and_can_be_taken_away(http_client: httpx.Client, mock: str) -> None:
    configure_mock_llm(mock, [{"text": "scripted"}])
    set_fallback_mock_llm(mock, {"text": "always"})
    session_id = create(http_client)
    for content in ("a", "b", "c"):
        send_user_message_to_session(http_client, session_id=session_id, content=content)
        snapshot = poll_session_until_terminal(http_client, session_id=session_id, timeout=WAIT_S)
    assert texts(snapshot)[1::2] == ["scripted", "always", "always"]

    set_fallback_mock_llm(mock, None)
    send_user_message_to_session(http_client, session_id=session_id, content="d")
    snapshot = poll_session_until_terminal(http_client, session_id=session_id, timeout=WAIT_S)

    assert snapshot["status"] == "failed"
    assert "no answer left" in snapshot["last_error"]["message"]


def test_captured_requests_are_all_or_those_of_one_queue(http_client: httpx.Client, mock: str) -> None:
    configure_mock_llm(mock, [{"text": "by match"}], key="birds", match="sparrow")
    configure_mock_llm(mock, [{"text": "by model"}], key="small")
    configure_mock_llm(mock, [{"text": "by default"}])
    heard = []
    for content, model in (("a sparrow", None), ("hello", "small"), ("hello", None)):
        session_id = create(http_client, model=model)
        send_user_message_to_session(http_client, session_id=session_id, content=content)
        heard.append(texts(poll_session_until_terminal(http_client, session_id=session_id, timeout=WAIT_S))[1])

    assert heard == ["by match", "by model", "by default"]
    assert [len(get_mock_requests(mock, key)) for key in (None, "birds", "small", "default", "other")] == [
        3,
        1,
        1,
        1,
        0,
    ]
    assert "sparrow" in str(get_mock_requests(mock, "birds")[0]["body"])


def test_reset_forgets_queues_fallback_and_captured_requests(http_client: httpx.Client, mock: str) -> None:
    configure_mock_llm(mock, [{"text": "gone"}])
    set_fallback_mock_llm(mock, {"text": "gone too"})
    reset_mock_llm(mock)
    session_id = create(http_client)

    send_user_message_to_session(http_client, session_id=session_id, content="hello")
    snapshot = poll_session_until_terminal(http_client, session_id=session_id, timeout=WAIT_S)

    assert snapshot["status"] == "failed"
    assert {request["status"] for request in get_mock_requests(mock)} == {500}
    reset_mock_llm(mock)
    assert get_mock_requests(mock) == []


def test_mock_is_empty_at_the_beginning_of_each_test(mock: str) -> None:
    assert get_mock_requests(mock) == [] and pending(mock, 0) == 0


def test_without_a_mock_server_its_helpers_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("something was sent")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)

    configure_mock_llm(None, [{"text": "hello"}], key="default", match="x")
    reset_mock_llm(None)
    set_fallback_mock_llm(None, {"text": "hello"})
    release_mock_gate(None)
    assert get_mock_requests(None) == [] and get_mock_requests(None, "default") == []
