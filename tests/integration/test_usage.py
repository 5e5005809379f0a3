"""
Tokens of a model call, a turn and a session, over HTTP, in both dialects.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from agent_harness.testing.strict import Dialect
from tests.integration.both_dialects import DIALECTS, Servers, Talk, serve_both

NOTHING: dict[str, Any] = {
    "input_tokens": None,
    "output_tokens": None,
    "total_tokens": None,
    "input_tokens_details": {"cached_tokens": None},
    "output_tokens_details": {"reasoning_tokens": None},
}


@pytest.fixture(scope="module")
def both() -> Iterator[Servers]:
    with serve_both(max_retries=1, retry_base_s=0.0) as servers:
        yield servers


@pytest.fixture
def servers(both: Servers) -> Servers:
    both.clear()
    return both


def wire(dialect: Dialect, asked: Any, answered: Any, total: Any, cached: Any = None, thought: Any = None) -> Any:
    """
    A usage object as a provider of that dialect reports it.
    """
    names = ("input", "output") if dialect == "responses" else ("prompt", "completion")
    return {
        f"{names[0]}_tokens": asked,
        f"{names[1]}_tokens": answered,
        "total_tokens": total,
        f"{names[0]}_tokens_details": {"cached_tokens": cached},
        f"{names[1]}_tokens_details": {"reasoning_tokens": thought},
    }


def shown(asked: Any, answered: Any, total: Any, cached: Any = None, thought: Any = None) -> Any:
    """
    A usage object as the sessions API shows it.
    """
    return wire("responses", asked, answered, total, cached, thought)


CALL = {"tool_calls": [{"name": "look", "arguments": "{}"}]}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_turn_has_the_sum_of_its_model_calls_and_the_session_that_of_its_turns(
    servers: Servers, dialect: Dialect
) -> None:
    """
    B083: the usage of Chat Completions comes in a chunk of its own; cached and reasoning tokens are kept too.
    """
    talk = Talk(servers, dialect)

    first = talk.turn(
        {**CALL, "usage": wire(dialect, 100, 20, 120, 64, 8)},
        {"text": "It is.", "usage": wire(dialect, 150, 7, 157, 96, 0)},
    )
    second = talk.turn({"text": "Yes.", "usage": wire(dialect, 170, 3, 173, 128, 2)})

    assert first["usage"] == shown(250, 27, 277, 160, 8)
    assert second["usage"] == shown(170, 3, 173, 128, 2)
    assert talk.snapshot()["usage"] == shown(420, 30, 450, 288, 10)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_not_reported_is_null_and_not_zero(servers: Servers, dialect: Dialect) -> None:
    talk = Talk(servers, dialect)

    turn = talk.turn({"text": "Nothing counted.", "usage": None})

    assert turn["usage"] in (NOTHING, None)
    assert talk.snapshot()["usage"] in (NOTHING, None)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_partial_report_keeps_its_numbers_and_null_for_the_rest(servers: Servers, dialect: Dialect) -> None:
    talk = Talk(servers, dialect)
    names = ("input_tokens", "output_tokens") if dialect == "responses" else ("prompt_tokens", "completion_tokens")

    turn = talk.turn({**CALL, "usage": None}, {"text": "Counted.", "usage": {names[0]: 12, names[1]: 0}})

    assert turn["usage"] == shown(12, 0, None)
    assert talk.snapshot()["usage"] == shown(12, 0, None)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("wrong", ["12", -1, 1.5, True, [], {"a": 1}, None])
def test_count_that_is_no_count_is_null(servers: Servers, dialect: Dialect, wrong: Any) -> None:
    """
    B171: mistyped fields of compatible servers.
    """
    talk = Talk(servers, dialect)

    turn = talk.turn({"text": "Odd.", "usage": wire(dialect, wrong, 5, wrong, wrong, wrong)})

    assert turn["status"] == "completed"
    assert turn["usage"] == shown(None, 5, None)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("wrong", ["x", 3, [], {}, {"input_tokens_details": 7, "prompt_tokens_details": "x"}])
def test_usage_of_a_wrong_shape_reports_nothing(servers: Servers, dialect: Dialect, wrong: Any) -> None:
    """
    B171
    """
    talk = Talk(servers, dialect)

    turn = talk.turn({"text": "Odd.", "usage": wrong})

    assert turn["status"] == "completed"
    assert turn["usage"] in (NOTHING, None)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("huge", [2**53, 2**63 - 1, 2**64 - 1])
def test_count_too_huge_for_any_reader_is_null(servers: Servers, dialect: Dialect, huge: int) -> None:
    """
    B070: what cannot be encoded must not end the stream.
    """
    talk = Talk(servers, dialect)

    first = talk.turn(
        {**CALL, "usage": wire(dialect, huge, 1, huge)}, {"text": "Much.", "usage": wire(dialect, huge, 1, huge)}
    )
    second = talk.turn({"text": "More.", "usage": wire(dialect, huge, 1, huge)})

    assert (first["status"], second["status"]) == ("completed", "completed")
    assert first["usage"] == shown(None, 2, None)
    assert talk.snapshot()["usage"] == shown(None, 3, None)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_cut_answer_counts_and_a_failed_one_keeps_what_its_turn_had(servers: Servers, dialect: Dialect) -> None:
    """
    B077: an answer that the length cut was paid for.
    """
    talk = Talk(servers, dialect)

    cut = talk.turn({"text": "Half a", "finish": "length", "usage": wire(dialect, 10, 5, 15)})
    broken = {"text": "Half an answer", "disconnect_after": 5 if dialect == "responses" else 3}
    failed = talk.turn({**CALL, "usage": wire(dialect, 20, 2, 22)}, broken)

    assert (cut["status"], cut["usage"]) == ("incomplete", shown(10, 5, 15))
    assert (failed["status"], failed["usage"]) == ("failed", shown(20, 2, 22))
    assert talk.snapshot()["usage"] == shown(30, 7, 37)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_retry_counts_once(servers: Servers, dialect: Dialect) -> None:
    talk = Talk(servers, dialect)

    turn = talk.turn({"error": "Busy.", "status_code": 503}, {"text": "Now.", "usage": wire(dialect, 9, 1, 10)})

    assert turn["status"] == "completed"
    assert turn["usage"] == talk.snapshot()["usage"] == shown(9, 1, 10)


def test_change_of_provider_keeps_counting(servers: Servers) -> None:
    talk = Talk(servers, "responses")
    talk.turn({"text": "One.", "usage": wire("responses", 1, 2, 3, 4, 5)})

    servers.api(f"/{talk.id}", {"agent": {"provider": "chat"}}, "PATCH")
    talk.turn({"text": "Two.", "usage": wire("chat", 10, 20, 30, 40, 50)})

    assert [asked.dialect for asked in servers.asked] == ["responses", "chat"]
    assert talk.snapshot()["usage"] == shown(11, 22, 33, 44, 55)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_fork_begins_to_count_anew(servers: Servers, dialect: Dialect) -> None:
    talk = Talk(servers, dialect)
    talk.turn({"text": "One.", "usage": wire(dialect, 1, 2, 3)})

    fork = servers.api(f"/{talk.id}/fork", {})

    assert fork["usage"] is None
