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
    same: T = cls(**{name: changes[name] if name in changes else getattr(value, name) for name in _names(cls)})
    return same


@functools.cache
def _names(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in attrs.fields(cls))
