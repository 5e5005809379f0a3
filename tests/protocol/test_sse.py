"""
Server-sent events: what is written can be read again, however the bytes are cut on the way.
"""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Iterable

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_harness.protocol.sse import DONE, FRAME_LIMIT, PING, Frame, FrameReader, FrameTooLong, encode_frame

BOM = b"\xef\xbb\xbf"
SEPARATORS = "a\u2028b\u2029c\u0085d\x0b\x0ce"

# Streams that end with a blank line, and the frames that stand in them.
CORPUS: dict[str, tuple[bytes, list[Frame]]] = {
    "lf": (b"event: a\nid: 1\ndata: x\n\nevent: b\nid: 2\ndata: y\n\n", [Frame(b"x", "a", "1"), Frame(b"y", "b", "2")]),
    "crlf": (b"event: a\r\ndata: x\r\n\r\ndata: y\r\n\r\n", [Frame(b"x", "a"), Frame(b"y")]),
    "cr": (b"event: a\rdata: x\r\rdata: y\r\r", [Frame(b"x", "a"), Frame(b"y")]),
    "mixed line ends": (
        b"event: a\rdata: x\r\n\ndata: y\n\r\ndata: z\r\r\n",
        [Frame(b"x", "a"), Frame(b"y"), Frame(b"z")],
    ),
    "BOM": (BOM + b"data: x\n\n" + b"data: y\n\n", [Frame(b"x"), Frame(b"y")]),
    "BOM before an event field": (BOM + b"event: a\ndata: x\n\n", [Frame(b"x", "a")]),
    "comments (B094)": (b": hi\n\n:\ndata: x\n: ping\n\n: ping\n: ping\ndata: y\n\n", [Frame(b"x"), Frame(b"y")]),
    "data without a space (B097)": (b'data:{"a":1}\n\ndata:  two\n\n', [Frame(b'{"a":1}'), Frame(b" two")]),
    "several data lines (B097)": (b'data: {"a":\ndata:  1}\n\n', [Frame(b'{"a":\n 1}')]),
    "data lines that are empty": (b"data: a\ndata\ndata:\ndata: b\n\n", [Frame(b"a\n\n\nb")]),
    "retry alone": (b"retry: 1000\n\ndata: x\n\n", [Frame(b"x")]),
    "retry in a frame": (b"event: a\nid: 1\nretry: 1000\ndata: x\n\n", [Frame(b"x", "a", "1")]),
    "empty data": (b"event: ping\ndata:\n\nevent: ping\ndata\n\ndata: x\n\n", [Frame(b"x")]),
    "event without data": (b"event: a\n\ndata: x\n\n", [Frame(b"x")]),
    "id outlives its frame": (
        b"id: 7\ndata: x\n\ndata: y\n\nid\nid:\ndata: z\n\n",
        [Frame(b"x", id="7"), Frame(b"y", id="7"), Frame(b"z")],
    ),
    "id with NUL": (b"id: 1\0\ndata: x\n\n", [Frame(b"x")]),
    "id alone": (b"id: 7\n\ndata: x\n\n", [Frame(b"x", id="7")]),
    "unknown fields": (b"foo: 1\ndatax: 2\nDATA: 3\n data: 4\nbar\ndata: x\n\n", [Frame(b"x")]),
    "many blank lines": (b"\n\n\r\n\rdata: x\n\n\n\n\ndata: y\n\n", [Frame(b"x"), Frame(b"y")]),
    "raw separators (B091)": (f"data: {SEPARATORS}\n\n".encode(), [Frame(SEPARATORS.encode())]),
    "wide characters (B092)": ("event: é\ndata: 日本 😀\n\n".encode(), [Frame("日本 😀".encode(), "é")]),
    "no UTF-8": (b"event: \xff\ndata: \xff\xfe\n\n", [Frame(b"\xff\xfe", "\ufffd")]),
    "done": (b'data: {"a":1}\n\n' + DONE, [Frame(b'{"a":1}'), Frame(b"[DONE]")]),
    "nothing": (b"", []),
}

