"""
Log lines: their two forms, the ids that they bear, and what cannot stand in them.
"""

import ast
import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from agent_harness.logs import REQUEST_ID, SESSION_ID, Line, setup_logs

log = logging.getLogger("agent_harness.tests")

FORGED = "x\n2026-11-30T00:00:00.000Z INFO agent_harness.turns: turn ended outcome=forged"
HOSTILE = [
    "a\r\nb",
    "a\x1b[2Jb",
    "a\x00b",
    "a\x85b",
    "a\u2028b",
    "a\u202eb",
    "a\x7fb",
    "a\ud800b",
    "a=b c",
    'a"b',
    FORGED,
]


@pytest.fixture(autouse=True)
def _leave_logging_as_it_was() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("agent_harness")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


@contextmanager
def logged(*, json: bool = False, level: int | str = "DEBUG") -> Iterator[list[Any]]:
    """
    What is logged in the block, line by line; JSON lines parsed.
    """
    stream, lines = io.StringIO(), []
    setup_logs(json, level, stream)
    yield lines
    written = stream.getvalue().split("\n")
    assert written.pop() == "" and all(line.isprintable() for line in written)
    lines += [orjson.loads(line) for line in written] if json else written


@contextmanager
def ids(request_id: str, session_id: str) -> Iterator[None]:
    tokens = REQUEST_ID.set(request_id), SESSION_ID.set(session_id)
    yield
    REQUEST_ID.reset(tokens[0])
    SESSION_ID.reset(tokens[1])


def test_a_line_is_text_with_its_fields_as_key_value_and_without_those_that_are_none() -> None:
    with logged() as lines:
        log.info(Line("turn ended", session="sess_1", outcome="completed", reason=None, calls=2, duration_s=0.12345))

    [line] = lines
    head, _, rest = line.partition(" ")
    assert len(head) == len("2026-11-30T13:57:02.123Z") and head.endswith("Z")
    assert rest == ("INFO agent_harness.tests: turn ended session=sess_1 outcome=completed calls=2 duration_s=0.123")


def test_a_json_line_is_one_object_with_the_fields_as_values() -> None:
    with logged(json=True) as lines:
        log.warning(Line("turn ended", session="sess_1", calls=2, duration_s=0.5))

    [line] = lines
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "agent_harness.tests",
        "message": "turn ended",
        "session": "sess_1",
        "calls": 2,
        "duration_s": 0.5,
    }


@pytest.mark.parametrize("json", [False, True])
def test_every_line_bears_the_ids_of_its_request_and_session(json: bool) -> None:
    with logged(json=json) as lines:
        with ids("req_1", "sess_1"):
            log.info("words of %s", "another module")
            log.info(Line("its own", session="sess_2"))
        log.info("outside")

    if json:
        assert [(line.get("request_id"), line.get("session")) for line in lines] == [
            ("req_1", "sess_1"),
            ("req_1", "sess_2"),
            (None, None),
        ]
    else:
        assert lines[0].endswith("words of another module session=sess_1 request_id=req_1")
        assert lines[1].endswith("its own session=sess_2 request_id=req_1")
        assert lines[2].endswith("outside")


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_a_clients_text_as_a_value_stays_one_quoted_value_of_one_line(text: str) -> None:
    with logged() as lines:
        log.info(Line("call closed", name=text, closed_by="client"))

    [line] = lines
    head, _, value = line.partition(" name=")
    assert head.endswith("call closed") and value.endswith(" closed_by=client")
    value = value.removesuffix(" closed_by=client")
    assert value.startswith('"') and value.isascii() and value.isprintable()
    assert value == ascii_json(text)


def ascii_json(text: str) -> str:
    import json

    return json.dumps(text)


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_a_clients_text_in_a_message_begins_no_line_of_its_own(text: str) -> None:
    with logged() as lines:
        log.warning("there is no %s", text)
        log.warning("there is no %r", text)

    assert len(lines) == 2


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_a_clients_text_in_json_is_one_value_of_one_line(text: str) -> None:
    with logged(json=True) as lines:
        log.info(Line("call closed", name=text))
        log.info("plain %s", text)

    read = text.replace("\ud800", "\ufffd")
    assert (lines[0]["message"], lines[0]["name"]) == ("call closed", read)
    assert lines[1]["message"] == f"plain {read}"


@pytest.mark.parametrize("json", [False, True])
def test_a_traceback_begins_no_line_that_could_be_taken_for_a_log_line(json: bool) -> None:
    with logged(json=json) as lines:
        try:
            raise ValueError(FORGED)
        except ValueError:
            log.exception("it failed")

    if json:
        assert [line["message"] for line in lines] == ["it failed"]
        assert "ValueError: x\n2026" in lines[0]["exception"]
    else:
        assert lines[0].endswith("it failed")
        assert len(lines) > 3 and all(line.startswith("    ") for line in lines[1:])
        assert lines[-1].strip().startswith("2026-11-30T00:00:00.000Z INFO")


def test_a_long_value_is_cut() -> None:
    with logged() as lines:
        log.info(Line("turn ended", model="m" * 100_000))

    assert 200 < len(lines[0]) < 300 and "mm\\u2026" in lines[0]


def test_other_libraries_are_written_from_warning_on_whatever_our_level_is() -> None:
    other = logging.getLogger("some.library")
    with logged(level="debug") as lines:
        other.debug("sent: a key")
        other.info("asked")
        other.warning("it is late")
        log.debug("ours")

    assert [line.partition(": ")[2] for line in lines] == ["it is late", "ours"]


def test_the_level_holds_for_our_own_lines() -> None:
    with logged(level=logging.ERROR) as lines:
        log.warning("no")
        logging.getLogger("some.library").warning("no")
        log.error("yes")

    assert [line.partition(": ")[2] for line in lines] == ["yes"]


def test_a_second_set_up_takes_the_place_of_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    setup_logs(False, "INFO", first)
    setup_logs(True, "INFO", second)
    log.info("once")

    assert first.getvalue() == "" and second.getvalue().count("\n") == 1


def test_a_value_that_is_no_json_is_written_as_its_text() -> None:
    with logged(json=True) as lines:
        log.info(Line("odd", value={1, 2}.__class__, number=float("nan")))

    assert lines[0]["value"] == "<class 'set'>" and lines[0]["number"] is None


def test_the_page_names_every_line_with_its_keys() -> None:
    root = Path(__file__).parents[1]
    source = "\n".join(path.read_text() for path in (root / "agent_harness").rglob("*.py"))
    page = (root / "docs" / "observability.md").read_text()
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    said = {text: keys for node in calls for text, keys in [_line_of(node)] if text}

    assert len(said) > 8
    for text, keys in said.items():
        [row] = re.findall(rf"^\| `[a-z_.]+` \| {re.escape(text)} \|[^|]*\|([^|]*)\|$", page, re.MULTILINE)
        assert keys <= set(re.findall(r"`(\w+)`", row)), text


def _line_of(node: ast.Call) -> tuple[str, set[str]]:
    """
    What a call of `Line` (or of the engine's short form) says, and its keys; "" for another call.
    """
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    texts = [value.value for value in node.args if isinstance(value, ast.Constant) and isinstance(value.value, str)]
    return (texts[0] if name in ("Line", "_log") and texts else ""), {str(word.arg) for word in node.keywords}


def test_a_line_is_readable_through_any_handler(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="agent_harness")
    log.info(Line("turn ended", outcome="completed"))

    assert caplog.messages == ["turn ended outcome=completed"]
