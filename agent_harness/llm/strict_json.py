"""
JSON as any model server takes it, whatever stands in settings, tools and items.
"""

import json
from collections.abc import Mapping
from typing import Any

import orjson

from agent_harness.protocol.tools import clean_json

__all__ = ["encode_strict"]


def encode_strict(value: Mapping[str, Any]) -> bytes:
    """
    *value* as strict JSON: no NUL, no lone surrogate, no NaN; the same bytes for the same value.
    """
    try:
        data = orjson.dumps(value, default=dict)
        if b"\\u0000" not in data:
            return data
    except TypeError:
        pass
    # Python's own encoder, for numbers over 64 bits.
    return json.dumps(clean_json(value), ensure_ascii=False, separators=(",", ":")).encode()
