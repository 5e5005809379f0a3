"""
`agent-harness providers check` against servers that do everything right, and servers that one setting cures.
"""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent_harness.cli import main
from tests.providers_rig import (
    PROBES,
    Body,
    Spoil,
    check,
    is_user,
    read_items,
    refuse_if,
    report,
    says,
    serve,
    statuses,
)

# Servers that do everything right.


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_a_good_server_passes_every_probe(api: str) -> None:
    with serve() as url:
        found = report(url, api=api)

    assert statuses(found) == dict.fromkeys(PROBES, "ok")
    assert (found["api"], found["model"], found["settings"], found["stopped"]) == (api, "mock", {}, None)
    assert "A tool_choice by name brings the call." in says(found, "tool")
    assert "repeats its result" in says(found, "tool")
    assert "repeats the result of the turn before" in says(found, "recall")
    assert "Usage is reported" in says(found, "text")


def test_a_person_reads_one_line_for_each_probe_and_a_verdict() -> None:
    with serve() as url:
        result = check(url)

    lines = result.stdout.splitlines()
    assert lines[0] == f"Provider default: chat at {url}, model mock"
    assert [line.split()[0] for line in lines[2:-2] if not line.startswith(" ")] == ["ok"] * len(PROBES)
    assert lines[-2:] == ["", "All is well."]
    assert result.exit_code == 0


# Servers that one setting cures.


def has_two_users_in_a_row(body: Body) -> bool:
    items = read_items(body)
    return any(is_user(one) and is_user(two) for one, two in pairwise(items))


def has_image(body: Body) -> bool:
    return "image_url" in json.dumps(body)


def has_listed_output(body: Body) -> bool:
    return any(isinstance(item.get("output"), list) for item in read_items(body))


CURES: dict[str, tuple[str, Spoil, Body]] = {
    "alternating roles": (
        "chat",
        refuse_if(has_two_users_in_a_row, "Conversation roles must alternate user/assistant/user/assistant/..."),
        {"merge_user_messages": True},
    ),
    "alternating roles in silence": (
        "chat",
        refuse_if(has_two_users_in_a_row, "Internal template error"),
        {"merge_user_messages": True},
    ),
    "alternating roles over responses": (
        "responses",
        refuse_if(has_two_users_in_a_row, "roles must alternate"),
        {"merge_user_messages": True},
    ),
    "the older bound": (
        "chat",
        refuse_if(lambda body: "max_completion_tokens" in body, "Unrecognized argument: max_completion_tokens"),
        {"max_tokens_field": "max_tokens"},
    ),
    "no system role": (
        "chat",
        refuse_if(lambda body: read_items(body)[0]["role"] == "system", "System role not supported"),
        {"system_role": "user"},
    ),
    "no stream options": (
        "chat",
        refuse_if(lambda body: "stream_options" in body, "stream_options: Extra inputs are not permitted"),
        {"extra_body": {"stream_options": None}},
    ),
    "no parallel tool calls": (
        "chat",
        refuse_if(lambda body: "parallel_tool_calls" in body, "Unknown field parallel_tool_calls"),
        {"extra_body": {"parallel_tool_calls": None}},
    ),
    "no encrypted reasoning": (
        "responses",
        refuse_if(lambda body: bool(body["include"]), "Encrypted content is not supported with this model."),
        {"extra_body": {"include": []}},
    ),
    "no images": ("chat", refuse_if(has_image, "this model has no vision"), {"tool_output_parts": False}),
    "text outputs only": (
        "responses",
        refuse_if(has_listed_output, "input[2].output: Input should be a valid string"),
        {"tool_output_parts": False},
    ),
    "only chat": (
        "responses",
        lambda path, body: {"status": 404, "refuse": "Not Found"} if path == "/v1/responses" else None,
        {"api": "chat"},
    ),
}


@pytest.mark.parametrize("case", CURES)
def test_a_setting_that_cures_a_server_is_recommended_after_it_was_tried(case: str) -> None:
    api, spoil, settings = CURES[case]
    with serve(spoil) as url:
        found = report(url, api=api)

    assert found["settings"] == settings
    assert {probe["status"] for probe in found["probes"]} <= {"ok", "warn", "fail"}
    cured = [probe for probe in found["probes"] if probe["cures"]]
    assert len(cured) == 1
    assert cured[0]["message"]


def test_two_faults_that_hide_each_other_are_both_cured() -> None:
    # Gemma's template: no system role, and what stands in for it makes two user messages in a row.
    def spoil(path: str, body: Body) -> Body | None:
        if read_items(body)[0]["role"] == "system":
            return {"refuse": "System role not supported"}
        return {"refuse": "Conversation roles must alternate"} if has_two_users_in_a_row(body) else None

    with serve(spoil) as url:
        found = report(url)

    assert found["settings"] == {"system_role": "user", "merge_user_messages": True}
    assert statuses(found) == dict.fromkeys(PROBES, "ok") | {"text": "fail"}


def test_a_base_url_without_its_version_is_completed() -> None:
    with serve() as url:
        found = report(url.removesuffix("/v1"))

    assert found["settings"] == {"base_url": url}


def test_a_bound_that_is_ignored_without_a_word_is_found() -> None:
    def spoil(path: str, body: Body) -> Body | None:
        return {"text": "one, two, three, " * 40} if body.get("max_completion_tokens") == 16 else None

    with serve(spoil) as url:
        found = report(url)

    assert found["settings"] == {"max_tokens_field": "max_tokens"}
    assert statuses(found) == dict.fromkeys(PROBES, "ok") | {"bound": "warn"}


def test_a_person_reads_the_settings_as_they_are_written() -> None:
    with serve(CURES["alternating roles"][1]) as url:
        result = check(url)

    assert result.exit_code == 1
    assert "fail a turn after an interrupt " in result.stdout
    assert "Conversation roles must alternate" in result.stdout
    assert result.stdout.splitlines()[-3:] == [
        "",
        "[providers.default]",
        "merge_user_messages = true  # joins neighbouring user messages, for templates that demand alternating roles",
    ]


def test_the_settings_that_are_printed_can_be_pasted_into_the_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "agent-harness.toml"
    with serve(CURES["no stream options"][1]) as url:
        table = f'[providers.default]\nbase_url = "{url}"\napi = "chat"\nmodel = "mock"\n'
        file.write_text(table)
        first = CliRunner().invoke(main, ["providers", "check", "--config", str(file)], env={"OPENAI_API_KEY": "sk"})
        file.write_text(table + first.stdout.partition("[providers.default]\n")[2])
        second = CliRunner().invoke(main, ["providers", "check", "--config", str(file)], env={"OPENAI_API_KEY": "sk"})

    assert "extra_body = { stream_options = inf }" in first.stdout
    assert (first.exit_code, second.exit_code) == (1, 0)
    assert "All is well." in second.stdout
