"""
PATCH, fork and delete while a turn is in any state: what is in force when, and what a copy holds.
"""

import asyncio
from typing import Any

import pytest

from agent_harness.config import Limits
from agent_harness.engine.harness import Harness
from agent_harness.errors import NotFound, RequestError
from agent_harness.llm.base import ItemDone
from agent_harness.llm.scripted import ScriptedModel, Step, call, say, think
from agent_harness.protocol import events as said
from agent_harness.protocol.commands import CreateSession
from tests.engine.laws import check_requests, check_rest
from tests.engine.rig import Rig, open_rig, ticks


async def test_an_update_while_calls_are_open_holds_from_the_next_model_call_and_they_stay_answerable() -> None:
    """
    wire.md, PATCH: the tools of the calls already made may be gone.
    """
    async with open_rig([call("look", "{}", "c1"), say("done")], agent={"instructions": "old"}) as rig:
        rig.update(tools=[{"type": "function", "name": "look"}])
        rig.send(tools=None)
        await rig.waiting()
        rig.update(tools=[], instructions="new", model="other", temperature=0.5)
        assert rig.open == ["c1"]
        rig.result("c1")
        await rig.settled()
        first, second = rig.requests
        assert (first.instructions, second.instructions) == ("old", "new")
        assert (second.model, second.temperature, second.tools) == ("other", 0.5, ())
        assert len(rig.all(said.SessionUpdated)) == 2


async def test_what_a_provider_gave_is_kept_under_its_name_though_the_agent_changes_meanwhile() -> None:
    """
    Rule 6: hidden data goes back to the provider that gave it, and to no other.
    """
    gate = asyncio.Event()
    given = think("hm", {"id": "rs_1", "encrypted_content": "secret"}) + Step((gate,)) + say("a")
    first, second = ScriptedModel([given]), ScriptedModel([say("b")])
    async with Harness({"default": first, "other": second}, limits=Limits()) as harness:
        rig = Rig(harness, harness.create(CreateSession()), second)
        rig.send()
        await rig.until(lambda: rig.all(said.SummaryDelta))
        rig.update(provider="other")
        gate.set()
        await rig.finished()
        rig.send()
        await rig.settled()
        kept = [item.provenance for block in second.requests[0].blocks for item in block.items]
        assert [provenance.provider for provenance in kept if provenance is not None] == ["default"]


async def test_what_a_provider_gave_late_is_kept_under_its_name_too() -> None:
    """
    The same where the item ends after the change.
    """
    gate = asyncio.Event()
    thought = think("hm").parts
    hidden = ItemDone(0, hidden={"id": "rs_1", "encrypted_content": "secret"})
    given = Step((*thought[:-1], gate, hidden))
    first, second = ScriptedModel([given + say("a")]), ScriptedModel([say("b")])
    async with Harness({"default": first, "other": second}, limits=Limits()) as harness:
        rig = Rig(harness, harness.create(CreateSession()), second)
        rig.send()
        await rig.until(lambda: rig.all(said.SummaryDelta))
        rig.update(provider="other")
        gate.set()
        await rig.finished()
        rig.send()
        await rig.settled()
        kept = [item.provenance for block in second.requests[0].blocks for item in block.items]
        assert [provenance.provider for provenance in kept if provenance is not None] == ["default"]


async def test_a_null_in_an_update_is_the_default_again() -> None:
    """
    wire.md, PATCH: absent = unchanged, null = default.
    """
    agent = {
        "max_model_calls": 3,
        "instructions": "x",
        "tool_timeout_s": 5,
        "tools": [{"type": "function", "name": "a"}],
    }
    async with open_rig(agent=agent) as rig:
        rig.update(max_model_calls=None, instructions=None, tools=None)
        now = rig.snapshot["agent"]
        assert (now["max_model_calls"], now["instructions"], now["tools"]) == (50, None, [])
        assert now["tool_timeout_s"] == 5


# Forks.


async def check_fork(fork: Rig) -> list[str]:
    """
    Send one message in a fork; what the model was sent.
    """
    fork.model.steps.appendleft(say("forked"))
    fork.send("on", tools=None)
    await fork.finished()
    async with asyncio.timeout(5):
        while len(fork.requests) < 1 or fork.session.status != "idle":
            await ticks(1)
    check_requests(fork.requests)
    return fork.sent()


async def test_a_fork_while_calls_are_open_closes_them_there_and_leaves_the_source_untouched() -> None:
    """
    B012's kind: each announced call has one output in the copy, whichever had come.
    """
    async with open_rig([call("look", "{}", "c1") + call("find", "{}", "c2"), say("done")]) as rig:
        rig.send("go")
        await rig.waiting(2)
        rig.result("c2", "two")
        seq = rig.session.feed.seq
        fork = rig.fork()
        assert rig.session.feed.seq == seq
        assert rig.open == ["c1"]
        shown = fork.snapshot
        assert (shown["status"], shown["required_actions"], shown["queued"], shown["seq"]) == ("idle", [], [], 0)
        sent = await check_fork(fork)
        assert sent[:3] == ["user:go", "call:c1", "call:c2"]
        assert sent[3].startswith("output:c1=Error: ")
        assert sent[4] == "output:c2=two"
        with pytest.raises(RequestError) as refused:
            fork.result("c1")
        assert refused.value.code == "call_closed"
        rig.result("c1", "one")
        await rig.settled()
        assert rig.sent()[3:5] == ["output:c1=one", "output:c2=two"]


