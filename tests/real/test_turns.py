"""
What a harness needs of a model server, tried over HTTP with a real one and a model of 270 million parameters.

The model knows no instructions: it goes on with what it sees. So each session begins with examples of what is wanted.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.real.conftest import RealServer

TOOL = {
    "type": "function",
    "name": "lookup_widget",
    "description": "Look up a widget by id and return its color.",
    "parameters": {
        "type": "object",
        "properties": {"widget_id": {"type": "integer"}},
        "required": ["widget_id"],
    },
}
FORCED = {"type": "function", "name": "lookup_widget"}


def message(role: str, text: str) -> dict[str, Any]:
    kind = "input_text" if role == "user" else "output_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def example(number: int, color: str) -> list[dict[str, Any]]:
    call_id = f"call_{number}"
    arguments, output = json.dumps({"widget_id": number}), json.dumps({"color": color})
    return [
        message("user", f"What color is widget {number}?"),
        {"type": "function_call", "call_id": call_id, "name": "lookup_widget", "arguments": arguments},
        {"type": "function_call_output", "call_id": call_id, "output": output},
        message("assistant", f"Widget {number} is {color}."),
        message("user", f"What color was widget {number}?"),
        message("assistant", f"Widget {number} is {color}."),
    ]


class Talk:
    """
    One session with two examples in it.
    """

    def __init__(self, http: httpx.Client) -> None:
        agent = {"temperature": 0, "max_output_tokens": 100, "parallel_tool_calls": False}
        answer = http.post("/v1/sessions", json={"agent": agent, "items": example(7, "red") + example(19, "green")})
        assert answer.status_code == 201, answer.text
        self.http = http
        self.path = f"/v1/sessions/{answer.json()['id']}"

    def post(self, kind: str, data: dict[str, Any], **extra: Any) -> Any:
        answer = self.http.post(f"{self.path}/events", json={"type": kind, "data": data, **extra})
        assert answer.status_code == 202, answer.text
        return answer.json()

    def send(self, text: str, **extra: Any) -> Any:
        return self.post("message", {"role": "user", "content": text}, **extra)

    def snapshot(self) -> Any:
        return self.http.get(self.path).json()

    def read_until(self, after: int, *wanted: str) -> Any:
        """
        Follow the stream after event number *after* up to an event of a type, or a status, that is *wanted*.
        """
        with self.http.stream("GET", f"{self.path}/stream?after={after}") as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    numbered = event["seq"] > after
                    if numbered and (event["type"] in wanted or event.get("status") in wanted):
                        return event
        raise AssertionError(f"the stream ended before {wanted}")

    def end(self, after: int) -> Any:
        """
        Wait for the turn's end; its record, which says that it went well.
        """
        self.read_until(after, "idle", "failed")
        turn = self.http.get(f"{self.path}/responses").json()["data"][-1]
        assert turn["status"] in ("completed", "incomplete"), turn
        return turn

    def said(self) -> str:
        texts = [item for item in self.snapshot()["items"] if item["type"] == "message" and item["role"] == "assistant"]
        return "".join(part["text"] for part in texts[-1]["content"])

    def call_tool(self) -> dict[str, Any]:
        """
        Begin a turn that asks for the tool; the call that waits.
        """
        sent = self.send("What color is widget 42?", tools=[TOOL], tool_choice=FORCED)
        self.read_until(sent["seq"], "waiting", "failed", "idle")
        actions = self.snapshot()["required_actions"]
        assert [(action["name"], list(json.loads(action["arguments"]))) for action in actions] == [
            ("lookup_widget", ["widget_id"])
        ], self.snapshot()
        call: dict[str, Any] = actions[0]
        return call

    def answer(self, call: dict[str, Any]) -> Any:
        sent = self.post("function_call_output", {"call_id": call["call_id"], "output": '{"color": "teal"}'})
        return self.end(sent["seq"])


@pytest.fixture
def talk(server: RealServer) -> Talk:
    return Talk(server.http)


def test_a_text_turn_ends_with_a_text(talk: Talk) -> None:
    sent = talk.send("What color was widget 19?")

    assert talk.end(sent["seq"])["error"] is None
    assert talk.said()


def test_a_forced_tool_turn_calls_the_tool_once_and_goes_on_with_its_result(talk: Talk, server: RealServer) -> None:
    turn = talk.answer(talk.call_tool())

    assert turn["error"] is None
    assert not server.recalls or "teal" in talk.said()


def test_the_turn_after_a_tool_turn_knows_its_result_with_no_tool(talk: Talk, server: RealServer) -> None:
    talk.answer(talk.call_tool())
    sent = talk.send("What color was widget 42?")
    talk.end(sent["seq"])

    assert talk.said()
    assert not server.recalls or "teal" in talk.said()


def test_a_turn_after_an_interrupt_that_left_a_call_goes_well(talk: Talk) -> None:
    talk.call_tool()
    assert talk.post("interrupt", {})["interrupted"] is True
    sent = talk.send("What color was widget 7?")

    assert talk.end(sent["seq"])["error"] is None


def test_a_turn_after_an_interrupt_inside_an_answer_goes_well(talk: Talk) -> None:
    sent = talk.send("List the colors of all widgets from 1 to 99, one by one.")
    talk.read_until(sent["seq"], "response.output_text.delta", "idle", "failed")
    talk.post("interrupt", {})
    sent = talk.send("What color was widget 7?")

    assert talk.end(sent["seq"])["error"] is None
