"""
The documents say what the code does: whatever the code has is named, and whatever is named is there.

What must be named is read off the code, never off a list in this file.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import attrs
import pytest

from agent_harness.config import Limits
from agent_harness.engine.harness import Harness
from agent_harness.errors import ModelError, RequestError
from agent_harness.protocol import events, items
from agent_harness.protocol.agents import Agent
from agent_harness.protocol.commands import OUTPUT_MAX, Command
from agent_harness.protocol.encode import to_wire
from agent_harness.protocol.pages import Snapshot
from agent_harness.protocol.requests import BATCH_MAX
from agent_harness.protocol.sse import FrameReader
from agent_harness.protocol.tools import CALL_ID_MAX
from agent_harness.protocol.turns import IncompleteReason, LastError, RequiredAction, Turn
from agent_harness.server import make_app
from agent_harness.server.idempotency import KEPT_SESSION_ANSWERS, KEPT_SESSIONS, KEY_MAX
from agent_harness.testing.mock_llm import make_mock_app
from tests.processes import COMMANDS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "agent_harness"
DOCUMENTS = [*(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")), *ROOT.glob("docs/*.md")]
API = (ROOT / "docs" / "http-api.md").read_text()
README = (ROOT / "README.md").read_text()
SOURCE = "\n".join(path.read_text() for path in sorted(PACKAGE.rglob("*.py")))


def name_of(value: Any) -> str:
    return value.relative_to(ROOT).as_posix() if isinstance(value, Path) else str(value)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def rows(text: str) -> list[list[str]]:
    """
    The cells of all table rows.
    """
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def section(heading: str) -> str:
    """
    What stands below *heading* (with its ``#`` signs) on the API's page, up to the next one of its level or above.
    """
    level = len(heading.partition(" ")[0])
    [found] = re.findall(rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{level}}} |\Z)", API, re.MULTILINE | re.DOTALL)
    text: str = found
    return text


def row_of(name: str, text: str = API) -> list[str]:
    """
    The one table row of *text* whose first cell is *name*; a mark may stand behind it.
    """
    [row] = [row for row in rows(text) if re.fullmatch(rf"`{re.escape(name)}`(?: \*\w+\*)?", row[0])]
    return row


def members(union: Any) -> list[type]:
    return list(get_args(union))


def type_of(cls: type) -> str:
    kind: str = attrs.fields_dict(cls)["type"].default
    return kind


def routes(app: Any) -> set[tuple[str, str]]:
    """
    Method and path of each route; HEAD, which aiohttp adds to GET, left out.
    """
    found = {(route.method, route.resource.canonical) for route in app.router.routes()}
    return {(method, path) for method, path in found if method != "HEAD" or ("GET", path) not in found}


def refusals(base: type[RequestError] = RequestError) -> Iterator[type[RequestError]]:
    for cls in base.__subclasses__():
        yield cls
        yield from refusals(cls)


ROUTES = routes(make_app(Harness({})))
REFUSALS = [(cls, code) for cls in refusals() for code in cls.codes]
CODES = {code for _, code in REFUSALS} | set(ModelError.codes)
EVENTS = members(events.Event)
ITEMS = members(items.Item)
PARTS = [*members(items.Part), items.SummaryText]


# What the code has is named.


@pytest.mark.parametrize("route", sorted(ROUTES), ids=" ".join)
def test_route_is_named_with_its_method(route: tuple[str, str]) -> None:
    assert f"`{' '.join(route)}`" in API


@pytest.mark.parametrize("cls, code", REFUSALS, ids=[code for _, code in REFUSALS])
def test_refusal_has_its_row_with_status_type_and_code(cls: type[RequestError], code: str) -> None:
    found = [row for row in rows(API) if row[:3] == [str(cls.status), f"`{cls.type}`", f"`{code}`"]]

    assert len(found) == 1 and found[0][3]


@pytest.mark.parametrize("name", [*ModelError.codes, *get_args(IncompleteReason)])
def test_ending_of_a_turn_has_its_row(name: str) -> None:
    assert row_of(name, section("## How a turn ends"))[1]


@pytest.mark.parametrize("cls", EVENTS, ids=type_of)
def test_event_has_its_row_with_every_field(cls: type) -> None:
    row = row_of(type_of(cls))
    named = set(re.findall(r"`([a-z_]+)`", row[1]))

    assert named - {"true"} == {field.name for field in attrs.fields(cls)} - {"type"}


@pytest.mark.parametrize("cls", EVENTS, ids=type_of)
def test_event_is_marked_as_dated_exactly_if_its_frames_are(cls: type) -> None:
    shown = [data for data in frames() if data["type"] == type_of(cls)]

    assert shown
    assert {"at" in data for data in shown} == {row_of(type_of(cls))[0].endswith("*at*")}


@pytest.mark.parametrize("cls", [*ITEMS, *PARTS], ids=type_of)
def test_item_or_part_has_its_row_with_its_fields(cls: type) -> None:
    common = {"id", "type", "status", "response_id", "created_at", "provenance"}
    row = row_of(type_of(cls))

    for field in attrs.fields(cls):
        assert field.name in common or f"`{field.name}`" in row[1], field.name


@pytest.mark.parametrize("cls", ITEMS, ids=type_of)
def test_every_status_and_origin_of_an_item_is_named(cls: type) -> None:
    text = section("### Items")

    for name in ("status", "origin", "role"):
        if name in attrs.fields_dict(cls):
            for value in get_args(attrs.fields_dict(cls)[name].type):
                assert f"`{value}`" in text, value


@pytest.mark.parametrize("cls", members(Command), ids=type_of)
def test_command_is_shown_with_all_its_fields(cls: type) -> None:
    known = [value for block in blocks(API, "json") for value in dicts(json.loads(block))]
    shown = [value for value in known if value.get("type") == type_of(cls) and "data" in value]
    data: Any = attrs.fields_dict(cls)["data"].type

    assert any(set(value) == {field.name for field in attrs.fields(cls)} for value in shown)
    assert any(set(value["data"]) == {field.name for field in attrs.fields(data)} for value in shown)


@pytest.mark.parametrize("field", attrs.fields(Agent), ids=lambda field: str(field.name))
def test_field_of_the_agent_is_named_with_its_default(field: Any) -> None:
    [row] = [row for row in rows(section("### Agent")) if f"`{field.name}`" in row[0]]

    if isinstance(field.default, int | float):
        assert f"{field.default:,g}" in row[1]


@pytest.mark.parametrize("field", attrs.fields(Limits), ids=lambda field: str(field.name))
def test_limit_is_named_with_its_default(field: Any) -> None:
    assert row_of(field.name, section("## Limits and defaults"))[1] == (
        f"{field.default:,}" if isinstance(field.default, int) else f"{field.default:,g}"
    )


@pytest.mark.parametrize(
    "bound", [OUTPUT_MAX, BATCH_MAX, CALL_ID_MAX, KEY_MAX, KEPT_SESSION_ANSWERS, KEPT_SESSIONS], ids=str
)
def test_fixed_bound_is_named(bound: int) -> None:
    [line] = re.findall(r"^Fixed: .*?\n\n", API, re.MULTILINE | re.DOTALL)

    assert f"{bound:,} " in line


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_command_is_shown_with_each_of_its_options(name: str) -> None:
    pages = "\n".join(path.read_text() for path in DOCUMENTS)

    assert re.search(rf"(?:agent-harness |scripts/|`){name}\b", pages)
    for option in options(name):
        assert re.search(rf"`[^`\n]*{option}\b[^`\n]*`|^[a-z/ -]*{option}\b", pages, re.MULTILINE), option


def options(name: str) -> set[str]:
    """
    The options of a command, in their long forms.
    """
    return {option for parameter in COMMANDS[name].params for option in parameter.opts if option.startswith("--")}


def test_every_environment_variable_that_is_read_is_named() -> None:
    quoted = set(re.findall(r"""["']([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)["']""", SOURCE))
    # What a module defines and lists in its `__all__` is a constant.
    read = {name for name in quoted if not re.search(rf"^{name}\b", SOURCE, re.MULTILINE)}

    assert read, "no variable was found: this test looks for the wrong thing"
    for name in read:
        assert f"`{name}`" in README, name


# What is named is there.


def test_every_event_named_exists() -> None:
    named = set(re.findall(r"\b(?:response|session)\.[a-z_]+(?:\.[a-z_]+)*", API + README))
    fields = {f"response.{field}" for field in to_wire(Turn(id="", status="queued", created_at=0))}

    # `session.deleted` is an object type too, `session.json` a file of the walk-through.
    assert named - fields - {"session.json"} <= {type_of(cls) for cls in EVENTS}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_path_named_exists(path: Path) -> None:
    known = {route for _, route in ROUTES}
    if path != ROOT / "docs" / "http-api.md":
        # The other pages speak of model servers too.
        known |= {route for _, route in routes(make_mock_app())}
    named = re.findall(r"(/v1/[\w{}$/-]*[\w}])", path.read_text())

    for name in named:
        pattern = re.sub(r"\$\w+|sess_\w+|resp_\w+|\{id\}", "{}", name)
        assert pattern in {*known, *(re.sub(r"\{\w+\}", "{}", route) for route in known)}, name


def test_every_code_named_exists() -> None:
    tabled = {row[2].strip("`") for row in rows(section("## Errors"))} - {"code", "---"}
    shown = {value["code"] for block in blocks(API, "json") for value in dicts(json.loads(block)) if "code" in value}

    assert tabled == {code for _, code in REFUSALS}
    endings = {row[0].strip("`") for row in rows(section("## How a turn ends"))} - {"code", "reason", "---"}
    assert endings == {*ModelError.codes, *get_args(IncompleteReason)}
    assert shown <= CODES


def test_every_name_in_code_marks_stands_in_the_source() -> None:
    named = set(re.findall(r"`(?:\?|data\.)?([a-z]+(?:_[a-z]+)+)(?:=\w+)?`", API + README))

    assert named
    assert {name for name in named if not re.search(rf"\b{name}\b", SOURCE)} == set()


def test_every_option_in_the_readme_exists() -> None:
    known = {option for name in COMMANDS for option in options(name)}

    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README)) <= known | {"--help", "--version"}


