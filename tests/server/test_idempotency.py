"""
``Idempotency-Key`` on every POST.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from agent_harness.llm.scripted import call, say
from tests.support import TOOL, WAIT_S, Api, Stream, types, user

Serve = Callable[..., Awaitable[Api]]

KEY = {"Idempotency-Key": "one"}


async def test_a_repeated_message_takes_effect_once_and_gets_its_first_answer(serve: Serve) -> None:
    api = await serve(say("hello"))
    talk = await api.open()
    path = f"{talk.path}/events"
    first = await api.ask("POST", path, json=user("hi"), headers=KEY)
    await talk.stream.until_status("idle")
    second = await api.ask("POST", path, json=user("hi"), headers=KEY)
    assert (second.status, second.raw) == (202, first.raw)
    assert (first.headers.get("idempotency-replayed"), second.headers["idempotency-replayed"]) == (None, "true")
    assert len(api.model.requests) == 1


async def test_the_same_key_with_another_body_is_refused(serve: Serve) -> None:
    api = await serve(say("hello"))
    talk = await api.open()
    await api.ask("POST", f"{talk.path}/events", json=user("hi"), headers=KEY)
    await talk.stream.until_status("idle")
    await api.refused(
        "POST",
        f"{talk.path}/events",
        json=user("ho"),
        headers=KEY,
        status=409,
        code="idempotency_conflict",
        param="Idempotency-Key",
    )


async def test_a_key_belongs_to_its_path_with_the_query_and_to_its_session(serve: Serve) -> None:
    api = await serve(say("one"), say("two"), say("three"))
    talk, other = await api.open(), await api.open()
    answers = [
        await api.ask("POST", f"{talk.path}/events", json=user("hi"), headers=KEY),
        await api.ask("POST", f"{talk.path}/events?stream=false", json=user("hi"), headers=KEY),
        await api.ask("POST", f"{other.path}/events", json=user("hi"), headers=KEY),
    ]
    assert len({answer.body["item_id"] for answer in answers}) == 3


async def test_a_refusal_is_not_kept(serve: Serve) -> None:
    api = await serve(call("look_up", call_id="c1"), say("ok"))
    talk = await api.open()
    path = f"{talk.path}/events"
    result = {"type": "function_call_output", "data": {"call_id": "c1", "output": "x"}}
    refused = await api.ask("POST", path, json=result, headers=KEY)
    await talk.send(tools=[TOOL])
    await talk.stream.until_status("waiting")
    taken = await api.ask("POST", path, json=result, headers=KEY)
    assert (refused.status, taken.status, taken.body["duplicate"]) == (404, 202, False)


async def test_sessions_and_forks_are_made_once_a_key(serve: Serve) -> None:
    api = await serve()
    made = [await api.ask("POST", "/v1/sessions", json={}, headers=KEY) for _ in range(2)]
    path = f"/v1/sessions/{made[0].body['id']}"
    forks = [await api.ask("POST", f"{path}/fork", json={}, headers=KEY) for _ in range(2)]
    assert made[0].raw == made[1].raw and forks[0].raw == forks[1].raw
    assert len((await api.get("/v1/sessions"))["data"]) == 2


async def test_a_key_in_flight_waits_for_the_first(serve: Serve) -> None:
    """
    An interrupt is answered when its turn has let go of the model; a repeat in between gets that answer.
    """
    gate = asyncio.Event()

    class Slow:
        default_model = "slow"
        left = asyncio.Event()

        async def stream(self, request: Any) -> Any:
            try:
                await asyncio.Event().wait()
                yield None
            finally:
                self.left.set()
                await gate.wait()

        def body(self, request: Any) -> bytes:
            return b"{}"

    slow = Slow()
    api = await serve(models={"default": slow})
    talk = await api.open()
    await talk.send()
    await talk.stream.until("response.created")
    post = {"json": {"type": "interrupt"}, "headers": KEY}
    both = [asyncio.create_task(api.ask("POST", f"{talk.path}/events", **post)) for _ in range(2)]
    async with asyncio.timeout(WAIT_S):
        await slow.left.wait()
    gate.set()
    answers = await asyncio.gather(*both)
    assert answers[0].raw == answers[1].raw and answers[0].body["interrupted"] is True
    assert sorted("idempotency-replayed" in answer.headers for answer in answers) == [False, True]


async def test_a_repeated_stream_is_told_again_from_its_first_event(serve: Serve) -> None:
    api = await serve(say("hel", "lo"))
    talk = await api.open()
    told = []
    for _ in range(2):
        headers = KEY | {"Content-Type": "application/json"}
        body = b'{"type":"message","data":{"content":"hi"}}'
        async with api.client.post(f"{talk.path}/events?stream=true", data=body, headers=headers) as response:
            replayed = response.headers.get("idempotency-replayed")
            told.append((replayed, await Stream(response).rest()))
    assert [replayed for replayed, _ in told] == [None, "true"]
    assert types(told[0][1])[1:] == types(told[1][1])[1:]
    assert [frame.raw for frame in told[0][1][1:]] == [frame.raw for frame in told[1][1][1:]]
    assert len(api.model.requests) == 1


async def test_an_empty_or_overlong_key_is_refused(serve: Serve) -> None:
    api = await serve()
    for key in ("", "k" * 256):
        await api.refused(
            "POST",
            "/v1/sessions",
            json={},
            headers={"Idempotency-Key": key},
            status=400,
            code="invalid_value",
            param="Idempotency-Key",
        )
