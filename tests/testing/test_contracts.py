"""
The contracts of models: the three models of this package keep them, and each contract can be broken.
"""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from aiohttp import web

from agent_harness.config import ProviderSettings, TransportName
from agent_harness.llm.base import Delta, Ended, Request
from agent_harness.protocol.items import Usage
from agent_harness.testing.contracts import CONTRACTS, Answer, Contract, Make, Subject, check_model
from agent_harness.testing.mock_entry import read_entry
from agent_harness.testing.mock_llm import build_answer, make_mock_app
from agent_harness.testing.strict import Dialect
from agent_harness.testing.threads import ThreadServer
from agent_harness.wiring import make_model
from tests.testing.broken_models import BROKEN, CountingModel, HalfCharacters, scripted

NUMBERS = count()


@pytest.fixture(scope="module")
def mock_url() -> Iterator[str]:
    async def make_app() -> web.Application:
        return make_mock_app()

    with ThreadServer(make_app) as server:
        yield server.url


def to_usage(dialect: Dialect, usage: Usage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    asked, answered = ("input", "output") if dialect == "responses" else ("prompt", "completion")
    return {
        f"{asked}_tokens": usage.input_tokens,
        f"{answered}_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        f"{asked}_tokens_details": {"cached_tokens": usage.cached_tokens},
        f"{answered}_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def to_entry(dialect: Dialect, answer: Answer) -> dict[str, Any]:
    """
    What the mock server says for an answer of a contract.
    """
    if answer.end in ("refused", "busy"):
        return {"error": answer.words, "status_code": 400 if answer.end == "refused" else 503}
    calls = [{"name": made.name, "arguments": made.arguments, "call_id": made.call_id or None} for made in answer.calls]
    entry: dict[str, Any] = {"usage": to_usage(dialect, answer.usage), "tool_calls": calls}
    if answer.think is not None:
        entry["reasoning"] = answer.think
    if answer.text:
        entry["deltas"] = list(answer.text)
    if answer.end in ("max_output_tokens", "content_filter"):
        entry["finish"] = "length" if answer.end == "max_output_tokens" else "content_filter"
    if answer.end in ("broken", "silent"):
        frames = build_answer(dialect, read_entry(entry, "entry"), {}, 0).frames
        last = max(place for place, frame in enumerate(frames) if frame.is_delta)
        entry["disconnect_after" if answer.end == "broken" else "block"] = last
    return entry


def ask_mock(url: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url + path, data), timeout=10) as answer:
        return json.load(answer)


def adapter(dialect: Dialect, url: str, transport: TransportName = "aiohttp") -> Make:
    """
    Makes subjects of that dialect's adapter, each with a queue of its own.
    """

    @asynccontextmanager
    async def make(script: Sequence[Answer]) -> AsyncIterator[Subject]:
        name = f"model-{next(NUMBERS)}"
        queue = {"key": name, "responses": [to_entry(dialect, answer) for answer in script]}
        await asyncio.to_thread(ask_mock, url, "/mock/configure", queue)
        settings = ProviderSettings(
            api=dialect,
            transport=transport,
            base_url=f"{url}/v1",
            model=name,
            api_key_env=None,
            needs_key=False,
            retry_base_s=0.0,
            idle_timeout_s=10.0,
        )
        model: Any = make_model(settings)

        async def count_open() -> int:
            stats = await asyncio.to_thread(ask_mock, url, "/stats?open=0")
            return int(stats["open"])

        try:
            yield Subject(model=model, dialect=dialect, open=count_open)
        finally:
            await model.aclose()

    return make


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.check.__name__)
@pytest.mark.parametrize("dialect", ["responses", "chat"])
@pytest.mark.parametrize("transport", ["aiohttp", "openai"])
async def test_adapter_keeps_the_contract(
    dialect: Dialect, transport: TransportName, contract: Contract, mock_url: str
) -> None:
    """
    B014, B016, B032, B077, B083, B085, B090, B104 among others, as far as every adapter must know them.
    """
    await contract(adapter(dialect, mock_url, transport))


async def test_scripted_model_keeps_every_contract() -> None:
    await check_model(scripted())


def test_contracts_are_numbered_without_a_hole_and_each_says_something_else() -> None:
    assert [contract.number for contract in CONTRACTS] == list(range(1, len(CONTRACTS) + 1))
    assert len({contract.sentence for contract in CONTRACTS}) == len(CONTRACTS)


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What is never let go of is not waited for long.
    """
    monkeypatch.setattr("agent_harness.testing.contract_checks.LET_GO_S", 0.05)


@pytest.fixture
async def no_tasks_left() -> AsyncIterator[None]:
    """
    Ends what a broken model leaves running.
    """
    before = asyncio.all_tasks()
    yield
    left = [task for task in asyncio.all_tasks() - before if task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


@pytest.mark.usefixtures("brief", "no_tasks_left")
@pytest.mark.parametrize("number, words, model_class", BROKEN, ids=[f"{row[2].__name__}-{row[0]}" for row in BROKEN])
async def test_model_that_breaks_a_contract_is_told_its_number_its_sentence_and_how(
    number: int, words: str, model_class: type[CountingModel]
) -> None:
    contract = CONTRACTS[number - 1]

    with pytest.raises(AssertionError) as caught:
        await contract(scripted(model_class, "responses" if number == 11 else None))

    assert str(caught.value).startswith(f"contract {number}: {contract.sentence} But ")
    assert words in str(caught.value)


def test_each_contract_has_a_model_that_breaks_it() -> None:
    assert {row[0] for row in BROKEN} == {contract.number for contract in CONTRACTS}


async def test_checking_a_model_names_every_contract_that_it_breaks() -> None:
    with pytest.raises(AssertionError) as caught:
        await check_model(scripted(HalfCharacters))

    lines = str(caught.value).splitlines()
    assert [line.partition(":")[0] for line in lines if line.startswith("contract")][:1] == ["contract 2"]
    assert any(line.startswith("contract 8:") for line in lines)


@pytest.mark.usefixtures("brief")
async def test_model_that_never_answers_is_told_how_long_was_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mute(CountingModel):
        async def stream(self, request: Request) -> AsyncIterator[Delta]:
            await asyncio.Event().wait()
            yield Ended()

    monkeypatch.setattr("agent_harness.testing.contracts.WAIT_S", 0.05)

    with pytest.raises(AssertionError, match=r"contract 2: .*0\.05 s were too short"):
        await CONTRACTS[1](scripted(Mute))