CASES = pytest.mark.parametrize("stream, frames", CORPUS.values(), ids=CORPUS)


def read(pieces: Iterable[bytes], *, limit: int = FRAME_LIMIT) -> list[Frame]:
    """
    All frames of *pieces*, fed one by one and flushed.
    """
    reader = FrameReader(limit)
    frames = [frame for piece in pieces for frame in reader.feed(piece)]
    return frames + reader.flush()


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def bytes_allocated(pieces: list[bytes]) -> int:
    """
    How many bytes a reader allocates for itself while it reads *pieces*: a count of what it copies.
    """
    reader = FrameReader()
    total = 0
    tracemalloc.start()
    try:
        for piece in pieces:
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            reader.feed(piece)
            total += tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    return total


@CASES
def test_stream_cut_in_two_anywhere_gives_the_same_frames(stream: bytes, frames: list[Frame]) -> None:
    """B092, B094, B097: the corpus names which."""
    for point in range(len(stream) + 1):
        assert read([stream[:point], stream[point:]]) == frames, point


@CASES
def test_stream_cut_in_three_anywhere_gives_the_same_frames(stream: bytes, frames: list[Frame]) -> None:
    for first in range(len(stream) + 1):
        for second in range(first, len(stream) + 1):
            assert read([stream[:first], stream[first:second], stream[second:]]) == frames, (first, second)


@CASES
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_stream_in_small_pieces_gives_the_same_frames(stream: bytes, frames: list[Frame], size: int) -> None:
    assert read(cut(stream, size)) == frames


@CASES
def test_frames_come_with_the_piece_that_completes_them(stream: bytes, frames: list[Frame]) -> None:
    assert FrameReader().feed(stream) == frames


@CASES
def test_last_frame_without_blank_line_comes_with_flush(stream: bytes, frames: list[Frame]) -> None:
    bare = stream.rstrip(b"\r\n")
    for ending in (b"", b"\n", b"\r", b"\r\n"):
        for point in range(len(bare + ending) + 1):
            assert read([(bare + ending)[:point], (bare + ending)[point:]]) == frames, (ending, point)


def test_flush_gives_nothing_twice() -> None:
    reader = FrameReader()
    reader.feed(b"data: x")

    assert reader.flush() == [Frame(b"x")]
    assert reader.flush() == []


def test_empty_pieces_change_nothing() -> None:
    assert read([b"", b"data: x\r", b"", b"\n", b"", b"\r", b"", b"\ndata: y\n\n"]) == [Frame(b"x"), Frame(b"y")]


def test_byte_order_mark_later_in_the_stream_is_no_beginning() -> None:
    assert read([b"data: x\n\n" + BOM + b"data: y\n\n"]) == [Frame(b"x")]


def test_long_line_in_small_pieces_is_copied_a_constant_number_of_times() -> None:
    """B098: a line of 1 MiB, which line readers with a limit refuse."""
    size = 1024 * 1024
    stream = b"data: " + b"x" * size + b"\n\n"

    assert [len(frame.data) for frame in read(cut(stream, 1024))] == [size]
    assert bytes_allocated(cut(stream, 1024)) < 8 * size


def test_long_frame_of_many_lines_is_copied_a_constant_number_of_times() -> None:
    lines = [b"data: " + b"x" * 57 + b"\n"] * 4096
    size = 64 * 4096

    assert bytes_allocated([*lines, b"\n"]) < 16 * size


