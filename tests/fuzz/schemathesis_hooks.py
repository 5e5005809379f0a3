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
def map_headers(context: Any, headers: Any) -> Any:
    key = (headers or {}).get("Idempotency-Key")
    if isinstance(key, str) and 0 < len(key) < 200:
        headers["Idempotency-Key"] = f"{key}-{next(_number)}"
    return headers


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    query = case.query or {}
    if case.operation.path.endswith("/stream"):
        case.query = {**query, "until": "idle", "after": "0"}
        if case.headers:
            case.headers.pop("Last-Event-ID", None)
    elif "after" in query and next(_number) % 2:
        case.query = {name: value for name, value in query.items() if name != "after"}
