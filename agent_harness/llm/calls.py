"""
The one assembler for the tool calls of a Chat Completions stream. Pure.

Servers disagree on nearly every field of a ``tool_calls`` delta. What is made of one piece (an entry of such a delta):

==============================  ========================================================================================
a piece with …                  belongs to
==============================  ========================================================================================
an index in use                 the newest call of that index. With an id that is not this call's: the newest call of
                                that index and id, or (without a name) of that id; else a new call
an index not in use             a new call; without a name but with a known id, the newest call of that id
an id, no index                 the newest call of that id; else a new call
an unknown id, where the call   that call (a late id), unless it is whole and the piece begins another object
found by index, or the newest,
has no id yet
neither, alone in its delta     the newest call
neither, among several          the newest call that stood at the same place of its delta; a new call if there is none
a name, and the call found has  a new call, if the name is another one or the piece begins an object of its own. The
one and its arguments are a     same id, name and arguments again are a repetition
whole object
==============================  ========================================================================================

==============================  ========================================================================================
field                           what is done with it
==============================  ========================================================================================
``id``                          text, or a number as text; null, ``""``, anything else: none. One that comes before the
                                call is added is its ``call_id``; a later one only tells where pieces belong
``function.name``               appended, unless it equals the name so far (servers repeat it); null and ``""`` say
                                nothing. Fixed when the call is added
``function.arguments``          text is appended as it is; null says nothing; any other value becomes JSON text, ``{}``
                                only at the end if nothing else came
no ``function``                 ``name`` and ``arguments`` of the piece itself
==============================  ========================================================================================

A call is *added* when it has a name that can no longer grow: with its first arguments, when a later call is added, or
at the end. Arguments that came before are given then. One that never got a name is added at the end as ``""`` if it has
arguments, so that the model hears of it; with neither it is no call at all and is only logged.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import orjson

from agent_harness.llm.base import ArgumentsDelta, Delta, ItemAdded
from agent_harness.llm.surrogates import SurrogateJoiner
from agent_harness.protocol.tools import clean_text

__all__ = ["CallAssembler", "arguments_text"]

logger = logging.getLogger(__name__)


def arguments_text(value: object) -> str:
    """
    A call's arguments as text: text as it is, None as ``""``, any other JSON value written as JSON.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        pass
    try:
        # A lone surrogate half in a string, a very long number: orjson refuses them.
        return clean_text(json.dumps(value, ensure_ascii=False))
    except (RecursionError, TypeError, ValueError):
        return '"arguments that cannot be written as JSON"'


@attrs.frozen
class _Piece:
    """
    One entry of a delta, its fields made plain. ``key`` is its index, ``place`` where it stood among several; ``whole``
    says that the arguments came as a value, not as text.
    """

    key: int | str | None
    place: int | None
    id: str
    name: str
    text: str
    whole: bool

    @property
    def is_object(self) -> bool:
        """
        Whether an object begins with this piece.
        """
        return self.whole or self.text.lstrip().startswith("{")


@attrs.define(eq=False)
class _Call:
    """
    A call as far as it is known. ``index`` is its place in the answer once it was added, ``told`` how many of its
    ``pieces`` were given.
    """

    key: int | str | None
    place: int | None
    id: str = ""
    name: str = ""
    pieces: list[str] = attrs.field(factory=list)
    whole: bool = False
    index: int | None = None
    told: int = 0
    joiner: SurrogateJoiner = attrs.field(factory=SurrogateJoiner)

    @property
    def text(self) -> str:
        """
        The arguments so far.
        """
        return "".join(self.pieces)

    @property
    def has_arguments(self) -> bool:
        """
        Whether anything was said of the arguments.
        """
        return self.whole or bool(self.pieces)

    def is_whole(self) -> bool:
        """
        Whether the arguments so far are an object. Parses only text that could be one.
        """
        if self.whole:
            # An empty object has no pieces; one that text follows was only the arguments' first, empty state.
            return not self.pieces or _load(self.text) is not None
        if not self.pieces or not self.pieces[-1].rstrip().endswith("}"):
            return False
        return is_object(self.text)


def is_object(text: str) -> bool:
    """
    Whether *text* is a whole JSON object.
    """
    return isinstance(_load(text), dict)


def _load(text: str) -> object:
    """
    The JSON value that *text* is, None for anything else.
    """
    try:
        return orjson.loads(text)
    except ValueError:
        return None


