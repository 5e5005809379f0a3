"""
Prompt caching: whatever happens in a session, each model request begins with the bytes of the one before it.

One session of more than 20 turns in each dialect, over real sockets, with everything in it that could make an adapter
write its past anew. The mock server checks STRICT besides, rule 9 among it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from agent_harness.testing.strict import Dialect
from agent_harness.testing.strict_prefix import slice_items
from tests.integration.both_dialects import DIALECTS, Servers, Talk, serve_both

PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"


@pytest.fixture(scope="module")
def both() -> Iterator[Servers]:
    with serve_both(max_retries=1, retry_base_s=0.0) as servers:
        yield servers


@pytest.fixture
def servers(both: Servers) -> Servers:
    both.clear()
    return both


def calls(count: int, name: str = "look", **extra: Any) -> dict[str, Any]:
    """
    An answer with that many parallel calls; their arguments keep spaces and characters as they are written.
    """
    made = [{"name": name, "arguments": f'{{"number":  {number}, "text": "é \u2028"}}'} for number in range(count)]
    return {"tool_calls": made, **extra}


def begun(dialect: Dialect) -> int:
    """
    After how many frames of a text its first words are out.
    """
    return 6 if dialect == "responses" else 3


class Session(Talk):
    """
    A session and what is done to it; each action is at least one turn.
    """

    def __init__(self, servers: Servers, dialect: Dialect, random: Random) -> None:
        super().__init__(servers, dialect, instructions="Be brief.", model="mock")
        self.dialect, self.random = dialect, random
        self.statuses: list[str] = []
        self.refusals = 0

    def play(self, *entries: dict[str, Any], answer: Callable[[list[str]], object] | None = None) -> None:
        self.servers.script(entries)
        sent = self.send(f"Message {len(self.statuses)}")
        self.finish(answer or self.answer_in_any_order)
        self.statuses.append(self.record(sent)["status"])

    def answer_in_any_order(self, call_ids: list[str]) -> None:
        for call_id in self.random.sample(call_ids, len(call_ids)):
            self.result(call_id)

    # Turns that end well.

    def says_something(self) -> None:
        self.play({"text": "Something, with caf\u00e9 and \U0001f642."})

    def calls_tools_in_parallel(self) -> None:
        self.play(calls(self.random.choice((2, 8)), text="I look."), {"text": "Found."})

    def thinks_and_calls(self) -> None:
        self.play(
            calls(2, reasoning="Let me think."), calls(1, reasoning="And again."), {"text": "So.", "reasoning": "Hm."}
        )

    def calls_a_tool_that_is_not_there(self) -> None:
        self.play(calls(1, "no_such_tool"), calls(1, "bad name!"), {"text": "Never mind."})

    def writes_broken_arguments(self) -> None:
        broken = ('{"a": ', "[1]", '"{\\"a\\": 1}"', "", '{"a": NaN}', '{"line": "one\ntwo"}')
        made = [{"name": "find", "arguments": text, "deltas": [text]} for text in broken]
        self.play({"tool_calls": made}, {"text": "At last."})

    def gets_errors_and_parts(self) -> None:
        def answer(call_ids: list[str]) -> None:
            parts = [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": PIXEL}]
            self.result(call_ids[1], parts)
            self.result(call_ids[0], "no luck", is_error=True)

        self.play(calls(2), {"text": "I see."}, answer=answer)

    def is_steered_while_it_waits(self) -> None:
        def answer(call_ids: list[str]) -> None:
            self.send("Mind the step.", delivery="steer")
            self.answer_in_any_order(call_ids)

        self.play(calls(2), {"text": "I mind it."}, answer=answer)

    def is_steered_at_its_end(self) -> None:
        self.servers.script([{"text": "Done already.", "block": begun(self.dialect)}, {"text": "One more thing."}])
        sent = self.send("Be quick.")
        self.read_until(lambda event: event["type"] == "response.output_text.delta")
        self.send("One more thing?", delivery="steer")
        self.servers.tell_mock("/gate/release", {})
        self.finish()
        self.statuses.append(self.record(sent)["status"])

    def has_messages_that_wait(self) -> None:
        def answer(call_ids: list[str]) -> None:
            self.send("Then this.")
            self.answer_in_any_order(call_ids)

        self.play(calls(1), {"text": "First."}, {"text": "Second."}, answer=answer)

    def is_asked_again_after_a_failure(self) -> None:
        self.play({"error": "Busy.", "status_code": 503}, {"text": "Now."})

    # Turns that do not.

    def is_interrupted_while_it_waits(self) -> None:
        def answer(call_ids: list[str]) -> None:
            self.result(self.random.choice(call_ids))
            self.post({"type": "interrupt"})

        self.play(calls(3, reasoning="Three of them."), answer=answer)

    def is_interrupted_while_it_speaks(self) -> None:
        self.servers.script([{"text": "Long words follow.", "reasoning": "", "block": begun(self.dialect) + 3}])
        sent = self.send("Speak.")
        self.read_until(lambda event: event["type"] == "response.output_text.delta")
        self.post({"type": "interrupt"})
        self.finish()
        self.statuses.append(self.record(sent)["status"])

    def breaks_off(self) -> None:
        self.play({"text": "Half of what I", "disconnect_after": begun(self.dialect)})

    def breaks_off_behind_calls(self) -> None:
        self.play(
            calls(2), {"text": "So far", "tool_calls": [{"name": "look"}], "disconnect_after": begun(self.dialect)}
        )

    def is_refused(self) -> None:
        self.play({"error": "Not today.", "status_code": 400})
        self.refusals += 1

    def runs_out_of_tokens(self) -> None:
        self.play({"text": "As long as it", "finish": "length"})

    def runs_out_of_tokens_in_a_call(self) -> None:
        self.play(calls(2, text="Both.", reasoning="Both?", finish="length"))

    def is_filtered(self) -> None:
        self.play({"text": "As bad as", "finish": "content_filter"})


ACTIONS: tuple[Callable[[Session], None], ...] = (
    Session.says_something,
    Session.calls_tools_in_parallel,
    Session.thinks_and_calls,
    Session.calls_a_tool_that_is_not_there,
    Session.writes_broken_arguments,
    Session.gets_errors_and_parts,
    Session.is_steered_while_it_waits,
    Session.is_steered_at_its_end,
    Session.has_messages_that_wait,
    Session.is_asked_again_after_a_failure,
    Session.is_interrupted_while_it_waits,
    Session.is_interrupted_while_it_speaks,
    Session.breaks_off,
    Session.breaks_off_behind_calls,
    Session.is_refused,
    Session.runs_out_of_tokens,
    Session.runs_out_of_tokens_in_a_call,
    Session.is_filtered,
)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_request_begins_with_the_bytes_of_the_last_one_answered(
    servers: Servers, dialect: Dialect, seed: int
) -> None:
    """
    B013, B014, B015, B023, B054, B071, B077, B147: what each of them leaves in the transcript stays as it was sent.
    """
    random = Random(seed)
    session = Session(servers, dialect, random)

    for action in [*random.sample(ACTIONS, len(ACTIONS)), *random.sample(ACTIONS, 6), Session.says_something]:
        action(session)

    assert len(session.statuses) >= 20
    assert session.statuses[-1] == "completed"
    assert {"completed", "cancelled", "failed", "incomplete"} == set(session.statuses)
    before, compared = b"", 0
    for number, asked in enumerate(servers.asked):
        assert asked.items.startswith(before), show_change(number, before, asked.items)
        if asked.status == 200:
            compared += before != b""
            before = asked.items
    assert compared >= 30
    # Those that the script refuses, and no more: STRICT had nothing to refuse.
    assert [asked.status for asked in servers.asked].count(400) == session.refusals


def show_change(number: int, before: bytes, items: bytes) -> str:
    """
    Where two requests begin to differ.
    """
    same = next((at for at, (a, b) in enumerate(zip(before, items, strict=False)) if a != b), len(items))
    start = max(0, same - 100)
    return f"request {number} at byte {same}: {before[start : same + 100]!r} became {items[start : same + 100]!r}"


def test_change_of_the_dialect_and_back_begins_anew_and_then_only_grows(servers: Servers) -> None:
    talk = Talk(servers, "responses", model="mock")
    talk.turn(calls(2, reasoning="Think."), {"text": "One."})
    servers.api(f"/{talk.id}", {"agent": {"provider": "chat"}}, "PATCH")
    talk.turn(calls(2, reasoning="Think."), {"text": "Two."})
    servers.api(f"/{talk.id}", {"agent": {"provider": "responses"}}, "PATCH")
    talk.turn(calls(2, reasoning="Think."), {"text": "Three."})

    assert [(asked.dialect, asked.status) for asked in servers.asked] == [
        *[("responses", 200)] * 2,
        *[("chat", 200)] * 2,
        *[("responses", 200)] * 2,
    ]
    for first, second in zip(servers.asked[::2], servers.asked[1::2], strict=True):
        assert second.items.startswith(first.items)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_new_instructions_and_tools_leave_the_items_as_they_were(servers: Servers, dialect: Dialect) -> None:
    """
    B170 too: what is changed in the middle of a session is in the next request, beside the items.
    """
    talk = Talk(servers, dialect, model="mock", instructions="Be brief.")
    talk.turn(calls(2, reasoning="Think."), {"text": "One."})
    tool = {"type": "function", "name": "find_more", "parameters": {"type": "object", "properties": {}}}
    servers.api(f"/{talk.id}", {"agent": {"instructions": "Be long.", "tools": [tool]}}, "PATCH")
    talk.turn({"text": "Two."})

    first, second = servers.asked[1:]
    assert [asked.status for asked in servers.asked] == [200] * 3
    assert b"find_more" in second.raw and b"Be long." in second.raw
    # Chat Completions has the instructions among the messages, as the first.
    head = 1 if dialect == "chat" else 0
    before, after = (slice_items(asked.raw, "messages" if head else "input")[head:] for asked in (first, second))
    assert after[: len(before)] == before
