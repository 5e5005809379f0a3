"""
Python functions as tools: what is offered of them, and how calls are answered.
"""

import asyncio
import enum
import functools
import json
import math
import threading
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal, Optional

import attrs
import pydantic
import pytest
from pydantic import Field

from agent_harness.functions import Functions, as_tool, tool
from agent_harness.protocol.commands import OUTPUT_MAX, OutputData
from agent_harness.protocol.items import InputFile, InputImage, InputText
from agent_harness.protocol.tools import Tool

WAIT_S = 5.0


class Color(enum.Enum):
    RED = "red"
    TEAL = "teal"


@dataclass
class Size:
    width: int
    height: int = 1


class Widget(pydantic.BaseModel):
    id: int
    size: Size
    made: date | None = None


@attrs.frozen
class Shelf:
    name: str
    widgets: list[int]


def look_up(widget_id: int) -> str:
    """Look up a widget."""
    return f"widget {widget_id}"


async def ask(function: Any, arguments: Any = None, **options: Any) -> OutputData:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    functions = Functions([function], **options)
    async with asyncio.timeout(WAIT_S):
        return await functions.run("c1", functions.definitions[0]["name"], text)


def properties(function: Any) -> dict[str, Any]:
    parameters = as_tool(function).parameters
    assert parameters is not None
    shown: dict[str, Any] = parameters["properties"]
    return shown


# What is offered.


def test_a_function_is_offered_by_its_name_docstring_and_hints() -> None:
    def find(query: str, limit: int = 10, exact: bool = False) -> list[str]:
        """
        Find widgets.

        The query is matched word by word.
        """
        return []

    offered = as_tool(find)

    assert (offered.name, offered.strict, offered.timeout_s) == ("find", False, None)
    assert offered.description == "Find widgets.\n\nThe query is matched word by word."
    assert offered.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": "integer", "default": 10},
            "exact": {"type": "boolean", "default": False},
        },
        "required": ["query"],
        "additionalProperties": False,
    }


def test_a_function_without_parameters_has_no_schema() -> None:
    def now() -> str:
        return ""

    assert as_tool(now) == Tool(name="now")


