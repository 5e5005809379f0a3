"""
What a model must keep, as checks that anybody's adapter can be held to. They are those of `agent_harness.llm.base` (1
to 9, the same numbers) and what the harness relies on besides (10 to 14).

A check asks a model for answers that it knows beforehand. So whoever wants an adapter checked writes one function,
``make(script)``: an async context manager that gives a `Subject` whose model will give the answers of *script*, one a
request, in order. Behind an adapter that is a model server which can be told what to say (`mock_llm` speaks both of
OpenAI's dialects); `Answer` says what it must be able to do. What is upstream should run in another thread
(`ThreadServer`): tasks that are left in this loop count against the model. One that asks again should do so at once.

::

    @asynccontextmanager
    async def make(script):
        with ThreadServer(make_my_server) as server:
            tell(server.url, [to_my_dialect(answer) for answer in script])
            model = MyModel(server.url)
            try:
                yield Subject(model=model, open=lambda: count_open(server.url))
            finally:
                await model.aclose()

    async def test_my_model_keeps_every_contract():
        await check_model(make)

Each entry of `CONTRACTS` can be run alone, too. None needs pytest. A broken one is an `AssertionError` that names
number and sentence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import attrs

from agent_harness.testing import contract_checks as checks
from agent_harness.testing.contract_script import Answer, Call, Make, Subject

__all__ = ["CONTRACTS", "Answer", "Call", "Contract", "Make", "Subject", "check_model"]

WAIT_S = 20.0
"""Longest time for one contract, in seconds."""


@attrs.frozen
class Contract:
    """
    One contract: call it with ``make``. It raises AssertionError with its number and sentence.
    """

    number: int
    sentence: str
    check: Callable[[Make], Awaitable[None]] = attrs.field(repr=False)

    async def __call__(self, make: Make) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                await self.check(make)
        except TimeoutError as error:
            raise self._broken(f"{WAIT_S:g} s were too short") from error
        except AssertionError as error:
            raise self._broken(str(error)) from error
        except Exception as error:
            raise self._broken(f"{error!r} was raised") from error

    def _broken(self, how: str) -> AssertionError:
        return AssertionError(f"contract {self.number}: {self.sentence} But {how}")


async def check_model(make: Make) -> None:
    """
    Hold a model to every contract.

    Raises:
        AssertionError: naming each contract that it breaks, one a line.
    """
    broken: list[str] = []
    for contract in CONTRACTS:
        try:
            await contract(make)
        except AssertionError as error:
            broken.append(str(error))
    if broken:
        # Not by assert: pytest, which rewrites those of plugins, would indent the lines.
        raise AssertionError("\n".join(broken))


CONTRACTS = tuple(
    Contract(number, sentence, check)
    for number, (sentence, check) in enumerate(
        (
            (
                "Items begin with ItemAdded, 0, 1, 2 …, and nothing is said of one before that or after its end.",
                checks.check_order,
            ),
            ("The deltas of an item, joined, are all of its text.", checks.check_texts),
            ("A call has its name, the id it was given, and its arguments as they were written.", checks.check_calls),
            ("An answer that ended by itself ends with one Ended; no other one does.", checks.check_end),
            ("Failures are raised as ModelError, with a code of ours and the provider's words.", checks.check_failures),
            (
                "It asks again only before its first ItemAdded, each time announced by one Retrying.",
                checks.check_retries,
            ),
            (
                "Closed or cancelled it lets go of the upstream at once, and swallows no cancellation.",
                checks.check_letting_go,
            ),
            ("Text holds no lone surrogates.", checks.check_characters),
            ("It gives way to the event loop while it answers.", checks.check_giving_way),
            ("Its body is pure: the same bytes for the same request, whatever it keeps.", checks.check_body),
            ("A request that is made after its answers is one that a strict provider takes.", checks.check_strict),
            ("Two streams at the same time do not mix.", checks.check_apart),
            ("Usage is what the upstream reported, and None where it did not.", checks.check_usage),
            ("Cancelled at any point it leaves nothing behind.", checks.check_cancelling),
        ),
        start=1,
    )
)
"""All contracts in order of their numbers."""