async def test_a_fork_at_any_settled_item_makes_valid_requests() -> None:
    """
    Rule 4 on the path of forks: between call and call, call and output, output and output, and of a fork's fork.
    """
    two = think("hm") + say("both") + call("look", "{}", "c1") + call("nope", "{}", "c2") + call("find", "{}", "c3")
    async with open_rig([two, say("done"), say("more")]) as rig:
        rig.send("go")
        await rig.waiting(2)
        rig.result("c3", "3")
        rig.result("c1", "1")
        await rig.finished()
        rig.send("again")
        await rig.settled()
        items = [item["id"] for item in rig.snapshot["items"]]
        for count, item_id in enumerate(items, 1):
            fork = rig.fork(item_id)
            copied = fork.snapshot["items"]
            assert not {item["id"] for item in copied} & set(items)
            assert all(item["response_id"] is None for item in copied)
            assert [item["type"] for item in copied if item.get("origin") != "harness" or item["type"] == "message"]
            await check_fork(fork)
            again = fork.fork()
            assert len(again.snapshot["items"]) == len(fork.snapshot["items"]) >= count
            await check_fork(again)
        with pytest.raises(NotFound) as refused:
            rig.fork("msg_unknown")
        assert refused.value.code == "unknown_item"


async def test_a_fork_in_mid_answer_holds_what_is_settled() -> None:
    gate = asyncio.Event()
    answer = say("half")
    halting = Step((*answer.parts[:2], gate, *answer.parts[2:]))
    async with open_rig([halting, say("q")]) as rig:
        rig.send("go")
        rig.send("queued")
        await rig.until(lambda: rig.all(said.TextDelta))
        fork = rig.fork()
        assert [item["role"] for item in fork.snapshot["items"]] == ["user"]
        draft = rig.snapshot["items"][1]["id"]
        for unsettled in (draft, rig.snapshot["queued"][0]):
            with pytest.raises(NotFound):
                rig.fork(unsettled)
        gate.set()
        await rig.settled()


# Deletion.


async def delete_in(rig: Rig) -> list[Any]:
    """
    Delete the session; what was told of it.
    """
    follower = rig.session.follow(str(rig.session.feed.seq))
    async with asyncio.timeout(5):
        await rig.harness.delete(rig.session)
        told: list[Any] = []
        while taken := await follower.take():
            told += [published.event for published in taken if published.numbered]
    return told


@pytest.mark.parametrize("moment", ["idle", "same tick", "mid-text", "parked", "one answered", "results in"])
async def test_a_deletion_at_any_moment_ends_the_turn_and_every_stream(moment: str) -> None:
    """
    B129: response.cancelled, session.status idle, session.deleted, the end; then nothing answers.
    """
    gate = asyncio.Event()
    halting = (*say("text").parts[:2], *([gate] if moment == "mid-text" else []), say("text").parts[2])
    steps = [Step(halting) + call("look", "{}", "c1") + call("find", "{}", "c2"), say("done")]
    async with open_rig(steps) as rig:
        if moment != "idle":
            rig.send("go")
            if moment == "mid-text":
                await rig.until(lambda: rig.all(said.TextDelta))
            elif moment != "same tick":
                await rig.waiting(2)
                for call_id in {"one answered": ["c1"], "results in": ["c1", "c2"]}.get(moment, []):
                    rig.result(call_id)
            waits = rig.send("queued")
        told = await delete_in(rig)
        ends = [event.type for event in told if event.type in ("session.status", "session.deleted")]
        assert ends == (["session.deleted"] if moment == "idle" else ["session.status", "session.deleted"])
        assert told[-1] == said.SessionDeleted(rig.session.id)
        if moment != "idle":
            assert told[-2].status == "idle"
            cancelled = [event.response.id for event in told if isinstance(event, said.ResponseCancelled)]
            assert len(cancelled) == 2
            assert cancelled[0] == waits.response_id
        check_rest(rig.session)
        rig.check()
        for refused in (rig.send, lambda: rig.result("c1"), rig.session.follow, lambda: rig.update(model="x")):
            with pytest.raises(NotFound) as gone:
                refused()
            assert gone.value.code == "unknown_session"
        with pytest.raises(NotFound):
            await rig.interrupt()
        with pytest.raises(NotFound):
            rig.harness.get(rig.session.id)
        await ticks(5)
        assert rig.harness.running_turns == 0


async def test_two_deletions_at_once_delete_once() -> None:
    """
    B129: the second finds nothing.
    """
    async with open_rig([call("look", "{}", "c1")]) as rig:
        rig.send()
        await rig.waiting()
        results = await asyncio.gather(
            rig.harness.delete(rig.session), rig.harness.delete(rig.session), return_exceptions=True
        )
        assert results[0] is None
        assert isinstance(results[1], NotFound)
        assert len(rig.all(said.SessionDeleted)) == 1