def test_literals_optionals_enums_and_fields_stand_in_the_schema() -> None:
    def order(
        kind: Literal["big", "small"],
        color: Color,
        note: Optional[str] = None,  # noqa: UP045 - the old form too
        count: Annotated[int, Field(description="How many.", ge=1)] = 1,
        price: float = Field(2.5, description="In euros."),
    ) -> None: ...

    shown = properties(order)
    assert shown["kind"] == {"type": "string", "enum": ["big", "small"]}
    assert shown["color"] == {"$ref": "#/$defs/Color"}
    assert shown["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert shown["count"] == {"type": "integer", "minimum": 1, "default": 1, "description": "How many."}
    assert shown["price"] == {"type": "number", "default": 2.5, "description": "In euros."}
    assert as_tool(order).parameters["required"] == ["kind", "color"]  # type: ignore[index]


def test_models_and_dataclasses_stand_in_the_schema_with_their_fields() -> None:
    def store(widget: Widget, size: Size) -> None: ...

    parameters = as_tool(store).parameters
    assert parameters is not None and set(parameters["$defs"]) == {"Widget", "Size"}
    assert parameters["$defs"]["Size"]["required"] == ["width"]
    assert parameters["$defs"]["Widget"]["properties"]["made"]["anyOf"][0] == {"type": "string", "format": "date"}


@pytest.mark.parametrize(
    "docstring",
    [
        "Find it.\n\nArgs:\n    query: Words, all of\n      which must occur.\n    limit (int): Most.\nRaises:\n  x: y",
        "Find it.\n\n:param query: Words, all of\n    which must occur.\n:param int limit: Most.\n:returns: the ids",
    ],
)
def test_parameters_are_described_by_the_docstring(docstring: str) -> None:
    def find(query: str, limit: int = 3) -> None: ...

    find.__doc__ = docstring
    assert as_tool(find).description == "Find it."
    assert properties(find)["query"]["description"] == "Words, all of which must occur."
    assert properties(find)["limit"] == {"type": "integer", "default": 3, "description": "Most."}


def test_a_field_describes_a_parameter_before_the_docstring_does() -> None:
    def find(query: Annotated[str, Field(description="From the field.")]) -> None:
        """
        Find.

        Args:
            query: from the docstring
        """

    assert properties(find)["query"]["description"] == "From the field."


def test_names_that_pydantic_keeps_for_itself_can_be_parameters() -> None:
    def odd(json: int, schema: int, model_config: int, _hidden: int, copy: int, self: int) -> None: ...

    assert list(properties(odd)) == ["json", "schema", "model_config", "_hidden", "copy", "self"]


async def test_names_that_pydantic_keeps_for_itself_arrive_under_their_names() -> None:
    def odd(json: int, model_dump: int, _hidden: int = 3) -> list[int]:
        return [json, model_dump, _hidden]

    assert (await ask(odd, {"json": 1, "model_dump": 2})).output == "[1,2,3]"
    assert (await ask(odd, {"json": 1, "model_dump": 2, "_hidden": 4})).output == "[1,2,4]"


def test_a_method_is_offered_without_self() -> None:
    class Store:
        def look(self, widget_id: int) -> int:
            """Look."""
            return widget_id

        @classmethod
        def make(cls, name: str) -> str:
            return name

    assert as_tool(Store().look).description == "Look." and list(properties(Store().look)) == ["widget_id"]
    assert list(properties(Store.make)) == ["name"]


async def test_a_partial_hides_what_it_binds() -> None:
    def move(robot: str, x: int, *, speed: float = 1.0) -> str:
        """Move a robot."""
        return f"{robot} {x} {speed}"

    bound = functools.partial(functools.partial(move, "r2"), speed=3.0)
    assert as_tool(bound).name == "move" and as_tool(bound).description == "Move a robot."
    assert list(properties(bound)) == ["x"]
    assert (await ask(bound, {"x": 5})).output == "r2 5 3.0"


async def test_an_object_that_can_be_called_is_a_tool() -> None:
    class Adder:
        """Add."""

        def __init__(self, start: int) -> None:
            self.start = start

        async def __call__(self, number: int) -> int:
            return self.start + number

    assert as_tool(Adder(1)).name == "Adder" and as_tool(Adder(1)).description == "Add."
    assert (await ask(Adder(40), {"number": 2})).output == "42"


def test_the_decorator_gives_name_description_and_timeout() -> None:
    @tool(name="look-up", description="Look it up.", timeout_s=2.5)
    def find(query: str) -> str:
        """Not this."""
        return query

    @tool
    def plain() -> None:
        """Plain."""

    assert find("x") == "x"
    offered = as_tool(find)
    assert (offered.name, offered.description, offered.timeout_s) == ("look-up", "Look it up.", 2.5)
    assert as_tool(functools.partial(find, "x")).name == "look-up"
    assert as_tool(plain).description == "Plain."


def test_one_function_can_be_offered_under_two_names() -> None:
    first, second = tool(look_up, name="first"), tool(look_up, name="second")
    try:
        assert [definition["name"] for definition in Functions([first, second]).definitions] == ["first", "second"]
    finally:
        del look_up.__agent_tool__  # type: ignore[attr-defined]


def test_methods_and_built_in_functions_can_be_named() -> None:
    class Store:
        def look(self, widget_id: int) -> int:
            return widget_id

    store = Store()
    assert as_tool(tool(store.look, name="look_here")).name == "look_here"
    assert as_tool(store.look).name == "look"
    assert as_tool(tool(math.sqrt, name="root")).name == "root"


def takes_anything(*things: int) -> None: ...


def takes_options(**options: int) -> None: ...


def takes_a_lock(lock: threading.Lock) -> None: ...


def takes_the_unknown(thing: "Unknown") -> None: ...  # type: ignore[name-defined]  # noqa: F821


def yields() -> Any:
    yield 1


async def yields_later() -> Any:
    yield 1


@pytest.mark.parametrize(
    "function, said",
    [
        (takes_anything, r"takes_anything cannot be a tool: \*things: int has no schema; name each parameter"),
        (takes_options, r"\*\*options: int has no schema"),
        (takes_a_lock, "takes_a_lock cannot be a tool: a parameter has no JSON schema"),
        (takes_the_unknown, "a type hint cannot be resolved"),
        (yields, "it yields"),
        (yields_later, "it yields"),
        (Widget, "it is no function"),
        (17, "it is no function"),
    ],
)
def test_what_has_no_schema_is_refused_with_the_reason(function: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        as_tool(function)


@pytest.mark.parametrize("name", ["", "two words", "é", "x" * 65])
def test_a_name_that_no_provider_takes_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no name of a tool"):
        as_tool(tool(functools.partial(look_up), name=name) if name else lambda x: x)


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two tools are named 'look_up'"):
        Functions([look_up, {"type": "function", "function": {"name": "look_up"}}])


def test_definitions_stand_beside_functions_in_their_order() -> None:
    nested = {"type": "function", "function": {"name": "nested"}}
    functions = Functions([nested, look_up, Tool(name="typed", timeout_s=3)])

    assert functions.definitions[0] == nested
    assert [tool.name for tool in functions.tools] == ["nested", "look_up", "typed"]
    assert [name in functions for name in ("nested", "look_up", "typed", "other")] == [False, True, False, False]


# How calls are answered.


async def test_arguments_come_as_the_types_of_the_hints() -> None:
    def store(widget: Widget, size: Size, color: Color, day: date) -> str:
        return repr((widget, size, color, day))

    output = await ask(
        store,
        {"widget": {"id": "7", "size": {"width": 1}}, "size": {"width": 2}, "color": "teal", "day": "2026-01-02"},
    )
    expected = (Widget(id=7, size=Size(1)), Size(2), Color.TEAL, date(2026, 1, 2))
    assert output.output == repr(expected) and not output.is_error


async def test_a_parameter_that_is_left_out_keeps_its_own_default() -> None:
    nothing = object()

    def find(first: int = 1, /, second: Any = nothing, third: int = Field(3)) -> list[Any]:
        return [first, second is nothing, third]

    assert (await ask(find)).output == "[1,true,3]"
    assert (await ask(find, {"first": 5, "third": 6})).output == "[5,true,6]"
    assert (await ask(find, "")).output == "[1,true,3]"


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({}, "InvalidArguments: widget_id: Field required"),
        ({"widget_id": "x"}, "InvalidArguments: widget_id: Input should be a valid integer"),
        ({"widget_id": 1, "other": 2}, "InvalidArguments: other: Extra inputs are not permitted"),
        ("[1]", "InvalidArguments: Input should be an object"),
        ("{", "InvalidArguments: Invalid JSON"),
    ],
)
async def test_arguments_that_do_not_fit_are_an_error_the_model_can_read(arguments: Any, said: str) -> None:
    output = await ask(look_up, arguments)
    assert output.is_error and isinstance(output.output, str) and output.output.startswith(said)
    assert "pydantic" not in output.output and "http" not in output.output


