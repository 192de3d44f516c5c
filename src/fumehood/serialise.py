"""Public values as plain data that JSON can hold, for programs and for other processes.

Runs in the host process. Field names stay as they are; bytes become base64, times ISO 8601, and numbers
that JSON does not know (NaN, infinity) null. A `Result` is written by its formats, as callers read it.
"""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Mapping
from datetime import datetime
from functools import cache

from fumehood.charts import JsonValue
from fumehood.execution import Execution, Logs
from fumehood.results import Result

_PLAIN = frozenset({str, int, bool, type(None)})
_RESULT_FORMATS = (
    "text",
    "html",
    "markdown",
    "svg",
    "png",
    "jpeg",
    "pdf",
    "latex",
    "json",
    "javascript",
    "data",
    "chart",
)


def as_data(value: object) -> JsonValue:
    """Return `value`, which is made of our dataclasses and plain values, as plain data."""
    # By its type first: most values are plain, and each pattern below is a question of its own.
    if type(value) in _PLAIN:
        return value  # type: ignore[return-value]

    match value:
        case Execution():
            return {**_fields(value), "text": value.text}
        case Logs():
            return {"stdout": as_data(value.stdout), "stderr": as_data(value.stderr), **_fields(value)}
        case Result():
            return _result(value)
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
            return _fields(value)


def _fields(value: object) -> dict[str, JsonValue]:
    return {name: as_data(getattr(value, name)) for name in _names(type(value))}  # type: ignore[arg-type]  # classes can be hashed


@cache
def _names(kind: type) -> tuple[str, ...]:
    if not dataclasses.is_dataclass(kind):
        raise TypeError(f"no plain data for {kind.__name__}")

    return tuple(field.name for field in dataclasses.fields(kind))


def _result(result: Result) -> dict[str, JsonValue]:
    formats = {name: as_data(getattr(result, name)) for name in _RESULT_FORMATS}
    return {
        **{name: content for name, content in formats.items() if content is not None},
        "extra": as_data(result.extra),
        "metadata": as_data(result.metadata),
        "is_main_result": result.is_main_result,
        "display_id": result.display_id,
        "truncated": as_data(result.truncated),
    }
