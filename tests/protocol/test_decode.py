"""
JSON to values: strict in every type, and the first bad path told with its code.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

import attrs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_harness.errors import InvalidRequest
from agent_harness.protocol.agents import Agent
from agent_harness.protocol.commands import MessageData, OutputData
from agent_harness.protocol.decode import parse_json, read
from agent_harness.protocol.items import InputFile, InputImage, InputText
from agent_harness.protocol.tools import NamedChoice, Tool


@attrs.frozen(kw_only=True)
class Inner:
    text: str
    type: Literal["inner"] = "inner"


@attrs.frozen(kw_only=True)
class Shape:
    """
    One field of each kind that requests have.
    """

    text: str
    count: int = 1
    ratio: float | None = None
    flag: bool = False
    maybe: str | None = None
    mode: Literal["a", "b"] = "a"
    free: Mapping[str, Any] | None = None
    inner: Inner | None = None
    list: tuple[Inner, ...] = ()


class Refusal:
    """
    What `read` said of a bad value.
    """

    def __init__(self, value: Any, shape: Any, path: str = "") -> None:
        with pytest.raises(InvalidRequest) as caught:
            read(value, shape, path)
        self.code, self.param, self.message = caught.value.code, caught.value.param, caught.value.message
        assert self.message


@pytest.mark.parametrize(
    "body, value",
    [(b"{}", {}), (b' {"a": [1, 2.5, null, true, "\xc3\xa9"]}\n', {"a": [1, 2.5, None, True, "é"]}), (b"3", 3)],
)
def test_json_is_parsed(body: bytes, value: Any) -> None:
    assert parse_json(body) == value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"{'a': 1}",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": 1e999}',
        b'{"a": "\\ud83d"}',
        b'{"a": "\xed\xa0\xbd"}',
        b'{"a": "\xff"}',
        b'{"a": "line\nbreak"}',
        b'{"a": 01}',
        b"{} {}",
        b"\xef\xbb\xbf{}",
        '{"a": 1}'.encode("utf-16"),
        b"[" * 2000 + b"]" * 2000,
    ],
)
def test_body_that_is_no_strict_json_is_refused(body: bytes) -> None:
    """B069: NaN and its like, and lone surrogates, are refused, not passed on."""
    with pytest.raises(InvalidRequest) as caught:
        parse_json(body)

    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "invalid_json", None)


def test_values_of_the_right_types_are_taken() -> None:
    value = {
        "text": "t",
        "count": 2,
        "ratio": 1,
        "flag": True,
        "maybe": "m",
        "mode": "b",
        "free": {"a": [None]},
        "inner": {"text": "i", "type": "inner"},
        "list": [{"text": "1"}, {"text": "2"}],
    }

    assert read(value, Shape) == Shape(
        text="t",
        count=2,
        ratio=1,
        flag=True,
        maybe="m",
        mode="b",
        free={"a": [None]},
        inner=Inner(text="i"),
        list=(Inner(text="1"), Inner(text="2")),
    )


def test_null_for_an_optional_key_is_the_same_as_its_absence() -> None:
    optional = [field.name for field in attrs.fields(Shape) if field.name != "text"]

    assert read({"text": "t", **dict.fromkeys(optional)}, Shape) == read({"text": "t"}, Shape) == Shape(text="t")


BAD_TYPES = [
    ("text", [1, 1.5, True, None, [], {}]),
    ("count", ["1", 1.0, 1.5, True, [], {}]),
    ("ratio", ["1", True, [], {}]),
    ("flag", [0, 1, "true", "", [], {}]),
    ("maybe", [1, True, [], {}]),
    ("mode", ["c", "", "A", 1, True, [], {}, ["a"]]),
    ("free", ["{}", 1, [], True]),
    ("inner", ["", 1, []]),
    ("list", ["", "abc", 1, {}, {"0": {"text": "t"}}, True]),
]


@pytest.mark.parametrize("field, value", [(field, value) for field, values in BAD_TYPES for value in values])
def test_value_of_another_type_is_never_coerced(field: str, value: Any) -> None:
    refusal = Refusal({"text": "t", field: value}, Shape)

    assert (refusal.code, refusal.param) == ("invalid_value", field)


@pytest.mark.parametrize(
    "value, code, param",
    [
        ({}, "missing_field", "text"),
        ({"text": "t", "other": 1}, "unknown_field", "other"),
        ({"text": "t", "b": 1, "a": None}, "unknown_field", "a"),
        ({"text": "t", "inner": {}}, "missing_field", "inner.text"),
        ({"text": "t", "inner": {"text": 1}}, "invalid_value", "inner.text"),
        ({"text": "t", "inner": {"text": "", "type": "outer"}}, "invalid_value", "inner.type"),
        ({"text": "t", "inner": {"text": "", "x": 1}}, "unknown_field", "inner.x"),
        ({"text": "t", "list": [{"text": ""}, {}]}, "missing_field", "list[1].text"),
        ({"text": "t", "list": [{"text": ""}, {"text": "", "x": 1}]}, "unknown_field", "list[1].x"),
        ({"text": "t", "list": [None]}, "invalid_value", "list[0]"),
        ({"text": 1, "count": "1"}, "invalid_value", "text"),
        ({"count": "1", "list": [1]}, "missing_field", "text"),
        ([], "invalid_value", None),
        ("text", "invalid_value", None),
        (None, "invalid_value", None),
        (3, "invalid_value", None),
    ],
)
def test_first_bad_path_is_told_with_its_code(value: Any, code: str, param: str | None) -> None:
    refusal = Refusal(value, Shape)
    assert (refusal.code, refusal.param) == (code, param)

    below = Refusal(value, Shape, "events[3].data")
    assert (below.code, below.param) == (code, f"events[3].data.{param}" if param else "events[3].data")


FIELDS = st.sampled_from([*attrs.fields_dict(Shape), "type", "x"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=5),
)


@given(value=ANYTHING)
@settings(deadline=None, derandomize=True)
def test_no_value_does_worse_than_be_refused(value: Any) -> None:
    with suppress(InvalidRequest):
        assert isinstance(read(value, Shape), Shape)


def test_free_form_object_is_kept_as_it_is_if_it_can_be_written_again() -> None:
    free = {"b": 1, "a": {"nested": [1.5, None, "é"]}}
    assert read({"text": "t", "free": free}, Shape).free == free

    deep = orjson.loads(b'{"a":' * 300 + b"1" + b"}" * 300)
    refusal = Refusal({"text": "t", "free": deep}, Shape)
    assert (refusal.code, refusal.param) == ("invalid_value", "free")


def test_null_is_a_value_of_its_own_for_the_tool_timeout_and_the_output() -> None:
    assert read({"tool_timeout_s": None}, Agent).tool_timeout_s is None
    assert read({}, Agent).tool_timeout_s == 3600
    assert read({"call_id": "c", "output": None}, OutputData).output is None
    assert Refusal({"call_id": "c"}, OutputData).code == "missing_field"


NESTED_F = {"type": "function", "function": {"name": "f"}}
FUNCTION = {"name": "look", "description": "d", "parameters": {"type": "object"}, "strict": True}
LOOK = Tool(name="look", description="d", parameters={"type": "object"}, strict=True, timeout_s=2.5)


@pytest.mark.parametrize(
    "value, tool",
    [
        ({"type": "function", **FUNCTION, "timeout_s": 2.5}, LOOK),
        ({"type": "function", "function": FUNCTION, "timeout_s": 2.5}, LOOK),
        ({"type": "function", "name": "f"}, Tool(name="f")),
        ({"type": "function", "function": {"name": "f"}}, Tool(name="f")),
        (
            {
                "type": "function",
                "name": "f",
                "description": None,
                "parameters": None,
                "strict": None,
                "timeout_s": None,
            },
            Tool(name="f"),
        ),
        (
            {"type": "function", "name": "A-z_09" + "x" * 58, "parameters": {}},
            Tool(name="A-z_09" + "x" * 58, parameters={}),
        ),
    ],
)
def test_both_shapes_of_a_function_are_taken(value: Any, tool: Tool) -> None:
    assert read({"tools": [value]}, Agent).tools == (tool,)


@pytest.mark.parametrize(
    "tools, code, param",
    [
        ("look", "invalid_tool", "tools"),
        ({"type": "function", "name": "f"}, "invalid_tool", "tools"),
        (["f"], "invalid_tool", "tools[0]"),
        ([None], "invalid_tool", "tools[0]"),
        ([{"type": "function"}], "invalid_tool", "tools[0].name"),
        ([{"type": "function", "function": {}}], "invalid_tool", "tools[0].function.name"),
        ([{"type": "function", "function": "f"}], "invalid_tool", "tools[0].function"),
        ([{"function": {"name": "f"}}], "invalid_tool", "tools[0].type"),
        ([{"name": "f"}], "invalid_tool", "tools[0].type"),
        ([{"type": "web_search", "name": "f"}], "invalid_tool", "tools[0].type"),
        ([{"type": "function", "name": ""}], "invalid_tool", "tools[0].name"),
        ([{"type": "function", "name": "x" * 65}], "invalid_tool", "tools[0].name"),
        ([{"type": "function", "name": "look up"}], "invalid_tool", "tools[0].name"),
        ([{"type": "function", "name": "look\n"}], "invalid_tool", "tools[0].name"),
        ([{"type": "function", "name": "é"}], "invalid_tool", "tools[0].name"),
        ([{"type": "function", "name": 1}], "invalid_tool", "tools[0].name"),
        ([{"type": "function", "function": {"name": "a b"}}], "invalid_tool", "tools[0].function.name"),
        ([{"type": "function", "name": "f", "description": 1}], "invalid_tool", "tools[0].description"),
        ([{"type": "function", "name": "f", "parameters": "{}"}], "invalid_tool", "tools[0].parameters"),
        ([{"type": "function", "name": "f", "strict": 1}], "invalid_tool", "tools[0].strict"),
        ([{"type": "function", "name": "f", "timeout_s": "1"}], "invalid_tool", "tools[0].timeout_s"),
        ([{"type": "function", "name": "f", "timeout_s": 0}], "invalid_tool", "tools[0].timeout_s"),
        ([{"type": "function", "function": {"name": "f"}, "timeout_s": -1}], "invalid_tool", "tools[0].timeout_s"),
        ([{"type": "function", "name": "f", "x": 1}], "unknown_field", "tools[0].x"),
        ([{"type": "function", "function": {"name": "f", "x": 1}}], "unknown_field", "tools[0].function.x"),
        ([{"type": "function", "function": {"name": "f", "strict": 1}}], "invalid_tool", "tools[0].function.strict"),
        ([{"type": "function", "function": {"name": "f"}, "name": "f"}], "unknown_field", "tools[0].name"),
        ([{"type": "function", "name": "f"}, {"type": "function", "name": "f"}], "invalid_tool", "tools[1].name"),
        ([{"type": "function", "name": "f"}, NESTED_F], "invalid_tool", "tools[1].name"),
        ([{"type": "function", "name": f"f{number}"} for number in range(129)], "invalid_tool", "tools"),
    ],
)  # fmt: skip
def test_bad_tool_is_refused_with_its_place(tools: Any, code: str, param: str) -> None:
    refusal = Refusal({"tools": tools}, Agent)

    assert (refusal.code, refusal.param) == (code, param)


def test_128_tools_are_taken() -> None:
    assert (
        len(read({"tools": [{"type": "function", "name": f"f{number}"} for number in range(128)]}, Agent).tools) == 128
    )


@pytest.mark.parametrize(
    "value, choice",
    [
        (None, None),
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "f"}, NamedChoice("f")),
        ({"type": "function", "function": {"name": "f"}}, NamedChoice("f")),
    ],
)
def test_tool_choice_is_taken_in_both_shapes(value: Any, choice: Any) -> None:
    assert read({"tool_choice": value}, Agent).tool_choice == choice


@pytest.mark.parametrize(
    "value",
    ["any", "", 1, True, [], {}, {"type": "function"}, {"name": "f"}, {"type": "function", "name": 1},
     {"type": "function", "name": "f", "x": 1}, {"type": "function", "function": {}},
     {"type": "function", "function": {"name": "f"}, "name": "f"}, {"type": "function", "function": "f"}],
)  # fmt: skip
def test_other_tool_choice_is_refused(value: Any) -> None:
    refusal = Refusal({"tool_choice": value}, Agent)

    assert (refusal.code, refusal.param) == ("invalid_value", "tool_choice")


def test_content_is_text_or_parts() -> None:
    parts = [
        {"type": "input_text", "text": ""},
        {"type": "input_image", "image_url": "data:,", "detail": "low", "file_id": None},
        {"type": "input_image", "file_id": "file_1"},
        {"type": "input_file", "file_data": "QQ==", "filename": "a.txt"},
    ]

    assert read({"content": ""}, MessageData).content == ""
    assert read({"content": parts}, MessageData).content == (
        InputText(""),
        InputImage(image_url="data:,", detail="low"),
        InputImage(file_id="file_1"),
        InputFile(file_data="QQ==", filename="a.txt"),
    )


@pytest.mark.parametrize(
    "content, code, param",
    [
        (None, "invalid_value", "content"),
        (1, "invalid_value", "content"),
        ({"type": "input_text", "text": ""}, "invalid_value", "content"),
        ([], "invalid_value", "content"),
        (["text"], "invalid_value", "content[0]"),
        ([{"text": "t"}], "missing_field", "content[0].type"),
        ([{"type": "text", "text": "t"}], "invalid_value", "content[0].type"),
        ([{"type": ["input_text"], "text": "t"}], "invalid_value", "content[0].type"),
        ([{"type": "output_text", "text": "t"}], "invalid_value", "content[0].type"),
        ([{"type": "refusal", "refusal": "t"}], "invalid_value", "content[0].type"),
        ([{"type": "input_text", "text": ""}, {"type": "input_text"}], "missing_field", "content[1].text"),
        ([{"type": "input_text", "text": None}], "invalid_value", "content[0].text"),
        ([{"type": "input_text", "text": "t", "x": 1}], "unknown_field", "content[0].x"),
        ([{"type": "input_image"}], "invalid_value", "content[0]"),
        ([{"type": "input_image", "image_url": {"url": "u"}}], "invalid_value", "content[0].image_url"),
        ([{"type": "input_file", "filename": "a"}], "invalid_value", "content[0]"),
    ],
)
def test_bad_content_is_refused_with_its_place(content: Any, code: str, param: str) -> None:
    refusal = Refusal({"content": content}, MessageData)

    assert (refusal.code, refusal.param) == (code, param)
