"""
docs/providers.md names every setting with its default, and the failure policy as it is.
"""

import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from agent_harness.config import ProviderSettings
from agent_harness.llm.upstream_errors import POLICY, Rule
from agent_harness.providers.cures import CURES

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "providers.md").read_text()
SCRIPT = (ROOT / "scripts" / "test-real").read_text()


def rows(heading: str) -> list[list[str]]:
    """
    The cells of the table rows below *heading*.
    """
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def shown(value: Any) -> str:
    """
    A default as the settings file has it; None and an empty table are "none".
    """
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "none" if value is None or value == {} else f"`{value!r}`".replace("'", '"')


def test_every_setting_stands_there_with_its_default() -> None:
    settings = ProviderSettings()
    told = {row[0].strip("`"): row[1] for row in rows("Every setting")}

    assert told == {field.name: shown(getattr(settings, field.name)) for field in attrs.fields(ProviderSettings)}


@pytest.mark.parametrize("rule", POLICY, ids=lambda rule: rule.outcome)
def test_every_outcome_of_the_failure_policy_stands_there_in_its_place(rule: Rule) -> None:
    outcome, code, retried = rows("When a server fails")[POLICY.index(rule)]

    assert outcome.replace("`", "").startswith(rule.outcome)
    assert (code, retried) == (f"`{rule.code}`", "yes" if rule.retried else "no")


def test_the_failure_policy_has_no_other_rows() -> None:
    assert len(rows("When a server fails")) == len(POLICY)


def test_every_cure_is_a_setting() -> None:
    assert {cure.field for cure in CURES} <= {field.name for field in attrs.fields(ProviderSettings)}


def test_the_servers_are_started_as_the_page_says() -> None:
    commands = re.findall(r"-m llama_cpp\.server .*?--port|bin/litellm .*?--port", PAGE, re.DOTALL)
    started = re.findall(r"-m llama_cpp\.server .*?--port|bin/litellm\"? .*?--port", SCRIPT, re.DOTALL)

    def words(text: str) -> list[str]:
        plain = text.replace('"$model"', "gemma.gguf").replace('"', "").replace("\\\n", " ")
        return plain.split()

    assert [words(command) for command in commands] == [words(command) for command in started]
    assert len(commands) == 2