class CallAssembler:
    """
    Makes an answer's calls of ``tool_calls`` deltas; see the module for the rules.

    Args:
        indexes: gives the next index of the answer; the answer's other items take theirs from it too.
    """

    def __init__(self, indexes: Iterator[int]) -> None:
        self._indexes = indexes
        self._calls: list[_Call] = []

    def feed(self, value: object) -> list[Delta]:
        """
        Take the value of one ``tool_calls`` key, whatever it is, and give what follows from it.
        """
        entries = value if isinstance(value, list) else [value]
        several = len(entries) > 1
        deltas: list[Delta] = []
        for place, entry in enumerate(entries):
            if isinstance(entry, Mapping):
                self._take(_read_piece(entry, place if several else None), deltas)
        return deltas

    def feed_function_call(self, value: object) -> list[Delta]:
        """
        Take the value of one ``function_call`` key, the form before ``tool_calls``: one call, without id and index.
        """
        deltas: list[Delta] = []
        if isinstance(value, Mapping):
            self._take(_read_piece({"index": "function_call", "function": value}, None), deltas)
        return deltas

    def finish(self) -> list[Delta]:
        """
        Give what was held back; no piece comes any more.
        """
        deltas: list[Delta] = []
        for call in self._calls:
            if call.index is None and not call.name and not call.has_arguments:
                logger.info("ignored a call without name and arguments (id %r)", call.id)
                continue
            rest = call.joiner.flush() or ("{}" if call.whole and not call.pieces else "")
            if rest:
                call.pieces.append(rest)
            self._add(call, deltas)
            self._tell(call, deltas)
        return deltas

    def indexes(self) -> list[int]:
        """
        The indexes of the calls that were added.
        """
        return [call.index for call in self._calls if call.index is not None]

    def ends_cut(self) -> bool:
        """
        Whether the last call has arguments that are no whole JSON object.
        """
        added = [call for call in self._calls if call.index is not None]
        return bool(added) and not is_object(added[-1].text)

    def _take(self, piece: _Piece, deltas: list[Delta]) -> None:
        call = self._find(piece)
        if call is not None and _is_named_again(call, piece):
            if piece.id and piece.id == call.id and piece.name == call.name and piece.text == call.text:
                return
            call = None
        if call is None:
            call = _Call(piece.key, piece.place)
            self._calls.append(call)
        call.id = call.id or piece.id
        if piece.name and call.index is None and piece.name != call.name:
            call.name += piece.name
        call.whole = call.whole or piece.whole
        text = call.joiner.feed(piece.text) if piece.text else ""
        if text:
            call.pieces.append(text)
        if call.name and call.has_arguments:
            self._add(call, deltas)
            self._tell(call, deltas)

    def _find(self, piece: _Piece) -> _Call | None:
        """
        The call that *piece* belongs to by index, id or place; None: a new one.
        """
        if piece.key is not None:
            return self._find_by_index(piece)
        newest = self._calls[-1] if self._calls else None
        if piece.id:
            known = self._newest(lambda call: call.id == piece.id)
            return known or (newest if newest is not None and _may_be_late(newest, piece) else None)
        if piece.place is None:
            return newest
        return self._newest(lambda call: call.place == piece.place)

    def _find_by_index(self, piece: _Piece) -> _Call | None:
        same = self._newest(lambda call: call.key == piece.key)
        if same is None:
            return self._newest(lambda call: call.id == piece.id) if piece.id and not piece.name else None
        if not piece.id or piece.id == same.id or _may_be_late(same, piece):
            return same
        exact = self._newest(lambda call: call.key == piece.key and call.id == piece.id)
        return exact or (None if piece.name else self._newest(lambda call: call.id == piece.id))

    def _newest(self, fits: Callable[[_Call], bool]) -> _Call | None:
        return next((call for call in reversed(self._calls) if fits(call)), None)

    def _add(self, call: _Call, deltas: list[Delta]) -> None:
        """
        Add *call*, and before it the calls that began earlier and have a name: calls are numbered as they began.
        """
        if call.index is not None:
            return
        for earlier in self._calls:
            if earlier is call:
                break
            if earlier.index is None and earlier.name:
                self._add_one(earlier, deltas)
        self._add_one(call, deltas)

    def _add_one(self, call: _Call, deltas: list[Delta]) -> None:
        call.index = next(self._indexes)
        deltas.append(ItemAdded(call.index, "function_call", clean_text(call.id), clean_text(call.name)))

    def _tell(self, call: _Call, deltas: list[Delta]) -> None:
        assert call.index is not None
        text = "".join(call.pieces[call.told :])
        call.told = len(call.pieces)
        if text:
            deltas.append(ArgumentsDelta(call.index, text))


def _may_be_late(call: _Call, piece: _Piece) -> bool:
    """
    Whether the piece's id can be that of *call*, which must have none yet.
    """
    return not call.id and not (piece.is_object and call.is_whole())


def _is_named_again(call: _Call, piece: _Piece) -> bool:
    """
    Whether the piece names a call although *call* has its name and is whole. The cheap questions come first: some
    servers repeat the name in every delta.
    """
    if not piece.name or not call.name:
        return False
    return (piece.is_object or piece.name != call.name) and call.is_whole()


def _read_piece(entry: Mapping[str, Any], place: int | None) -> _Piece:
    key, given_id = entry.get("index"), entry.get("id")
    function = entry.get("function")
    if not isinstance(function, Mapping):
        function = entry
    name, arguments = function.get("name"), function.get("arguments")
    whole = arguments is not None and not isinstance(arguments, str)
    return _Piece(
        key=key if isinstance(key, int | str) and not isinstance(key, bool) and key != "" else None,
        place=place,
        id=str(given_id) if isinstance(given_id, int | str) and not isinstance(given_id, bool) else "",
        name=name if isinstance(name, str) else "",
        # An empty object is often only the first, empty state of arguments that follow as text.
        text="" if whole and arguments == {} else arguments_text(arguments),
        whole=whole,
    )
