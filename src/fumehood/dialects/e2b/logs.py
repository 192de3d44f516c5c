"""Logs of a sandbox in E2B's format: the events of its audit record, without their contents.

Pure functions. At E2B a log contains the output of the daemon inside. Here it is the host's own record, so code inside
cannot forge it. Code, output, arguments and environments of commands and contents of files are not in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from starlette.datastructures import QueryParams

from fumehood.errors import InvalidArgumentError
from fumehood.values.audit import AuditEntry

_MAX_LINES = 1000
_LEVELS = ("debug", "info", "warn", "error")
# The fields of an entry that a line shows; every other field may hold text of a user.
_SHOWN_FIELDS = frozenset(
    {
        "bytes_out",
        "code_bytes",
        "context",
        "cpu_microseconds",
        "error",
        "execution",
        "kind",
        "language",
        "level",
        "outcome",
        "peak_memory_bytes",
        "reason",
        "size_bytes",
        "template",
        "wall_microseconds",
    }
)
_MAX_VALUE_CHARS = 200
_WARNINGS = frozenset({"failed", "limit", "left_out", "policy"})


def logs_data(entries: Iterable[AuditEntry], query: QueryParams) -> dict[str, Any]:
    """Returns the answer of the first generation of the API: lines of JSON, and the same as entries.

    Raises:
        InvalidArgumentError: A part of the query is not valid.
    """
    start = _number(query, "start", 0)
    found = [entry for entry in entries if _milliseconds(entry) >= start][: _limit(query)]
    return {"logs": [_line(entry) for entry in found], "logEntries": [_entry(entry) for entry in found]}


def logs_data_of_v2(entries: Iterable[AuditEntry], query: QueryParams) -> dict[str, Any]:
    """Returns the answer of the second generation: entries from a cursor on, in either direction.

    Raises:
        InvalidArgumentError: A part of the query is not valid.
    """
    direction = query.get("direction", "forward")
    level, words = query.get("level", "debug"), query.get("search", "").lower()

    if direction not in ("forward", "backward"):
        raise InvalidArgumentError(field="direction", value=direction, allowed="forward or backward")

    if level not in _LEVELS:
        raise InvalidArgumentError(field="level", value=level, allowed=", ".join(_LEVELS))

    is_forward = direction == "forward"
    cursor = _number(query, "cursor", 0 if is_forward else 1 << 62)
    found = [
        entry
        for entry in entries
        if (_milliseconds(entry) >= cursor if is_forward else _milliseconds(entry) <= cursor)
        and _LEVELS.index(_level(entry)) >= _LEVELS.index(level)
        and words in entry.kind
    ]
    return {"logs": [_entry(entry) for entry in (found if is_forward else found[::-1])[: _limit(query)]]}


def _line(entry: AuditEntry) -> dict[str, str]:
    said = {"level": _level(entry), "logger": "fumehood", "message": entry.kind, **_fields(entry)}
    return {"timestamp": _time(entry), "line": json.dumps(said)}


def _entry(entry: AuditEntry) -> dict[str, Any]:
    fields = {"logger": "fumehood", **_fields(entry)}
    return {
        "timestamp": _time(entry),
        "message": entry.kind,
        "level": _level(entry),
        "fields": {name: value if isinstance(value, str) else str(value) for name, value in fields.items()},
    }


def _fields(entry: AuditEntry) -> dict[str, str | int]:
    return {
        f"{name}_of_entry" if name in ("level", "message") else name: (
            value[:_MAX_VALUE_CHARS] if isinstance(value, str) else value
        )
        for name, value in entry.fields.items()
        if name in _SHOWN_FIELDS and isinstance(value, str | int)
    }


def _level(entry: AuditEntry) -> str:
    return "warn" if entry.kind in _WARNINGS else "info"


def _time(entry: AuditEntry) -> str:
    return entry.at.isoformat().replace("+00:00", "Z")


def _milliseconds(entry: AuditEntry) -> int:
    return int(entry.at.timestamp() * 1000)


def _limit(query: QueryParams) -> int:
    limit = _number(query, "limit", _MAX_LINES)

    if limit > _MAX_LINES:
        raise InvalidArgumentError(field="limit", value=limit, allowed=f"a number up to {_MAX_LINES}")

    return limit


def _number(query: QueryParams, name: str, default: int) -> int:
    text = query.get(name, "")

    if not text:
        return default

    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidArgumentError(field=name, value=text, allowed="a whole number of up to 18 digits")

    return int(text)
