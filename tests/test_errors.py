"""
The error tree: each class has its status, type and codes, and the drawing in the docstring tells the truth.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from agent_harness import errors
from agent_harness.errors import (
    Conflict,
    HarnessError,
    InvalidRequest,
    ModelError,
    NotFound,
    RequestError,
)

# What clients are promised: status, type and codes of a refused request.
CONTRACT: dict[int, tuple[str, set[str]]] = {
    400: (
        "invalid_request_error",
        {"invalid_json", "invalid_value", "missing_field", "unknown_field", "unknown_event_type", "invalid_tool"},
    ),
    401: ("authentication_error", {"missing_key", "wrong_key"}),
    403: ("permission_error", {"bad_host", "bad_origin"}),
    404: (
        "not_found_error",
        {"unknown_path", "unknown_session", "unknown_call", "unknown_item", "unknown_response", "unknown_agent"},
    ),
    405: ("invalid_request_error", {"method_not_allowed"}),
    409: ("conflict_error", {"call_already_answered", "call_closed", "idempotency_conflict", "turn_in_progress"}),
    413: ("invalid_request_error", {"request_too_large"}),
    415: ("invalid_request_error", {"unsupported_media_type"}),
    429: ("rate_limit_error", {"too_many_sessions", "queue_full", "session_full", "too_many_followers"}),
    500: ("server_error", {"internal_error"}),
    503: ("server_error", {"shutting_down"}),
}
MODEL_CODES = {
    "provider_auth", "provider_not_found", "provider_rejected", "rate_limited", "context_length_exceeded",
    "provider_unavailable", "upstream_disconnected", "upstream_idle", "upstream_invalid", "internal_error",
}  # fmt: skip


def walk(cls: type) -> Iterator[type]:
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from walk(child)


CLASSES = list(walk(HarnessError))
REQUEST_ERRORS: list[Any] = list(walk(RequestError))


def read_drawing() -> dict[str, list[str]]:
    """
    The words behind each class in the docstring's drawing; a line without a class belongs to the one above it.
    """
    drawn: dict[str, list[str]] = {}
    words: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"\W*── (\w+)(.*)", line):
            drawn[found[1]] = words = re.findall(r"\w+", found[2])
        elif drawn:
            words += re.findall(r"\w+", line)
    return drawn


def test_every_class_is_public_and_has_a_sentence() -> None:
    names = {cls.__name__ for cls in CLASSES}

    assert {*names, "HarnessError", "forget_frames"} == set(errors.__all__)
    assert list(errors.__all__) == sorted(errors.__all__)
    assert all((cls.__doc__ or "").strip() for cls in CLASSES)


def test_drawing_names_every_class_and_no_other() -> None:
    assert set(read_drawing()) == {cls.__name__ for cls in CLASSES}
    assert "HarnessError  " in (errors.__doc__ or "")


def test_drawing_shows_every_class_below_its_parent() -> None:
    depth = {
        found[2]: len(found[1]) for found in re.finditer(r"^(\W*)── (\w+)", errors.__doc__ or "", flags=re.MULTILINE)
    }

    assert all(depth[cls.__name__] > depth[cls.__base__.__name__] for cls in REQUEST_ERRORS)
    assert len({depth[cls.__name__] for cls in CLASSES if cls.__base__ is HarnessError}) == 1


@pytest.mark.parametrize("cls", REQUEST_ERRORS)
def test_drawing_tells_status_type_and_codes(cls: Any) -> None:
    status, kind, *codes = read_drawing()[cls.__name__]

    assert (int(status), kind) == (cls.status, cls.type)
    assert sorted(codes) == sorted(cls.codes)


def test_drawing_tells_the_codes_of_model_errors() -> None:
    words = read_drawing()["ModelError"]

    assert set(ModelError.codes) <= set(words)
    assert {word for word in words if "_" in word} == set(ModelError.codes)


def test_every_refusal_is_in_the_contract_with_its_status_type_and_codes() -> None:
    assert {cls.status: (cls.type, set(cls.codes)) for cls in REQUEST_ERRORS} == CONTRACT
    assert set(ModelError.codes) == MODEL_CODES


def test_code_belongs_to_one_class_only() -> None:
    codes = [code for cls in REQUEST_ERRORS for code in cls.codes]

    assert len(codes) == len(set(codes))
    assert len(REQUEST_ERRORS) == len({cls.status for cls in REQUEST_ERRORS})
    assert len(ModelError.codes) == len(set(ModelError.codes))


@pytest.mark.parametrize("cls", REQUEST_ERRORS)
def test_refusal_without_a_code_has_the_first_of_its_class(cls: Any) -> None:
    error = cls("What happened, and what to do.")

    assert error.to_wire() == {
        "error": {
            "type": cls.type,
            "code": cls.codes[0],
            "message": "What happened, and what to do.",
            "param": None,
        }
    }
    assert str(error) == error.message


@pytest.mark.parametrize("cls, code", [(cls, code) for cls in REQUEST_ERRORS for code in cls.codes])
def test_refusal_carries_the_code_it_is_given(cls: Any, code: str) -> None:
    assert cls("m", code=code).to_wire()["error"]["code"] == code


def test_refusal_says_where_and_what_else() -> None:
    error = Conflict("m", code="call_closed", param="data.call_id", extra={"closed_by": "deadline"})

    assert error.to_wire()["error"] == {
        "type": "conflict_error",
        "code": "call_closed",
        "message": "m",
        "param": "data.call_id",
        "closed_by": "deadline",
    }


def test_keys_beside_the_message_are_the_errors_own() -> None:
    extra = {"closed_by": "deadline"}
    error = Conflict("m", extra=extra)
    extra["closed_by"] = "other"

    assert error.extra == {"closed_by": "deadline"}
    assert NotFound("m").extra == {}


def test_model_error_has_words_and_a_code() -> None:
    error = ModelError("The key is wrong.", code="provider_auth")

    assert (str(error), error.message, error.code) == ("The key is wrong.", "The key is wrong.", "provider_auth")


def test_one_clause_catches_everything_raised_on_purpose() -> None:
    for error in (InvalidRequest("m"), ModelError("m", code="rate_limited"), errors.ConfigError("m")):
        with pytest.raises(HarnessError):
            raise error


def test_frames_are_forgotten_of_all_that_an_error_goes_back_to() -> None:
    def fail(error: Exception) -> Exception:
        try:
            raise error
        except Exception as caught:
            return caught

    inner, other, context = fail(KeyError("inner")), fail(ValueError("other")), fail(OSError("context"))
    group = fail(ExceptionGroup("both", [inner, other]))
    group.__context__ = context
    context.__context__ = group  # a ring
    assert all(error.__traceback__ for error in (inner, other, context, group))
    errors.forget_frames(group)
    assert not any(error.__traceback__ for error in (inner, other, context, group))
