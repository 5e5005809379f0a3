"""
What schemathesis must be told: a stream is read to its end, so it is asked for one that ends; an Idempotency-Key used
again would give the first answer again, with a session that may be gone; and a page behind an element that is none is
refused, so that every other page is asked for from the beginning.
"""

from itertools import count
from typing import Any

import schemathesis

_number = count()


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    number = next(_number)
    if case.operation.path.endswith("/stream"):
        case.query = {**(case.query or {}), "until": "idle", "after": "0"}
        _set_header(case, "Last-Event-ID", None)
    elif number % 2 and case.query and "after" in case.query:
        case.query = {name: value for name, value in case.query.items() if name != "after"}
    key = (case.headers or {}).get("Idempotency-Key")
    if isinstance(key, str) and 0 < len(key) < 200:
        _set_header(case, "Idempotency-Key", f"{key}-{number}")


def _set_header(case: Any, name: str, value: str | None) -> None:
    if case.headers and name in case.headers:
        del case.headers[name]
        if value is not None:
            case.headers[name] = value