@pytest.mark.parametrize(
    "value, written",
    [
        ("as it is \u2028 \n", "as it is \u2028 \n"),
        ("nul\0 and half \ud83d", "nul\ufffd and half \ufffd"),
        (None, ""),
        (True, "true"),
        (3, "3"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        ([], "[]"),
        ((1, "é"), '[1,"é"]'),
        (Widget(id=1, size=Size(2)), '{"id":1,"size":{"width":2,"height":1},"made":null}'),
        (Size(3), '{"width":3,"height":1}'),
        (Shelf("top", [1, 2]), '{"name":"top","widgets":[1,2]}'),
        ({"shelf": Shelf("top", [])}, '{"shelf":{"name":"top","widgets":[]}}'),
        (Color.RED, '"red"'),
        (date(2026, 1, 2), '"2026-01-02"'),
        (float("nan"), '"NaN"'),
        (InputText("hi"), (InputText("hi"),)),
        ([InputText("hi"), {"type": "input_image", "file_id": "f"}], (InputText("hi"), InputImage(file_id="f"))),
        ((InputFile(file_id="f"),), (InputFile(file_id="f"),)),
        ([InputText("half \ud83d")], (InputText("half \ufffd"),)),
        ([{"type": "other"}], '[{"type":"other"}]'),
    ],
)
@pytest.mark.parametrize("later", [False, True])
async def test_what_is_returned_becomes_the_output(value: Any, written: Any, later: bool) -> None:
    def give() -> Any:
        return value

    async def give_later() -> Any:
        return value

    output = await ask(give_later if later else give)
    assert output == OutputData(call_id="c1", output=written)


async def test_what_cannot_be_written_as_json_is_an_error() -> None:
    output = await ask(lambda_named(lambda: {"lock": threading.Lock()}))
    assert output.is_error and "a lock cannot be written as JSON" in str(output.output)


def lambda_named(function: Any) -> Any:
    return tool(function, name="f")


async def test_an_output_over_the_servers_limit_is_an_error_that_says_so() -> None:
    output = await ask(lambda_named(lambda: "x" * (OUTPUT_MAX + 1)))
    assert output.is_error and output.output == "OutputTooLarge: f returned 10,000,001 characters, over 10,000,000."
    assert (await ask(lambda_named(lambda: "x" * OUTPUT_MAX))).output == "x" * OUTPUT_MAX
    parts = [InputText("x" * OUTPUT_MAX), InputText("")]
    assert (await ask(lambda_named(lambda: parts))).output == output.output


class Failed(Exception):
    pass


@pytest.mark.parametrize(
    "error, said",
    [
        (Failed("no such widget"), "Failed: no such widget"),
        (Failed(), "Failed"),
        (StopIteration(3), "StopIteration: 3"),
        (KeyError("x"), "KeyError: 'x'"),
        (SystemExit(2), "SystemExit: 2"),
        (TimeoutError("late"), "TimeoutError: late"),
    ],
)
@pytest.mark.parametrize("later", [False, True])
async def test_an_exception_is_an_error_output_without_its_traceback(error: Any, said: str, later: bool) -> None:
    def fail() -> None:
        raise error

    async def fail_later() -> None:
        raise error

    if isinstance(error, StopIteration) and later:
        said = "RuntimeError: coroutine raised StopIteration"
    assert await ask(fail_later if later else fail) == OutputData(call_id="c1", output=said, is_error=True)


async def test_a_function_inside_of_which_something_was_cancelled_is_an_error_output() -> None:
    async def give_up() -> None:
        raise asyncio.CancelledError

    assert await ask(give_up) == OutputData(call_id="c1", output="CancelledError", is_error=True)


async def test_a_traceback_is_shown_if_asked_for() -> None:
    def fail() -> None:
        raise Failed("deep down")

    output = await ask(fail, show_tracebacks=True)
    assert output.is_error and str(output.output).startswith("Traceback")
    assert 'raise Failed("deep down")' in str(output.output) and str(output.output).endswith("Failed: deep down")


async def test_a_sync_function_runs_in_a_thread_and_an_async_one_in_the_loop() -> None:
    here = threading.get_ident()

    def sync() -> bool:
        return threading.get_ident() == here

    async def later() -> bool:
        return threading.get_ident() == here

    def hidden() -> Any:
        return later()

    assert [(await ask(function)).output for function in (sync, later, hidden)] == ["false", "true", "true"]


async def test_no_more_than_the_limit_run_at_once() -> None:
    running, most, gate, full = 0, 0, asyncio.Event(), asyncio.Event()

    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await gate.wait()
        running -= 1

    functions = Functions([work], limit=3)
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(functions.run(f"c{number}", "work", "{}"))
        await full.wait()
        gate.set()
    assert most == 3


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="limit"):
        Functions([], limit=0)


