"""
The refusal of a model request, and the helpers that raise it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Literal, NoReturn

__all__ = ["NAME", "Dialect", "StrictError", "check_keys", "refuse", "refuse_missing"]

Dialect = Literal["responses", "chat"]

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class StrictError(Exception):
    """
    A request that the real API would refuse.

    `rule` is the number of the rule (1 to 9), or None for what the API refuses besides; `param` is the path of the
    offending value, e.g. `input[2].call_id`, or None when the body as a whole is wrong.
    """

    def __init__(self, message: str, *, param: str | None, rule: int | None, code: str | None) -> None:
        label = "STRICT" if rule is None else f"STRICT rule {rule}"
        super().__init__(": ".join(part for part in (label, param, message) if part))
        self.rule = rule
        self.param = param
        self.code = code

    def to_body(self) -> dict[str, Any]:
        """
        Give the JSON body of the 400: OpenAI's shape, `{"error": {"message", "type", "param", "code"}}`.
        """
        error = {"message": str(self), "type": "invalid_request_error", "param": self.param, "code": self.code}
        return {"error": error}


def refuse(message: str, param: str | None, *, rule: int | None = None, code: str | None = "invalid_value") -> NoReturn:
    """
    Raise the `StrictError` for the value at path `param`.
    """
    raise StrictError(message, param=param, rule=rule, code=code)


def refuse_missing(param: str) -> NoReturn:
    """
    Raise the API's answer to an absent parameter.
    """
    refuse(f"Missing required parameter: '{param}'.", param, code="missing_required_parameter")


def check_keys(value: dict[str, Any], known: Collection[str], at: str) -> None:
    """
    Refuse a key that the API does not know, as it does: `Unknown parameter: 'input[1].origin'`.
    """
    for key in value:
        if key not in known:
            refuse(f"Unknown parameter: '{at}.{key}'.", f"{at}.{key}", code="unknown_parameter")
