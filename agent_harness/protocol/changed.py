"""
A frozen value with some of its fields changed.
"""

import functools
from typing import Any, TypeVar

import attrs

__all__ = ["changed"]

T = TypeVar("T")


def changed(value: T, **changes: Any) -> T:
    """
    *value* with *changes*; as `attrs.evolve`, in a third of the time. For classes all of whose fields are arguments of
    the same name: those of items, turns and events.
    """
    cls: Any = type(value)
    for name in _names(cls):
        if name not in changes:
            changes[name] = getattr(value, name)
    same: T = cls(**changes)
    return same


@functools.cache
def _names(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in attrs.fields(cls))
