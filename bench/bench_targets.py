"""
The two servers as the client must know them.
"""

import json
from collections.abc import Sequence

from bench_client import Connection, Target, find_between, make_request

__all__ = ["HarnessTarget", "ProxyTarget", "encode"]

TOOL = {
    "type": "function",
    "name": "look_up",
    "parameters": {"type": "object", "properties": {"widget_id": {"type": "integer"}}, "required": ["widget_id"]},
}
QUESTION = "What color is widget 42?"
RESULT = '{"color": "teal"}'


def encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class HarnessTarget(Target):
    """
    ``agent-harness serve``: the message is sent with ``?stream=true`` and brings its tool along. *provider* is the
    model server of new sessions.
    """

    waiting = b'"status":"waiting"'

    def __init__(self, url: str, provider: str = "frames") -> None:
        self.url = url
        self._create = encode({"agent": {"provider": provider}})
        self._message = encode(
            {"type": "message", "data": {"role": "user", "content": QUESTION}, "tools": [TOOL]},
        )

    def start_turn(self, session: str) -> bytes:
        return make_request(self.url, f"POST /v1/sessions/{session}/events?stream=true", self._message)

    def send_message(self, session: str) -> bytes:
        """
        The request that starts a turn and does not stream it.
        """
        return make_request(self.url, f"POST /v1/sessions/{session}/events", self._message)

    def send_result(self, session: str, seen: bytes) -> bytes:
        call_id = find_between(seen, b'"call_id":"', b'"').decode()
        body = encode({"type": "function_call_output", "data": {"call_id": call_id, "output": RESULT}})
        return make_request(self.url, f"POST /v1/sessions/{session}/events", body)

    def open(self, connection: Connection, count: int) -> list[str]:
        request = make_request(self.url, "POST /v1/sessions", self._create)
        return [connection.ask_json(request)["id"] for _ in range(count)]

    def close(self, connection: Connection, sessions: Sequence[str]) -> None:
        for session in sessions:
            connection.ask_json(make_request(self.url, f"DELETE /v1/sessions/{session}"))


class ProxyTarget(Target):
    """
    The bare proxy: the client sends both model requests itself, as the harness would make them for a first turn.
    """

    waiting = b"event: response.completed"

    def __init__(self, url: str) -> None:
        self.url = url
        self.pads = (0, 0)
        """How many bytes are added to the first and to the second model request."""
        head = {"model": "bench", "store": False, "stream": True, "include": ["reasoning.encrypted_content"]}
        message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]}
        ids = {"id": f"fc_{0:012}", "call_id": f"call_{0:012}"}
        call = {"type": "function_call", **ids, "name": "look_up", "arguments": '{"widget_id": 42}'}
        output = {"type": "function_call_output", "call_id": ids["call_id"], "output": RESULT}
        tools = [{**TOOL, "strict": False}]
        self._first = encode({**head, "tools": tools, "input": [message]})
        self._second = encode({**head, "tools": tools, "input": [message, call, output]})

    def start_turn(self, session: str) -> bytes:
        return make_request(self.url, "POST /turns", self._first, self._pad(0))

    def send_result(self, session: str, seen: bytes) -> bytes:
        turn_id = find_between(seen, b"x-turn-id: ", b"\r").decode()
        return make_request(self.url, f"POST /turns/{turn_id}/result", self._second, self._pad(1))

    def open(self, connection: Connection, count: int) -> list[str]:
        return [""] * count

    def close(self, connection: Connection, sessions: Sequence[str]) -> None:
        pass

    def pad_to(self, first: int, second: int) -> None:
        """
        Have the model requests be that long, where they are shorter by themselves.
        """
        self.pads = (max(0, first - len(self._first)), max(0, second - len(self._second)))

    def _pad(self, index: int) -> bytes:
        return b"x-pad: %d\r\n" % self.pads[index] if self.pads[index] else b""
