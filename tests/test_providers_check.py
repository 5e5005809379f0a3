"""
`agent-harness providers check`: what it says of a server that does everything right, and of servers that do not.

Each server is the strict mock behind a middleware that gives it the right answer, and may refuse or spoil requests as
some real server does. The command runs as a person would run it, and is judged by what it prints and its exit code.
"""

import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from agent_harness import providers_talk
from agent_harness.cli import main
from agent_harness.testing.mock_llm import DIALECTS, STATE, make_mock_app
from agent_harness.testing.threads import ThreadServer

PROBES = ["text", "bound", "tool", "recall", "interrupt", "parked", "parts"]

Body = dict[str, Any]
Spoil = Callable[[str, Body], Body | None]
"""
What a server does with a request to a path: None if nothing special, ``{"refuse": words}`` for a 400, ``{"status": n}``
for another status, else an answer for the mock to give.
"""


def read_items(body: Body) -> list[Body]:
    items: list[Body] = body.get("messages") or body.get("input") or []
    return items


def is_user(item: Body) -> bool:
    return item.get("role") == "user"


def answer_well(body: Body) -> Body:
    """
    What a good model would say: a call where it is asked for one, else whatever color it was told of.
    """
    bound = body.get("max_completion_tokens") or body.get("max_tokens") or body.get("max_output_tokens")
    if bound == 16:
        return {"text": "one two three", "finish": "length"}
    if body.get("tools") and is_user(read_items(body)[-1]) and "picture" not in json.dumps(read_items(body)[-1]):
        return {"tool_calls": [{"name": "lookup_widget", "arguments": '{"widget_id": 42}'}]}
    found = re.search(r"ultramarine-\w+", json.dumps(body))
    return {"text": f"It is {found.group()}." if found else "Hello there."}


@contextmanager
def serve(spoil: Spoil = lambda path, body: None) -> Iterator[str]:
    """
    The base URL of such a server.
    """

    @web.middleware
    async def prepare(request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path not in DIALECTS:
            return web.json_response({"error": {"message": f"Unknown route {request.path}"}}, status=404)
        body = await request.json()
        spoilt = spoil(request.path, body) or {}
        if "refuse" in spoilt or "status" in spoilt:
            error = {"error": {"message": spoilt.get("refuse", "Bad Request")}}
            return web.json_response(error, status=spoilt.get("status", 400))
        request.app[STATE].reset()
        request.app[STATE].configure({"key": "default", "responses": [spoilt or answer_well(body)]})
        answer: web.StreamResponse = await handler(request)
        return answer

    async def make() -> web.Application:
        app = make_mock_app()
        app.middlewares.append(prepare)
        return app

    with ThreadServer(make) as server:
        yield f"{server.url}/v1"


def check(url: str, *options: str, key: str | None = "sk-test", api: str | None = "chat") -> Result:
    """
    Run the command.
    """
    environ = {"OPENAI_API_KEY": key, "OPENAI_BASE_URL": None}
    dialect = [] if api is None else ["--api", api]
    command = ["providers", "check", "--base-url", url, "--model", "mock", *dialect, *options]
    return CliRunner().invoke(main, command, env=environ)


def report(url: str, **options: Any) -> Body:
    """
    The command's JSON, and that its exit code tells the same.
    """
    result = check(url, "--json", **options)
    found: Body = json.loads(result.stdout)
    assert result.exit_code == (0 if found["ok"] else 1), result.output
    assert result.stderr == ""
    return found


def statuses(found: Body) -> dict[str, str]:
    return {probe["name"]: probe["status"] for probe in found["probes"]}


def says(found: Body, name: str) -> str:
    return " ".join(next(probe for probe in found["probes"] if probe["name"] == name)["says"])


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


def refuse_if(wrong: Callable[[Body], bool], words: str) -> Spoil:
    return lambda path, body: {"refuse": words} if wrong(body) else None


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
    monkeypatch.setattr(providers_talk, "TURN_S", 0.2)
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
