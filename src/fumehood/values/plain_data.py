"""Public values as plain data that JSON can hold, for programs and for other processes.

`fumehood.values.codec` reads it back. A class whose plain data is more than its fields defines `plain_data`.
"""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Protocol, cast, runtime_checkable

from fumehood.values.charts import JsonValue

_PLAIN = frozenset({str, int, bool, type(None)})


@runtime_checkable
class HasPlainData(Protocol):
    """A value whose plain data is more than the data of its fields."""

    def plain_data(self) -> dict[str, JsonValue]:
        """Return the value as plain data."""


def as_data(value: object) -> JsonValue:
    """Return `value`, which is made of our dataclasses and plain values, as plain data."""
    # By its type first: most values are plain or ours, and each pattern below costs a test.
    kind = type(value)

    if kind in _PLAIN:
        return value  # type: ignore[return-value]

    if kind is float:
        return value if math.isfinite(value) else None  # type: ignore[return-value, arg-type]

    if kind is dict:
        return {str(name): as_data(item) for name, item in value.items()}  # type: ignore[attr-defined]

    if kind is tuple or kind is list:
        return [as_data(item) for item in value]  # type: ignore[attr-defined]

    if (written := _written(kind)) is not None:  # type: ignore[arg-type]  # classes can be hashed
        return written(value)

    match value:
        case bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            return value.isoformat()
        case list() | tuple():
            return [as_data(item) for item in value]
        case Mapping():
            return {str(name): as_data(item) for name, item in value.items()}
        case _:
            raise TypeError(f"no plain data for {kind.__name__}")


def fields_data(value: object) -> dict[str, JsonValue]:
    """Return the fields of one of our dataclasses as plain data, by name."""
    return {name: as_data(getattr(value, name)) for name in _names(type(value))}  # type: ignore[arg-type]  # classes can be hashed


@cache
def _written(kind: type) -> Callable[[object], JsonValue] | None:
    """Returns the function that writes values of one of our classes; None for built-in types."""
    if issubclass(kind, (bool, int, float, str, bytes, datetime, list, tuple, Mapping)):
        return None

    if issubclass(kind, HasPlainData):
        return cast("Callable[[object], JsonValue]", kind.plain_data)

    return fields_data


@cache
def _names(kind: type) -> tuple[str, ...]:
    if not dataclasses.is_dataclass(kind):
        raise TypeError(f"no plain data for {kind.__name__}")

    return tuple(field.name for field in dataclasses.fields(kind))
