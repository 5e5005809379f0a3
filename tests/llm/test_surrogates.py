"""
Half characters in streamed text.
"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_harness.llm.surrogates import SurrogateJoiner, join_halves


def join(*deltas: str) -> list[str]:
    joiner = SurrogateJoiner()
    return [*(joiner.feed(delta) for delta in deltas), joiner.flush()]


def test_two_halves_in_two_deltas_become_one_character() -> None:
    """
    B090.
    """
    assert join("a\ud83d", "\ude00b") == ["a", "😀b", ""]


@pytest.mark.parametrize(
    "deltas, said",
    [
        (("a\ud83d",), ["a", "\ufffd"]),
        (("\ud83d", "x"), ["", "\ufffdx", ""]),
        (("\ude00x",), ["\ufffdx", ""]),
        (("\ud83d", "\ud83d", "\ude00"), ["", "\ufffd", "😀", ""]),
        (("\ud83d", "", "\ude00"), ["", "", "😀", ""]),
        (("x\ud83dy",), ["x\ufffdy", ""]),
        (("\ud83d\ude00",), ["😀", ""]),
    ],
)
def test_a_half_that_stays_alone_becomes_a_replacement_character(deltas: tuple[str, ...], said: list[str]) -> None:
    """
    B090: only the first half, then the end; and every other lone half.
    """
    assert join(*deltas) == said


def test_ordinary_text_passes_unchanged_and_at_once() -> None:
    assert join("abc", "好🙂", "\u2028\u0085", "") == ["abc", "好🙂", "\u2028\u0085", "", ""]


def test_a_joiner_can_be_used_again_after_its_flush() -> None:
    joiner = SurrogateJoiner()
    joiner.feed("\ud83d")
    assert joiner.flush() == "\ufffd"
    assert joiner.feed("\ude00") == "\ufffd"


@given(st.text(alphabet=st.sampled_from("a好😀\ud83d\ude00"), max_size=12), st.lists(st.integers(0, 24), max_size=6))
def test_any_cut_into_deltas_gives_what_the_whole_text_gives(text: str, cuts: list[int]) -> None:
    units = text.encode("utf-16-le", "surrogatepass")
    places = sorted({0, len(units), *(2 * cut for cut in cuts if 2 * cut < len(units))})
    pieces = [units[a:b].decode("utf-16-le", "surrogatepass") for a, b in itertools.pairwise(places)]
    joined = "".join(join(*pieces))
    assert joined == join_halves(text)
    joined.encode()