@pytest.mark.parametrize("ending", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_frame_that_grows_line_by_line_over_the_limit_is_refused(ending: bytes, size: int) -> None:
    with pytest.raises(FrameTooLong, match="100 bytes"):
        read(cut((b"data: 0123456789" + ending) * 20, size), limit=100)


@pytest.mark.parametrize("line", [b"data: ", b": ", b"id: ", b"nothing"])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_unfinished_line_over_the_limit_is_refused(line: bytes, size: int) -> None:
    with pytest.raises(FrameTooLong):
        read(cut(line + b"x" * 101, size), limit=100)


def test_empty_data_lines_count_too() -> None:
    with pytest.raises(FrameTooLong):
        read([b"data\n"] * 100, limit=100)


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize(
    "part",
    [
        b"data: 0123456789\n\n",
        b": ping\n\n",
        PING,
        b"event: ping\ndata:\n\n",
        b"event: a\n\n",
        b"retry: 1\n",
        b"id: 1\n",
    ],
    ids=["frames", "comments", "pings", "empty frames", "frames without data", "retry", "id"],
)
def test_what_is_not_held_never_adds_up_to_the_limit(part: bytes, size: int) -> None:
    frames = read(cut(part * 100, size), limit=40)

    assert len(frames) == (100 if b"0123" in part else 0)


def test_ping_is_one_comment_line_without_a_blank_line() -> None:
    assert PING == b": ping\n"
    assert read([b"id: 4\ndata: x\n\n", PING, PING, b"data: y\n\n"]) == [Frame(b"x", id="4"), Frame(b"y", id="4")]


def test_done_is_a_frame_of_its_own() -> None:
    assert DONE == b"data: [DONE]\n\n"


def test_frame_is_written_field_by_field_with_lf() -> None:
    assert encode_frame("session.gap", b"{}") == b"event: session.gap\ndata: {}\n\n"
    assert encode_frame("a", b"{}", id=0) == b"event: a\nid: 0\ndata: {}\n\n"
    assert encode_frame("a", b"{}", id=12, retry=1000) == b"event: a\nid: 12\nretry: 1000\ndata: {}\n\n"


@pytest.mark.parametrize("raw, escaped", [("\u0085", b"\\u0085"), ("\u2028", b"\\u2028"), ("\u2029", b"\\u2029")])
def test_characters_that_line_splitters_take_for_line_ends_are_escaped(raw: str, escaped: bytes) -> None:
    """B091, B099."""
    data = orjson.dumps({"text": f"é{raw}日{raw}"})
    frame = encode_frame("a", data)

    assert raw.encode() not in frame
    assert frame.count(escaped) == 2
    assert orjson.loads(read([frame])[0].data) == {"text": f"é{raw}日{raw}"}


TEXT = st.text() | st.text(alphabet="\u2028\u2029\u0085\x1c\x1d\x1e\x0b\x0c\r\n\0\u0084\u2027é😀a:")
SENT = st.lists(st.tuples(st.sampled_from(["session.item", "a"]), TEXT, st.none() | st.integers(0, 9)), max_size=6)


@given(sent=SENT, sizes=st.lists(st.integers(1, 20), min_size=1, max_size=8))
@settings(deadline=None, derandomize=True)
def test_what_is_written_is_read_again(sent: list[tuple[str, str, int | None]], sizes: list[int]) -> None:
    """B091, B092."""
    stream = b"".join(encode_frame(event, orjson.dumps({"t": text}), id=number) + PING for event, text, number in sent)
    pieces, start, turn = [], 0, 0
    while start < len(stream):
        pieces.append(stream[start : start + sizes[turn % len(sizes)]])
        start, turn = start + len(pieces[-1]), turn + 1
    expected, last = [], ""
    for event, text, number in sent:
        last = last if number is None else str(number)
        expected.append((event, {"t": text}, last))

    frames = read(pieces)

    assert [(frame.event, orjson.loads(frame.data), frame.id) for frame in frames] == expected


@given(sent=SENT)
@settings(deadline=None, derandomize=True)
def test_reader_that_splits_text_by_blank_lines_and_splitlines_loses_nothing(
    sent: list[tuple[str, str, int | None]],
) -> None:
    """B091: the plainest reader there is."""
    stream = b"".join(encode_frame(event, orjson.dumps({"t": text}), id=number) for event, text, number in sent)
    blocks = stream.decode().split("\n\n")[:-1]
    data = [line[6:] for block in blocks for line in block.splitlines() if line.startswith("data: ")]

    assert [orjson.loads(line) for line in data] == [{"t": text} for _, text, _ in sent]
    assert all(re.fullmatch(r"(event|id|data): .*", line) for block in blocks for line in block.splitlines())