# Examples are true.


def dicts(value: Any) -> Iterator[dict[str, Any]]:
    """
    All objects in a JSON value.
    """
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for element in value:
            yield from dicts(element)


def frames() -> list[dict[str, Any]]:
    """
    The data of all frames that the API's page shows.
    """
    read = [frame for block in blocks(API, "sse") for frame in FrameReader().feed(f"{block}\n".encode())]
    assert all(frame.data == b"[DONE]" or json.loads(frame.data)["type"] == frame.event for frame in read)
    return [json.loads(frame.data) for frame in read if frame.data != b"[DONE]"]


@pytest.mark.parametrize("cls", EVENTS, ids=type_of)
def test_event_is_shown_in_a_frame_with_exactly_its_fields(cls: type) -> None:
    shown = [data for data in frames() if data["type"] == type_of(cls)]
    optional = {"item_id"} if cls is events.SessionStatus else {"replayed"}
    fields = {field.name for field in attrs.fields(cls)}

    assert shown
    for data in shown:
        assert set(data) - {"seq", "at"} in (fields, fields - optional), data


def test_numbered_frames_follow_each_other_and_unnumbered_ones_have_no_id() -> None:
    unnumbered = {type_of(cls) for cls in members(events.Unnumbered)}
    for block in blocks(API, "sse"):
        heads = re.findall(r"^event: (\S+)\n(?:id: (\d+)\n)?(?:retry: 1000\n)?data: (\{.*)$", block, re.MULTILINE)
        numbers = [int(number) for _, number, _ in heads if number]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        for kind, number, data in heads:
            assert not (kind in unnumbered and number)
            assert number in ("", str(json.loads(data)["seq"]))


def test_objects_in_the_examples_have_exactly_their_fields() -> None:
    turn = Turn(id="", status="queued", created_at=0)
    shapes: dict[str, set[str]] = {"session": {field.name for field in attrs.fields(Snapshot)}}
    shapes["response"] = set(to_wire(turn))
    for cls in ITEMS:
        shapes[type_of(cls)] = {field.name for field in attrs.fields(cls)} - {"provenance"}
    values = [json.loads(block) for block in blocks(API, "json")] + frames()
    seen = set()
    for value in (found for whole in values for found in dicts(whole)):
        kind = value.get("object", value.get("type"))
        if kind in shapes and "id" in value:
            seen.add(kind)
            assert set(value) == shapes[kind], value
        elif "expires_at" in value:
            assert set(value) == {field.name for field in attrs.fields(RequiredAction)}
        for name, cls in (("agent", Agent), ("last_error", LastError)):
            if "id" in value and isinstance(value.get(name), dict):
                assert set(value[name]) == {field.name for field in attrs.fields(cls)}
    assert seen == set(shapes)
