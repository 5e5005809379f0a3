"""
What can become of a good stream on its way. Pure, and the same for the same seed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from random import Random
from typing import Any

import orjson

from agent_harness.testing.strict import Dialect
from tests.fuzz.streams import GOOD, Frames, good_stream

__all__ = ["KEEPS_VALUES", "MUTATIONS", "annotate", "cut_up", "mutate"]

# What happens to frames.


def drop(random: Random, frames: Frames) -> Frames:
    """
    Frames are lost.
    """
    lost = set(random.sample(range(len(frames)), random.randint(1, max(1, len(frames) // 3))))
    return [frame for at, frame in enumerate(frames) if at not in lost]


def double(random: Random, frames: Frames) -> Frames:
    """
    Frames come twice, at once or again later.
    """
    frames = list(frames)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(frames))
        frames.insert(random.choice((at, random.randint(at, len(frames)))), frames[at])
    return frames


def swap(random: Random, frames: Frames) -> Frames:
    """
    Frames change places.
    """
    frames = list(frames)
    for _ in range(random.randint(1, 3)):
        one, other = random.randrange(len(frames)), random.randrange(len(frames))
        frames[one], frames[other] = frames[other], frames[one]
    return frames


def shuffle(random: Random, frames: Frames) -> Frames:
    """
    All frames in any order.
    """
    return random.sample(frames, len(frames))


def truncate(random: Random, frames: Frames) -> Frames:
    """
    The stream ends somewhere, inside a frame or between two.
    """
    if random.random() < 0.3:
        return frames[: random.randrange(len(frames))]
    whole = b"".join(frames)
    return [whole[: random.randrange(len(whole))]]


def flip(random: Random, frames: Frames) -> Frames:
    """
    Bytes become others.
    """
    whole = bytearray(b"".join(frames))
    for _ in range(random.randint(1, 6)):
        whole[random.randrange(len(whole))] = random.randrange(256)
    return [bytes(whole)]


def mix(random: Random, frames: Frames) -> Frames:
    """
    Two answers come in one stream.
    """
    dialect: Dialect = "responses" if any(b"sequence_number" in frame for frame in frames) else "chat"
    others = good_stream(dialect, random.choice(list(GOOD)))[0]
    places = sorted(random.choices(range(len(frames) + 1), k=len(others)))
    frames = list(frames)
    for place, other in reversed(list(zip(places, others, strict=True))):
        frames.insert(place, other)
    return frames


def splice(random: Random, frames: Frames) -> Frames:
    """
    Things that are no events stand between them.
    """
    frames = list(frames)
    for _ in range(random.randint(1, 4)):
        frames.insert(random.randint(0, len(frames)), random.choice(STRANGE))
    return frames


def annotate(depth: int) -> bytes:
    """
    An annotation of the first message, nested that deep.
    """
    deep = b'{"a":' * depth + b"1" + b"}" * depth
    head = b'data: {"type":"response.output_text.annotation.added","output_index":0,"annotation":'
    return head + deep + b"}\n\n"


STRANGE = (
    b": hello\n\n",
    b"\n\n\n",
    b"event: ping\ndata:\n\n",
    b"retry: 5\n\n",
    b"id: 7\n\n",
    b"data: [DONE]\n\n",
    b"data: null\n\n",
    b"data: []\n\n",
    b"data: {}\n\n",
    b'data: {"choices":[]}\n\n',
    b'data: {"choices":null}\n\n',
    b'data: {"error":null}\n\n',
    b'data: {"error":{"message":"no","code":500}}\n\n',
    b'event: error\ndata: {"type":"error","message":"gone","code":"server_error"}\n\n',
    b'data: {"type":"response.failed","response":{"status":"failed","error":{"code":"x","message":"y"}}}\n\n',
    b'data: {"type":"response.done"}\n\n',
    *(annotate(depth) for depth in (1, 50, 200, *range(235, 256), 800)),
    b"data: {\n\n",
    b"data: \xff\xfe\n\n",
    b"<html><title>502</title></html>\n\n",
    b"\xef\xbb\xbf",
    b"\r\r",
)


# What happens to the JSON in them.


def replace(random: Random, frames: Frames) -> Frames:
    """
    Values become others, of any type and size.
    """
    return _change(random, frames, lambda: random.choice(VALUES)())


def remove(random: Random, frames: Frames) -> Frames:
    """
    Keys are missing.
    """
    return _change(random, frames, None)


def retype(random: Random, frames: Frames) -> Frames:
    """
    Events say that they are of another type, or belong to another item.
    """
    frames = list(frames)
    for _ in range(random.randint(1, 4)):
        at, other = random.randrange(len(frames)), random.randrange(len(frames))
        taken, given = _read(frames[at]), _read(frames[other])
        if not taken or given is None:
            continue
        for path, value in _walk(given):
            if path[-1] in EXCHANGED and random.random() < 0.5:
                _set(taken, random.choice([held for held, _ in _walk(taken)]), value)
            elif path[-1] in EXCHANGED and any(held == path for held, _ in _walk(taken)):
                _set(taken, path, value)
        frames[at] = _write(frames[at], taken)
    return frames


EXCHANGED = (
    "type",
    "id",
    "item_id",
    "call_id",
    "name",
    "index",
    "output_index",
    "finish_reason",
    "status",
    "arguments",
)


def _deep(depth: int) -> str:
    """
    Stands for a list in a list in a list …, which Python's encoder could not write.
    """
    return f"deep {depth} deep"


VALUES: tuple[Callable[[], Any], ...] = (
    lambda: None,
    lambda: True,
    lambda: 0,
    lambda: -1,
    lambda: 7,
    lambda: 1.5,
    lambda: 2**63,
    lambda: 2**64 - 1,
    lambda: 10**400,
    lambda: float("inf"),
    lambda: "",
    lambda: " ",
    lambda: "x",
    lambda: "look",
    lambda: "call_a",
    lambda: "function_call",
    lambda: "message",
    lambda: "reasoning",
    lambda: "response.completed",
    lambda: "stop",
    lambda: "{}",
    lambda: '{"a": NaN}',
    lambda: "\x00\ud83d",
    lambda: "\udc00",
    lambda: "x" * 300_000,
    lambda: "call_" + "y" * 100,
    list,
    dict,
    lambda: [None, {}, [], 1],
    lambda: [{"type": "output_text", "text": "more"}, {"type": "refusal", "refusal": 1}],
    lambda: {"text": "x", "arguments": {"a": 1}},
    lambda: {"": {"\ud83d": "\ud83d"}},
    lambda: _deep(120),
    lambda: _deep(249),
    lambda: _deep(253),
    lambda: _deep(700),
    lambda: _deep(1020),
    lambda: _deep(5000),
)


def _change(random: Random, frames: Frames, make: Callable[[], Any] | None) -> Frames:
    """
    *frames* with a few values changed to what *make* gives, or without them.
    """
    frames = list(frames)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(frames))
        value = _read(frames[at])
        paths = [path for path, _ in _walk(value)] if value is not None else []
        if not paths:
            continue
        path = random.choice(paths)
        if make is None:
            _remove(value, path)
        else:
            _set(value, path, make())
        frames[at] = _write(frames[at], value)
    return frames


def _read(frame: bytes) -> Any:
    _, found, data = frame.partition(b"data: ")
    try:
        return orjson.loads(data) if found else None
    except ValueError:
        return None


def _write(frame: bytes, value: Any) -> bytes:
    head, _, _ = frame.partition(b"data: ")
    try:
        text = json.dumps(value)
    except RecursionError:
        return frame  # a second mutation met what the first one made deep
    data = re.sub(r'"deep (\d+) deep"', lambda found: "[" * int(found[1]) + "]" * int(found[1]), text)
    return head + b"data: " + data.encode() + b"\n\n"


def _walk(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    held = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in held:
        yield (*path, key), inner
        if len(path) < 8:
            yield from _walk(inner, (*path, key))


def _set(value: Any, path: tuple[Any, ...], new: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new


def _remove(value: Any, path: tuple[Any, ...]) -> None:
    for key in path[:-1]:
        value = value[key]
    del value[path[-1]]


MUTATIONS: Mapping[str, Callable[[Random, Frames], Frames]] = {
    "drop": drop,
    "double": double,
    "swap": swap,
    "shuffle": shuffle,
    "truncate": truncate,
    "flip": flip,
    "mix": mix,
    "splice": splice,
    "replace": replace,
    "remove": remove,
    "retype": retype,
}


KEEPS_VALUES = frozenset({"drop", "double", "swap", "shuffle", "truncate", "splice"})
"""Those that leave every frame that comes as it was, so that what the server said is what it knows of."""


def mutate(random: Random, frames: Frames) -> tuple[list[str], Frames]:
    """
    One mutation, sometimes two; their names and what they leave.
    """
    names = random.choices(list(MUTATIONS), k=random.choice((1, 1, 2)))
    for name in names:
        frames = MUTATIONS[name](random, frames) if frames else frames
    return names, frames


def cut_up(random: Random, frames: Frames) -> Frames:
    """
    The same bytes in other pieces: frame by frame, byte by byte, anywhere, or all at once.
    """
    whole = b"".join(frames)
    how = random.choice(("frames", "bytes", "anywhere", "anywhere", "whole")) if len(whole) < 20_000 else "frames"
    if how == "frames":
        return frames
    if how == "bytes":
        return [whole[at : at + 1] for at in range(len(whole))]
    if how == "whole":
        return [whole]
    places = sorted(random.randint(0, len(whole)) for _ in range(random.randint(1, 30)))
    return [whole[start:end] for start, end in pairwise([0, *places, len(whole)]) if start < end]
