"""
`agent-harness providers check` against servers that no setting cures, and calls that are wrong.
"""

import socket

import pytest
from click.testing import CliRunner

from agent_harness.cli import main
from agent_harness.providers import talk
from tests.providers_rig import (
    PROBES,
    Body,
    answer_well,
    check,
    refuse_if,
    report,
    says,
    serve,
    statuses,
)

# Servers that no setting cures.


def test_a_tool_that_is_never_called_is_told_with_what_to_start() -> None:
    with serve(lambda path, body: {"text": "I cannot."} if body.get("tools") else None) as url:
        found = report(url)

    assert statuses(found)["tool"] == "fail"
    assert [name for name, status in statuses(found).items() if status == "skip"] == ["recall", "parked", "parts"]
    assert "--enable-auto-tool-choice" in says(found, "tool")
    assert found["settings"] == {}


def test_a_refused_tool_choice_is_told_and_auto_is_tried() -> None:
    words = "tool_choice: only auto is supported"
    with serve(refuse_if(lambda body: "tool_choice" in body and body["tool_choice"] != "auto", words)) as url:
        found = report(url)

    assert statuses(found) == dict.fromkeys(PROBES, "ok")
    assert words in says(found, "tool")
    assert "A tool_choice auto brings the call." in says(found, "tool")


def test_a_tool_choice_that_is_ignored_is_told_and_tried_once() -> None:
    # llama.cpp's server takes the words of tool_choice and ignores a name.
    asked = []

    def spoil(path: str, body: Body) -> Body | None:
        if not isinstance(body.get("tool_choice"), dict):
            return None
        asked.append(body)
        return {"text": "I would rather not."}

    with serve(spoil) as url:
        found = report(url)

    assert statuses(found) == dict.fromkeys(PROBES, "ok")
    assert "A tool_choice by name is ignored: the server answered 'I would rather not.'." in says(found, "tool")
    assert "A tool_choice required brings the call." in says(found, "tool")
    assert len(asked) == 1


def test_a_failure_that_does_not_come_again_is_told_and_cures_nothing() -> None:
    seen: list[Body] = []

    def spoil(path: str, body: Body) -> Body | None:
        seen.append(body)
        return {"refuse": "Something went wrong"} if len(seen) == 1 else None

    with serve(spoil) as url:
        found = report(url)

    assert statuses(found)["text"] == "fail"
    assert "passed when it was tried again" in says(found, "text")
    assert found["settings"] == {}


def test_a_refusal_of_strict_says_that_no_setting_helps() -> None:
    with serve(refuse_if(lambda body: "tools" in body, "Unknown name 'strict' in tools[0].function")) as url:
        found = report(url)

    assert "no setting takes it out" in says(found, "tool")


def test_an_unknown_model_is_told_with_the_option_that_names_one() -> None:
    with serve(refuse_if(lambda body: True, "The model `mock` does not exist")) as url:
        found = report(url)

    assert statuses(found) == dict.fromkeys(PROBES, "skip") | {"text": "fail"}
    assert "--model" in says(found, "text")


def test_missing_usage_and_forgotten_results_are_told_and_fail_nothing() -> None:
    def spoil(path: str, body: Body) -> Body | None:
        well = answer_well(body)
        return well | {"usage": None} | ({"text": "No idea."} if "text" in well and "finish" not in well else {})

    with serve(spoil) as url:
        found = report(url)

    assert found["ok"] is True
    assert "No usage is reported" in says(found, "text")
    assert "does not repeat the result of the turn before" in says(found, "recall")


def test_a_server_that_hangs_is_not_waited_for_and_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk, "TURN_S", 0.2)
    asked = []

    def spoil(path: str, body: Body) -> Body | None:
        asked.append(path)
        return {"block": True}

    with serve(spoil) as url:
        found = report(url)

    assert statuses(found)["text"] == "fail"
    assert len(asked) == 1


# Calls and settings that are wrong.


def test_an_unreachable_server_is_told_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        result = check(url)

    assert result.exit_code == 1
    assert "cannot be reached" in result.stdout.splitlines()[-1]
    assert f"Is {url} its address, and is it started?" in result.stdout.splitlines()[-1]
    assert len(result.stdout.splitlines()) == 3
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_a_missing_key_is_told_in_one_line_that_names_the_variable() -> None:
    result = check("http://127.0.0.1:9/v1", key=None)

    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "set the environment variable OPENAI_API_KEY" in result.stderr


def test_a_refused_key_is_a_wrong_setting() -> None:
    with serve(lambda path, body: {"status": 401, "refuse": "Incorrect API key provided"}) as url:
        result = check(url)

    assert result.exit_code == 2
    assert "Incorrect API key provided" in result.stderr


@pytest.mark.parametrize(
    "options, words",
    [
        (["nobody"], "There is no provider 'nobody'; the settings have: default."),
        (["--base-url", "localhost:8000"], "--base-url is 'localhost:8000'; it must begin with http:// or https://."),
        (["--api", "soap"], "'soap' is not one of"),
    ],
)
def test_a_wrong_call_is_told_before_anything_is_asked(options: list[str], words: str) -> None:
    result = CliRunner().invoke(main, ["providers", "check", *options], env={"OPENAI_API_KEY": "sk-test"})

    assert result.exit_code == 2
    assert words in result.stderr
