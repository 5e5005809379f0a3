"""
The one item list: whatever happened before, a strict provider takes it, and what was sent stays as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_harness.protocol.answers import finish_draft, grow_draft
from agent_harness.protocol.blocks import Block, Blocks, build_blocks
from agent_harness.protocol.drafts import Draft
from agent_harness.protocol.items import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    Message,
    OutputText,
    Provenance,
    Reasoning,
    Refusal,
)
from agent_harness.protocol.transcript import Transcript, Waiting
from agent_harness.protocol.turns import Turn

HIDDEN = Provenance("openai", "gpt", {"id": "x"})


def user(text: str) -> Message:
    return Message(id=f"msg_{text}", role="user", content=(InputText(text),), origin="client", created_at=0)


def says(text: str, status: Literal["completed", "incomplete"] = "completed") -> Message:
    content = (OutputText(text),)
    return Message(
        id=f"msg_{text}",
        role="assistant",
        content=content,
        origin="model",
        status=status,
        created_at=0,
        provenance=HIDDEN if status == "completed" else None,
    )


def calls(call_id: str, status: Any = "completed") -> FunctionCall:
    return FunctionCall(
        id=f"fc_{call_id}",
        call_id=call_id,
        name="f",
        arguments="{}",
        status=status,
        created_at=0,
        provenance=HIDDEN,
    )


def thinks(name: str, status: Literal["completed", "incomplete"] = "completed") -> Reasoning:
    return Reasoning(id=f"rs_{name}", status=status, created_at=0, provenance=HIDDEN)


def output(call_id: str) -> FunctionCallOutput:
    return FunctionCallOutput(id=f"fco_{call_id}", call_id=call_id, output=call_id.upper(), created_at=0)


def draft(name: str, kind: Any = "message") -> Draft:
    return Draft(id=name, type=kind, response_id="r", output_index=0, created_at=0, call_id=name)


def build(*entries: Item | Draft) -> list[Block]:
    outputs = {entry.call_id: entry for entry in entries if isinstance(entry, FunctionCallOutput)}
    return build_blocks(entries, outputs)[0]


def name_of(item: Item) -> str:
    return item.id.partition("_")[0][0] + ":" + item.id.partition("_")[2]


def names(blocks: Sequence[Block]) -> list[str]:
    """
    Each block as its items' first letters and names, and the outputs behind a bar.
    """
    told = []
    for block in blocks:
        line = " ".join(map(name_of, block.items))
        told.append(line + (" | " + " ".join(output.call_id for output in block.outputs) if block.outputs else ""))
    return told


@pytest.mark.parametrize(
    "entries, told",
    [
        ([], []),
        ([user("q")], ["m:q"]),
        ([user("q"), says("a"), user("r")], ["m:q", "m:a", "m:r"]),
        ([user("q"), user("r")], ["m:q", "m:r"]),
        ([user("q"), calls("c"), output("c"), says("a")], ["m:q", "f:c | c", "m:a"]),
        ([calls("a"), calls("b"), output("b"), output("a")], ["f:a f:b | a b"]),
        ([calls("a"), output("a"), calls("b"), output("b")], ["f:a | a", "f:b | b"]),
        ([calls("a"), user("q"), output("a"), says("x")], ["f:a | a", "m:q", "m:x"]),
        ([calls("a", "action_required"), calls("b"), output("b")], ["f:a f:b | b"]),
        ([thinks("r"), says("a"), calls("c"), output("c")], ["r:r m:a f:c | c"]),
        ([thinks("r"), calls("a"), thinks("s"), calls("b"), output("a"), output("b")], ["r:r f:a r:s f:b | a b"]),
        ([thinks("r"), calls("a"), thinks("s"), output("a")], ["r:r f:a | a"]),
        ([user("q"), thinks("r"), user("s")], ["m:q", "m:s"]),
        ([user("q"), says(""), user("s")], ["m:q", "m:s"]),
        ([thinks("r"), says(""), calls("c"), output("c")], ["r:r f:c | c"]),
        ([user("q"), calls("c", "incomplete"), user("s")], ["m:q", "m:s"]),
        ([calls("c", "incomplete"), output("c"), user("s")], ["f:c | c", "m:s"]),
        ([calls("c", "failed"), output("c"), user("s")], ["f:c | c", "m:s"]),
        ([thinks("r", "incomplete"), says("cut", "incomplete"), calls("c", "incomplete"), user("s")], ["m:cut", "m:s"]),
        ([thinks("r"), says("cut"), calls("c", "incomplete"), user("s")], ["m:cut", "m:s"]),
        ([user("q"), draft("a"), draft("c", "function_call")], ["m:q"]),
        ([user("q"), says("a"), draft("b")], ["m:q", "m:a"]),
    ],
)  # fmt: skip
def test_entries_become_what_a_strict_provider_takes(entries: list[Item | Draft], told: list[str]) -> None:
    """B003, B006, B015, B016, B023, B077, B132, B144."""
    assert names(build(*entries)) == told


def test_message_of_a_refusal_alone_is_sent() -> None:
    refusal = attrs.evolve(says("a"), content=(Refusal("no"),))
    assert build(refusal) == [Block((refusal,))]

    silent = attrs.evolve(says("a"), content=())
    assert build(silent) == []


def test_user_message_without_text_is_sent() -> None:
    assert build(user("")) == [Block((user(""),))]


def test_text_of_a_cut_answer_is_plain_text() -> None:
    """B014, B077: no ids of the provider's without that answer's reasoning."""
    whole, cut = says("whole"), says("cut")

    blocks = build(thinks("r"), whole, calls("a"), output("a"), thinks("s"), cut, calls("b", "incomplete"))

    assert blocks == [
        Block((thinks("r"), whole, calls("a")), (output("a"),)),
        Block((attrs.evolve(cut, provenance=None),)),
    ]


def test_call_that_was_closed_without_a_result_is_no_cut() -> None:
    """B001, B142: closed by interrupt or deadline; what its provider gave goes back with it."""
    closed = calls("a", "incomplete")

    assert build(thinks("r"), closed, output("a")) == [Block((thinks("r"), closed), (output("a"),))]


def test_block_says_whether_it_is_a_user_message() -> None:
    blocks = build(user("q"), says("a"), calls("c"), output("c"))

    assert [block.is_user for block in blocks] == [True, False]


def test_building_from_where_the_last_block_begins_gives_that_block_and_what_follows() -> None:
    entries = [user("q"), calls("a"), output("a"), thinks("r"), calls("b", "action_required")]
    outputs = {"a": output("a")}

    blocks, start = build_blocks(entries, outputs)
    assert start == 3

    later = [*entries, output("b"), says("x")]
    tail, _ = build_blocks(later, outputs | {"b": output("b")}, start)
    assert names(blocks[:-1] + tail) == ["m:q", "f:a | a", "r:r f:b | b", "m:x"]


class Play:
    """
    A transcript that lives through random turns, and the promises checked before each model call.
    """

    def __init__(self, data: st.DataObject) -> None:
        self.transcript = Transcript()
        self.said: list[str] = []
        self.owed: list[str] = []
        self.cut: set[str] = set()
        self._data = data
        self._sent: list[Item] = []
        self._count = 0

    def draw(self, *values: Any) -> Any:
        return self._data.draw(st.sampled_from(values))

    def name(self) -> str:
        self._count += 1
        return f"n{self._count}"

    def play_turn(self) -> None:
        message = user(self.name())
        self.said.append(message.id)
        self.transcript.open_turn(Turn(id=self.name(), status="in_progress", created_at=0), message, (), None)
        while self.play_answer():
            pass
        status = self.draw("completed", "failed", "cancelled", "incomplete")
        if status == "cancelled":
            self.add_user()
        self.transcript.end_turn(status, 0)

    def play_answer(self) -> bool:
        """
        One model call; whether another follows in this turn.
        """
        self.check_request()
        self.transcript.count_call("m")
        drafts = [
            self.begin(index, self.draw("message", "function_call", "reasoning"))
            for index in range(self.draw(0, 1, 2, 3, 4))
        ]
        self.glance()
        called = [part for part in drafts if part.type == "function_call"]
        spoken = [part.id for part in drafts if part.text() and part.type == "message"]
        ending = self.draw("well", "well", "well", "cut", "bound")
        self.said += spoken
        if ending != "well":
            self.cut |= set(spoken) if ending == "cut" or called else set()
            _ = self.transcript.cut_answer() if ending == "cut" else self.transcript.end_answer({}, {})
            return False
        refused = {part.call_id: output(part.call_id) for part in called if self.draw(False, False, True)}
        announced = [part.call_id for part in called if part.call_id not in refused]
        self.transcript.end_answer(dict.fromkeys(announced), refused)
        self.owed += [part.call_id for part in called]
        self.close_calls(announced)
        if self.draw(False, False, True):
            self.steer()
            return True
        return bool(called) and self.draw(True, True, False)

    def begin(self, index: int, kind: Any) -> Draft:
        part = Draft(id=f"x_{self.name()}", type=kind, response_id="r", output_index=0, created_at=0, name="f")
        part.call_id = part.id
        self.transcript.begin_item(index, part)
        if kind == "message":
            grow_draft(part, "text", 0, self.draw("", part.id))
        if self.draw(True, True, False):
            finish_draft(part, arguments="{}", provenance=HIDDEN)
        return part

    def close_calls(self, announced: list[str]) -> None:
        for call_id in self._data.draw(st.permutations(announced)):
            self.glance()
            by = self.draw("client", "client", "interrupt", "deadline", "harness")
            status = self.draw("completed", "failed") if by == "client" else "incomplete"
            self.transcript.close_call(output(call_id), status, by)

    def steer(self) -> None:
        message = user(self.name())
        self.transcript.wait(Waiting(message, True, None, None), None)
        self.glance()
        self.transcript.enter_steered()
        self.said.append(message.id)

    def add_user(self) -> None:
        message = user(self.name())
        self.said.append(message.id)
        self.transcript.add_message(message)

    def glance(self) -> None:
        """
        Look at the blocks at some moment, as a request for the next body does: that changes nothing.
        """
        if self.draw(True, False):
            self.transcript.blocks()

    def check_request(self) -> None:
        blocks, closed = self.transcript.blocks()
        assert list(blocks) == build_blocks(self.transcript.settled(), self.transcript.outputs)[0]
        assert closed <= len(blocks)
        flat: list[Item] = []
        for block in blocks:
            self.check_block(block)
            flat += [*block.items, *block.outputs]
        assert flat[: len(self._sent)] == self._sent
        assert len({item.id for item in flat}) == len(flat)
        assert [item.call_id for item in flat if isinstance(item, FunctionCall)] == self.owed
        assert sorted(item.call_id for item in flat if isinstance(item, FunctionCallOutput)) == sorted(self.owed)
        assert [item.id for item in flat if isinstance(item, Message)] == self.said
        self._sent = flat

    def check_block(self, block: Block) -> None:
        assert not isinstance(block.items[-1], Reasoning)
        in_block = [item.call_id for item in block.items if isinstance(item, FunctionCall)]
        assert [output.call_id for output in block.outputs] == in_block
        if self.cut & {item.id for item in block.items}:
            assert all(isinstance(item, Message) and item.provenance is None for item in block.items)
        if block.is_user:
            assert len(block.items) == 1


@given(data=st.data())
@settings(deadline=None, derandomize=True, max_examples=200)
def test_every_transcript_makes_requests_that_pair_and_begin_with_the_one_before(data: st.DataObject) -> None:
    """B001, B002, B005, B006, B012, B016, B020, B023, B077, B130, B132."""
    play = Play(data)
    for _ in range(data.draw(st.integers(1, 4))):
        play.play_turn()
    play.check_request()


def test_the_blocks_of_a_request_are_a_sequence_that_later_blocks_do_not_change() -> None:
    one, two, three, four = (Block((user(f"m{number}"),)) for number in range(4))
    closed = [one, two]
    blocks = Blocks(closed, len(closed), [three])
    closed.append(four)

    for plain in ((one, two, three), [one, two, three]):
        assert blocks == plain and plain == blocks and list(blocks) == list(plain)
    assert (len(blocks), blocks[0], blocks[-1], blocks[2]) == (3, one, three, three)
    for part in (slice(1, None), slice(None, 2), slice(-2, None), slice(0, 0), slice(None, None, -1)):
        assert blocks[part] == [one, two, three][part]
    assert list(reversed(blocks)) == [three, two, one]
    assert blocks == Blocks([one], 1, [two, three]) and blocks != (one, two) and blocks != Blocks([one, two], 2, [])
    assert two in blocks and four not in blocks
    for outside in (3, -4):
        with pytest.raises(IndexError):
            blocks[outside]
    assert not Blocks([one], 0, [])


def test_forgotten_blocks_are_made_again() -> None:
    transcript = Transcript()
    for number in range(3):
        transcript.add_message(user(f"m{number}"))
    before, closed = transcript.blocks()
    transcript.forget_blocks()
    transcript.add_message(user("m3"))
    after, more = transcript.blocks()
    assert list(after)[:3] == list(before) and (closed, more) == (2, 3)
