"""
Arguments that are not the text of a JSON object, from a model server's stream to its next request.
"""

from typing import Any

import orjson
import pytest

from agent_harness.testing.strict import Dialect
from tests.cases.rig import DIALECTS, Case, raw_calls

both = pytest.mark.parametrize("dialect", DIALECTS)
ANSWER = {"text": "done"}


async def sent_after(case: Case) -> list[tuple[str, str]]:
    """
    The call and its output as the next two requests hold them (alike); both pass STRICT.
    """
    assert await case.rests() == "idle"
    assert (await case.says())["status"] == "completed"
    _, second, third = await case.requests()
    assert [second.status, third.status] == [200, 200]
    assert (second.of("call"), second.of("output")) == (third.of("call"), third.of("output"))
    [(call_id, name, arguments)], [(answered, output)] = second.of("call"), second.of("output")
    assert (call_id, name, answered) == ("c1", "look", "c1")
    return [arguments, output]


@both
@pytest.mark.parametrize("raw", ['{"value": ', "[1,2]", "3", "true", '"text"', '"[1]"', '{"a":NaN}', "{'a':1}"])
async def test_arguments_that_are_no_object_are_answered_by_the_harness(play: Any, dialect: Dialect, raw: str) -> None:
    """
    B054, B057, B059: never given to the client; the model reads what was wrong with which text, as strict JSON.
    """
    case = await play(dialect, raw_calls(dialect, ("look", raw, "c1")), ANSWER, ANSWER)
    await case.send()
    arguments, output = await sent_after(case)
    assert orjson.loads(arguments) == {"invalid_arguments": raw}
    assert output.startswith("Error: ")
    assert "JSON object" in output
    kept = [item for item in await case.items() if "call_id" in item]
    assert [(item["type"], item["status"]) for item in kept] == [
        ("function_call", "failed"),
        ("function_call_output", "completed"),
    ]
    announced = [frame for frame in case.stream.frames if frame.data.get("item", {}).get("status") == "action_required"]
    assert not announced


@both
@pytest.mark.parametrize(
    "raw, read",
    [
        ({"k": 1}, '{"k":1}'),
        ({}, "{}"),
        ('"{\\"city\\":\\"NY\\"}"', '{"city": "NY"}'),
        ('{"t":"a\nb\tc"}', '{"t": "a\\nb\\tc"}'),
        ("null", "{}"),
        (None, "{}"),
        ("", "{}"),
    ],
    ids=["B056 object", "B056 empty object", "B057", "B058", "B059 null text", "B059 null", "B059 empty"],
)
async def test_arguments_that_can_be_read_reach_client_and_model_as_strict_json(
    play: Any, dialect: Dialect, raw: Any, read: str
) -> None:
    """
    B056, B057, B058, B059: an object is written as text once, a text that holds one is unwrapped, raw control
    characters are escaped, and nothing means no arguments.
    """
    case = await play(dialect, raw_calls(dialect, ("look", raw, "c1")), ANSWER, ANSWER)
    await case.send()
    (action,) = await case.waiting()
    assert action["arguments"] == read
    await case.result("c1", "seen")
    assert await sent_after(case) == [read, "seen"]
    done = [frame for frame in case.stream.frames if frame.event == "response.function_call_arguments.done"]
    assert [frame.data["arguments"] for frame in done] == [read]


@both
@pytest.mark.parametrize("raw", ['{ "a" : 1e2,"a":2 }\n', '{"n":123456789012345678901234567890,"t":"\\u00e9"}'])
async def test_the_text_of_an_object_is_left_to_the_letter(play: Any, dialect: Dialect, raw: str) -> None:
    """
    The other side of B056: what needs no change gets none.
    """
    case = await play(dialect, raw_calls(dialect, ("look", raw, "c1")), ANSWER, ANSWER)
    await case.send()
    (action,) = await case.waiting()
    assert action["arguments"] == raw
    await case.result("c1", "seen")
    assert await sent_after(case) == [raw, "seen"]
