"""
The Python blocks of ``docs/client.md`` run, as they stand, against a real server.
"""

import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from agent_harness.client import Client, Result
from agent_harness.errors import ModelError
from agent_harness.llm.scripted import call, say

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "client.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def page(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """
    What all blocks together define.
    """
    names: dict[str, Any] = {"__name__": "docs_client"}
    for block in BLOCKS:
        exec(compile(block, "docs/client.md", "exec"), names)
    return names


def look_up_and_say() -> list[Any]:
    return [call("lookup_widget", '{"widget_id": 42}'), say("It is teal.")]


async def test_the_first_example_answers(page: dict[str, Any], serve: Any) -> None:
    served = await serve(*look_up_and_say())
    assert await page["main"](served.url) == "It is teal."
    assert '"color":"teal"' in served.model.body(served.model.requests[1]).decode().replace('\\"', '"')


async def test_the_sessions_example_leaves_one_session(page: dict[str, Any], serve: Any) -> None:
    served = await serve()
    await page["look_after_sessions"](served.client)
    [left] = [snapshot async for snapshot in served.client.sessions.list()]
    assert left.agent.temperature == 0.2 and not left.metadata


async def test_the_events_example_says_what_the_model_said(
    page: dict[str, Any], serve: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    served = await serve(*look_up_and_say(), ModelError("no key", code="provider_auth"))
    assert await page["talk"](served.client) == "It is teal."
    assert "function_call action_required" in capsys.readouterr().out
    assert await page["talk"](served.client) == ""
    assert "failed: LastError(code='provider_auth'" in capsys.readouterr().out


async def test_the_functions_example_orders(page: dict[str, Any], serve: Any) -> None:
    served = await serve(call("order_widget", '{"size": {"width": 2}, "count": 3}'), say("Ordered."))
    assert await page["order_some"](served.client) == "Ordered."
    assert '{\\"ordered\\":6}' in served.model.body(served.model.requests[1]).decode()


async def test_the_example_by_hand_answers(page: dict[str, Any], serve: Any) -> None:
    served = await serve(call("ask_a_person"), say("We may."))
    assert await page["answer_by_hand"](served.client) == "We may."


async def test_the_following_example_reaches_a_number(page: dict[str, Any], serve: Any) -> None:
    served = await serve(say("hi"))
    session = await served.client.sessions.create()
    await session.run("hello")
    assert await page["watch"](served.client, session.id) == (await session.snapshot()).seq - 1


async def test_the_errors_example_is_refused_twice(page: dict[str, Any], serve: Any) -> None:
    served = await serve(*look_up_and_say())
    assert await page["be_refused"](served.client) == ["unknown_call", "call_already_answered"]


def table(heading: str) -> dict[str, list[str]]:
    """
    The rows of the table whose first column is *heading*, by their first cell.
    """
    _, _, rest = PAGE.partition(f"\n| {heading} |")
    lines = rest.partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].strip("`"): row[1:] for row in cells}


def test_every_field_of_a_result_has_its_row() -> None:
    assert set(table("field")) == {field.name for field in attrs.fields(Result)}


def test_every_time_of_the_client_has_its_row_with_its_default() -> None:
    defaults = Client.__init__.__kwdefaults__
    assert {name: float(row[0]) for name, row in table("argument").items()} == defaults
