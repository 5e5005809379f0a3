"""
What each contract of `contracts` checks; the sentences stand there. Each raises AssertionError with what it met.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import attrs
import orjson

from agent_harness.errors import ModelError
from agent_harness.llm.base import Ended, RequestCache, TextDelta
from agent_harness.protocol.blocks import Block
from agent_harness.protocol.items import Usage
from agent_harness.testing.contract_reader import Heard, answer_block, listen, make_request, user_block
from agent_harness.testing.contract_script import Answer, Call, Make, Subject
from agent_harness.testing.strict import Dialect, SessionMemory, StrictOptions, check_request, parse_body

__all__ = [
    "check_apart",
    "check_body",
    "check_calls",
    "check_cancelling",
    "check_characters",
    "check_end",
    "check_failures",
    "check_giving_way",
    "check_letting_go",
    "check_order",
    "check_retries",
    "check_strict",
    "check_texts",
    "check_usage",
]

LET_GO_S = 2.0
"""What "at once" means for a model server that must notice it, in seconds."""

PIECES = ("One ", "two ", "three ", "four.")
LOOK = Call("look_up", '{"widget_id":  42}', "call_contract_1")
FIND = Call("find", '{"text": "caf\u00e9 \u2028"}', "call_contract_2")
WHOLE = Answer(think="Let me see what there is.", text=PIECES, calls=(LOOK, FIND))
PLAIN = Answer(text=PIECES)


async def check_order(make: Make) -> None:
    for answer in (WHOLE, PLAIN, Answer(calls=(FIND, LOOK)), attrs.evolve(PLAIN, end="max_output_tokens"), Answer()):
        heard = await hear(make, answer)
        assert not heard.faults, "; ".join(heard.faults)


async def check_texts(make: Make) -> None:
    heard = await hear(make, WHOLE)
    said = [(item.added.type, item.text) for item in heard.items if item.added.type != "function_call"]
    wanted = [("reasoning", WHOLE.think), ("message", "".join(PIECES))]
    assert said == wanted, f"it gave {said} for {wanted}"


async def check_calls(make: Make) -> None:
    heard = await hear(make, WHOLE)
    calls = [(item.added.name, item.arguments, item.added.call_id) for item in heard.items if item.is_call]
    wanted = [(call.name, call.arguments, call.call_id) for call in WHOLE.calls]
    assert calls == wanted, f"it gave {calls} for {wanted}"


async def check_end(make: Make) -> None:
    for reason in ("completed", "max_output_tokens", "content_filter"):
        heard = await hear(make, attrs.evolve(PLAIN, end=reason))
        assert heard.ended is not None and heard.error is None, f"it did not end {reason}: {heard.error!r}"
        assert heard.ended.reason == reason, f"it ended {heard.ended.reason!r} where the upstream ended {reason}"
        assert not heard.after_end, f"{heard.after_end[0]!r} came after the end"
    heard = await hear(make, attrs.evolve(PLAIN, end="broken"))
    assert heard.ended is None, "an answer that was cut ended by itself"
    code = getattr(heard.error, "code", None)
    assert code in ("upstream_disconnected", None), f"an answer that was cut was called {code}"


async def check_failures(make: Make) -> None:
    for end in ("refused", "busy", "broken"):
        heard = await hear(make, *[attrs.evolve(PLAIN, end=end, words="The words of it.")] * 5)
        if end == "broken" and heard.error is None:
            continue
        assert isinstance(heard.error, ModelError), f"{end} became {heard.error!r}"
        assert heard.error.code in ModelError.codes, f"{end} has the code {heard.error.code!r}, which is none of ours"
        assert heard.error.code != "internal_error", f"{end} was called an internal error: {heard.error}"
        assert end == "broken" or "The words of it." in heard.error.message, f"it says {heard.error.message!r}"


async def check_retries(make: Make) -> None:
    heard = await hear(make, attrs.evolve(PLAIN, end="busy"), PLAIN)
    attempts = [retry.attempt for retry in heard.retries]
    assert attempts == list(range(1, len(attempts) + 1)), f"its attempts were counted {attempts}"
    assert heard.error is not None or attempts, "it asked again and announced nothing"
    assert heard.error is not None or heard.text == "".join(PIECES), f"what it said after a retry was {heard.text!r}"
    async with make([attrs.evolve(PLAIN, end="broken"), Answer(text=("The next.",))]) as subject:
        first, second = [await listen(subject.model, make_request(subject.model)) for _ in range(2)]
    assert not first.retries, "it asked again after output had begun"
    assert "".join(PIECES).startswith(first.text), f"behind a cut answer it said {first.text!r}"
    assert second.text == "The next.", f"the answer after the cut one was {second.text!r}"


async def check_letting_go(make: Make) -> None:
    silent = attrs.evolve(PLAIN, end="silent")
    async with make([silent, silent, PLAIN]) as subject:
        before = asyncio.all_tasks()
        stream: Any = subject.model.stream(make_request(subject.model))
        await read_text(stream)
        closing = asyncio.create_task(stream.aclose())
        _, pending = await asyncio.wait((closing,), timeout=LET_GO_S)
        assert not pending, "its stream cannot be closed"
        await closing
        await check_rest(subject, before, "its stream was closed")
        reached = asyncio.Event()
        task = asyncio.create_task(read_to_the_end(subject, reached))
        await reached.wait()
        await cancel(task)
        await check_rest(subject, before, "its task was cancelled")
        heard = await listen(subject.model, make_request(subject.model))
        assert heard.text == "".join(PIECES), f"the answer afterwards was {heard.text!r} {heard.error!r}"


async def check_characters(make: Make) -> None:
    heard = await hear(make, Answer(text=("a \ud83d", "\ude42 b \ud83d", " c")))
    for piece in heard.pieces:
        assert not any("\ud800" <= char <= "\udfff" for char in piece), f"half a character is in {piece!r}"
    assert "a \U0001f642 b" in heard.text, f"halves were not joined: {heard.text!r}"


async def check_giving_way(make: Make) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    # More than any reader takes in at once, so that one that waits for its upstream waits in between.
    async with make([Answer(text=("x" * 4000 + " ",) * 400)]) as subject:
        stream: Any = subject.model.stream(make_request(subject.model))
        async with aclosing(stream):
            await read_text(stream)
            ticker = asyncio.create_task(tick())
            async for _ in stream:
                pass
            ticker.cancel()
    assert ticks > 0, "nothing else ran from its first text to its last"


async def check_body(make: Make) -> None:
    async with make([]) as subject:
        model = subject.model
        heard = Heard.of_call("look_up", '{"widget_id":  42}', "call_contract_1")
        blocks = (user_block("Hello"), answer_block(model, heard), user_block("And?"))
        request = make_request(model, blocks)
        before = repr(request.blocks)
        first = model.body(request)
        assert isinstance(orjson.loads(first), dict), "the body is no JSON object"
        assert model.body(request) == first, "the same request gave two bodies"
        grown = make_request(model, (*blocks, answer_block(model, Heard.of_text("Yes.")), user_block("Well")))
        kept = model.body(attrs.evolve(grown, cache=request.cache))
        assert kept == model.body(attrs.evolve(grown, cache=RequestCache())), "what it kept changed a body"
        assert repr(request.blocks) == before, "it changed the request"


async def check_strict(make: Make) -> None:
    script = [
        WHOLE,
        PLAIN,
        Answer(think="Again.", calls=(attrs.evolve(LOOK, call_id="call_contract_3"),)),
        PLAIN,
        PLAIN,
    ]
    blocks: tuple[Block, ...] = ()
    memory, cache = SessionMemory(), RequestCache()
    async with make(script) as subject:
        for number, answer in enumerate(script):
            blocks += () if blocks and blocks[-1].outputs else (user_block(f"Question {number}"),)
            request = attrs.evolve(make_request(subject.model, blocks), cache=cache)
            raw = subject.model.body(request)
            if subject.dialect is not None:
                memory.last = check_strictly(subject.dialect, raw, memory)
            heard = await listen(subject.model, request)
            assert heard.error is None, f"request {number + 1} failed: {heard.error!r}"
            names = [item.added.name for item in heard.items if item.is_call]
            assert names == [call.name for call in answer.calls], f"answer {number + 1} had the calls {names}"
            blocks += (answer_block(subject.model, heard),)


def check_strictly(dialect: Dialect, raw: bytes, memory: SessionMemory) -> Any:
    try:
        return check_request(dialect, parse_body(raw), raw, StrictOptions(refuse_nul=True), memory)
    except Exception as error:
        raise AssertionError(f"{error} in {raw[:2000]!r}") from error


async def check_apart(make: Make) -> None:
    texts = [(f"{letter} ",) * 40 for letter in "ab"]
    async with make([Answer(text=text) for text in texts]) as subject:
        requests = [make_request(subject.model, session_id=f"sess_contract_{number}") for number in range(2)]
        heard = await asyncio.gather(*(listen(subject.model, request) for request in requests))
    said = sorted(one.text for one in heard)
    assert said == ["".join(text) for text in texts], f"two at once said {said}"


async def check_usage(make: Make) -> None:
    full = Usage(input_tokens=70, output_tokens=11, total_tokens=81, cached_tokens=64, reasoning_tokens=5)
    for usage in (full, None):
        heard = await hear(make, attrs.evolve(PLAIN, usage=usage))
        assert isinstance(heard.ended, Ended), f"it did not end: {heard.error!r}"
        assert heard.ended.usage == (usage or Usage()), f"it reported {heard.ended.usage}"


async def check_cancelling(make: Make) -> None:
    async with make([WHOLE] * 100) as subject:
        before = asyncio.all_tasks()
        for point in range(1, 80):
            count = [0]
            task = asyncio.create_task(read_to_point(subject, point, count))
            await asyncio.wait((task,))
            reached = count[0] >= point
            assert task.cancelled() == reached, f"a cancellation at delta {point} became {task!r}"
            await check_rest(subject, before, f"it was cancelled at delta {point}")
            if not reached:
                break
    async with make([attrs.evolve(WHOLE, end="silent")] * 12) as subject:
        before = asyncio.all_tasks()
        for rounds in (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89):
            task = asyncio.create_task(read_to_the_end(subject))
            for _ in range(rounds):
                await asyncio.sleep(0)
            await cancel(task)
            await check_rest(subject, before, f"it was cancelled {rounds} steps after it began")


async def hear(make: Make, *script: Answer) -> Heard:
    """
    What a model says with this script to one request.
    """
    async with make(script) as subject:
        return await listen(subject.model, make_request(subject.model))


async def read_text(stream: Any) -> None:
    async for delta in stream:
        if isinstance(delta, TextDelta):
            return
    raise AssertionError("it ended without a text")


async def read_to_the_end(subject: Subject, reached: asyncio.Event | None = None) -> None:
    async with aclosing(subject.model.stream(make_request(subject.model))) as stream:  # type: ignore[type-var]
        async for delta in stream:
            if reached is not None and isinstance(delta, TextDelta):
                reached.set()


async def read_to_point(subject: Subject, point: int, count: list[int]) -> None:
    task = asyncio.current_task()
    assert task is not None
    async with aclosing(subject.model.stream(make_request(subject.model))) as stream:  # type: ignore[type-var]
        async for _ in stream:
            count[0] += 1
            if count[0] == point:
                task.cancel()
    # Where all the rest was there already, this is the first place to be cancelled at.
    await asyncio.sleep(0)


async def cancel(task: asyncio.Task[None]) -> None:
    """
    Cancel a task that reads a silent stream.
    """
    task.cancel()
    _, pending = await asyncio.wait((task,), timeout=LET_GO_S)
    assert not pending, "it went on after its task was cancelled"
    assert task.cancelled(), f"a cancellation became {task!r}"


async def check_rest(subject: Subject, before: set[asyncio.Task[Any]], when: str) -> None:
    """
    Nothing runs any more that did not run *before*, here or upstream.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + LET_GO_S
    while left := asyncio.all_tasks() - before:
        assert loop.time() < end, f"{left} is left after {when}"
        await asyncio.sleep(0)
    while subject.open is not None and (count := await subject.open()):
        assert loop.time() < end, f"{count} requests are open upstream after {when}"
        await asyncio.sleep(0)
