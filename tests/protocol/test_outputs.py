"""
What an output's characters are: never fewer than a model is sent, in whichever dialect and form.
"""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from agent_harness.config import ProviderSettings
from agent_harness.errors import RequestTooLarge
from agent_harness.llm.base import Request
from agent_harness.llm.chat_request import encode_body
from agent_harness.llm.responses_input import build_body
from agent_harness.protocol.blocks import Block
from agent_harness.protocol.commands import OUTPUT_MAX
from agent_harness.protocol.items import FunctionCall, FunctionCallOutput, InputFile, InputImage, InputText, Part
from agent_harness.protocol.outputs import STAND_IN_MAX, check_output, measure_output
from agent_harness.protocol.tools import CALL_ID_MAX
from agent_harness.testing.strict import MAX_OUTPUT_CHARS

LONGEST_ID = "c" * CALL_ID_MAX
HALF = InputText("x" * (OUTPUT_MAX // 2))
OUTPUTS: list[tuple[Part, ...]] = [
    (),
    (InputText(""),) * 1000,
    (InputText("some"), InputText("text")),
    (InputImage(image_url="data:,x"),) * 1000,
    (InputImage(file_id="f"), InputText("t")),
    (InputFile(file_data="data:,x", filename="n" * 500),),
    (InputFile(file_url="data:,x", filename="n" * 500), InputText("")),
    (InputFile(file_url="https://x/" + "u" * 5000, filename="n" * 500),),
    (InputFile(file_url="https://x/" + "u" * 5000),) * 3,
    (InputFile(file_id="f"),) * 20,
]


def sent(output: str | tuple[Part, ...], dialect: str, **settings: Any) -> str:
    """
    All text that a model reads of *output*, behind the longest call id.
    """
    call = FunctionCall(id="fc", call_id=LONGEST_ID, name="f", arguments="{}", status="completed", created_at=1)
    given = FunctionCallOutput(id="fco", call_id=LONGEST_ID, output=output, created_at=1)
    request = Request(session_id="s", provider="p", model="m", blocks=(Block((call,), (given,)),), closed=0)
    provider = ProviderSettings(model="m", **settings)
    body = orjson.loads((encode_body if dialect == "chat" else build_body)(request, provider))
    value = body["messages"][1]["content"] if dialect == "chat" else body["input"][1]["output"]
    return value if isinstance(value, str) else "".join(part.get("text", "") for part in value)


@pytest.mark.parametrize("output", OUTPUTS, ids=range(len(OUTPUTS)))
@pytest.mark.parametrize("tool_output_parts", [True, False])
@pytest.mark.parametrize("dialect", ["responses", "chat"])
def test_an_output_is_measured_as_no_shorter_than_any_form_it_goes_out_in(
    dialect: str, tool_output_parts: bool, output: tuple[Part, ...]
) -> None:
    assert len(sent(output, dialect, tool_output_parts=tool_output_parts)) <= measure_output(output)


def test_text_is_measured_exactly_as_it_goes_out_in_one_string() -> None:
    assert measure_output("texts") == 5
    assert measure_output([InputText("texts")]) == 5
    assert (
        measure_output([InputText("a"), InputText("é😀")]) == len(sent((InputText("a"), InputText("é😀")), "chat")) == 4
    )


def test_what_stands_before_an_error_fits_between_our_limit_and_the_providers() -> None:
    assert OUTPUT_MAX + len("Error: ") <= MAX_OUTPUT_CHARS


def test_output_at_the_limit_is_taken() -> None:
    check_output(None, "output")
    check_output("x" * OUTPUT_MAX, "output")
    check_output([HALF, InputText("x" * (OUTPUT_MAX // 2 - 1))], "output")


@pytest.mark.parametrize(
    "output, size",
    [
        ([InputText("x" * (OUTPUT_MAX + 1))], "10,000,001"),
        ([HALF, HALF], "10,000,001"),
        ([HALF, InputImage(file_id="f"), HALF], f"10,000,{STAND_IN_MAX + 2}"),
        ([HALF, InputFile(file_url="https://x/" + HALF.text)], f"10,000,{STAND_IN_MAX + 11}"),
        ([InputFile(file_id="f", filename="x" * OUTPUT_MAX)], f"10,000,{STAND_IN_MAX}"),
    ],
)
def test_list_over_the_limit_is_refused_with_its_size(output: list[Part], size: str) -> None:
    """B066."""
    with pytest.raises(RequestTooLarge, match=size) as caught:
        check_output(output, "data.output")

    assert (caught.value.status, caught.value.param) == (413, "data.output")