def test_one_runner_serves_one_loop_after_the_other() -> None:
    async def work() -> None:
        await asyncio.sleep(0)

    functions = Functions([work], limit=1)

    async def ask_for_three(loop: int) -> None:
        await asyncio.gather(*(functions.run(f"c{number}", "work", "{}", str(loop)) for number in range(3)))

    for loop in range(2):
        asyncio.run(ask_for_three(loop))


async def test_a_second_ask_for_a_call_gets_the_first_ones_answer() -> None:
    gate, ran = asyncio.Event(), []

    async def count() -> int:
        ran.append(1)
        await gate.wait()
        return len(ran)

    functions = Functions([count])
    asked = [asyncio.ensure_future(functions.run("c1", "count", "{}")) for _ in range(3)]
    await asyncio.sleep(0)
    gate.set()
    async with asyncio.timeout(WAIT_S):
        answers = [await one for one in asked] + [await functions.run("c1", "count", "{}")]
        other = await functions.run("c1", "count", "{}", "another session")
    assert {answer.output for answer in answers} == {"1"} and other.output == "2"
    functions.forget("c1")
    assert (await functions.run("c1", "count", "{}")).output == "3"


async def test_a_name_without_a_function_is_a_lookup_error() -> None:
    with pytest.raises(LookupError, match="'other'"):
        await Functions([Tool(name="other")]).run("c1", "other", "{}")


def make_sleeper() -> tuple[Any, asyncio.Event, list[str]]:
    begun, told = asyncio.Event(), list[str]()

    async def sleep_long() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            told.append("ended")

    return sleep_long, begun, told


async def test_cancelling_who_waits_cancels_the_function() -> None:
    function, begun, told = make_sleeper()
    functions = Functions([function])
    asked = asyncio.ensure_future(functions.run("c1", "sleep_long", "{}"))
    async with asyncio.timeout(WAIT_S):
        await begun.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
    assert told == ["ended"] and not functions.cancel("c1")


async def test_a_function_goes_on_while_somebody_waits_for_it() -> None:
    function, begun, told = make_sleeper()
    functions = Functions([function])
    first, second = (asyncio.ensure_future(functions.run("c1", "sleep_long", "{}")) for _ in range(2))
    async with asyncio.timeout(WAIT_S):
        await begun.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert told == [] and functions.cancel("c1")
        with pytest.raises(asyncio.CancelledError):
            await second
    assert told == ["ended"]


async def test_a_cancelled_call_is_not_run_again() -> None:
    function, begun, told = make_sleeper()
    functions = Functions([function])
    asked = asyncio.ensure_future(functions.run("c1", "sleep_long", "{}"))
    async with asyncio.timeout(WAIT_S):
        await begun.wait()
        assert functions.cancel("c1")
        for waiting in (asked, functions.run("c1", "sleep_long", "{}")):
            with pytest.raises(asyncio.CancelledError):
                await waiting
    assert told == ["ended"] and not functions.cancel("never heard of")
