"""
What is printed for a person cannot take over the terminal.
"""

import io
import json
import sys

import pytest

from agent_harness.cli.terminal import Screen, clean, clean_line, dump_json, is_plain
from agent_harness.cli.transcript import describe_call, shorten

HOSTILE = [
    ("\x1b[2J", "␛[2J"),
    ("\x1b]0;title\x07", "␛]0;title␇"),
    ("\x9b31m", "\\x9b31m"),
    ("a\rb", "a␍b"),
    ("a\x08b", "a␈b"),
    ("\x7f", "␡"),
    ("\u202etxt.exe", "\\u202etxt.exe"),
    ("\u2066x\u2069", "\\u2066x\\u2069"),
    ("\u2028", "\\u2028"),
    ("\ud800", "\\ud800"),
    ("\x00", "␀"),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("text, shown", HOSTILE, ids=repr)
def test_control_characters_are_made_visible(text: str, shown: str) -> None:
    assert clean(text) == clean_line(text) == shown


def test_ordinary_text_stays_as_it_is() -> None:
    text = "plain\ttext\nwith ünïcode 🙂 שלום\n"

    assert clean(text) == text
    assert clean("a\r\nb") == "a\nb"
    assert clean_line("a\nb\tc") == "a␊b c"


@pytest.mark.parametrize("text, _", HOSTILE, ids=repr)
def test_json_for_a_terminal_reads_back_the_same(text: str, _: str) -> None:
    written = dump_json({"text": text})

    assert json.loads(written) == {"text": text}
    assert clean_line(written) == written


@pytest.mark.parametrize("styled", [False, True])
@pytest.mark.parametrize("text, shown", HOSTILE[:3], ids=repr)
def test_a_screen_cleans_all_that_it_writes(
    text: str, shown: str, styled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal() if styled else io.StringIO()
    screen = Screen(stream)
    screen.write(text)
    screen.line(text, "red")
    screen.table(["HEAD"], [[text]])

    written = stream.getvalue()
    assert written.count(shown) == 3
    assert text not in written
    assert ("\x1b[31m" in written) is styled


@pytest.mark.parametrize("name, value", [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_that_wants_no_styles_gets_none(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    stream = Terminal()
    Screen(stream).line("text", "bold red")

    assert is_plain(stream)
    assert stream.getvalue() == "text\n"


def test_a_screen_without_rich_writes_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    stream = Terminal()
    Screen(stream).line("text", "bold red")

    assert stream.getvalue() == "text\n"


def test_what_the_stream_cannot_encode_is_escaped() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Screen(stream).line("grün")

    assert raw.getvalue() == b"gr\\xfcn\n"


def test_a_line_begins_where_a_line_begins() -> None:
    stream = io.StringIO()
    screen = Screen(stream)
    screen.write("streamed")
    screen.line("own line")
    screen.start_line()

    assert stream.getvalue() == "streamed\nown line\n"


@pytest.mark.parametrize(
    "arguments, shown",
    [
        ('{"path": "a", "n": 1}', 'f(path="a", n=1)'),
        ("{}", "f()"),
        ("not json", "f(not json)"),
        (json.dumps({"x": "y" * 300}), f'f(x="{"y" * 199}…)'),
    ],
    ids=["object", "empty", "no json", "long"],
)
def test_a_call_is_described_on_one_line(arguments: str, shown: str) -> None:
    assert describe_call("f", arguments) == shown


def test_long_text_is_shortened_by_the_lines_a_terminal_shows() -> None:
    assert shorten("1\n2\n3\n", 2) == "1\n2\n[1 more lines]"
    assert shorten("1\n2\n", 2) == "1\n2"
