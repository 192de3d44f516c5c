"""Payloads: the content that follows the headers of answers and comm messages.

Runs in the host and in the guest, on frames that have passed `fumehood_wire.messages.check`. As in that module, nothing
is repaired, guessed or ignored, and every size that a peer claims is checked against what it has sent.
"""

from __future__ import annotations

from typing import Any, cast

from fumehood_wire.frames import Header, ProtocolError, parse_json
from fumehood_wire.messages import (
    MAX_DIMENSIONS,
    MAX_MARK_CHARS,
    MAX_MATCH_CHARS,
    MAX_MATCHES,
    MAX_SHOWN_CHARS,
    MAX_SHOWN_ITEMS,
    MAX_TELEMETRY,
    MAX_TELEMETRY_CHARS,
    MAX_VARIABLE_CHARS,
    MAX_VARIABLES,
)
from fumehood_wire.rules import any_object, integer, items, nullable, one_of, record, text

__all__ = [
    "parse_arguments",
    "parse_changes",
    "parse_comm",
    "parse_matches",
    "parse_telemetry",
    "parse_variables",
    "split_comm",
]

_MATCHES = items(text(MAX_MATCH_CHARS), MAX_MATCHES)
_TEXT = text(MAX_VARIABLE_CHARS)
_CHANGES = items(
    record(
        {
            "name": _TEXT,
            "kind": one_of("added", "changed", "deleted"),
            "type": _TEXT,
            "summary": _TEXT,
            "size_bytes": nullable(integer(0, 2**63 - 1)),
        }
    ),
    MAX_VARIABLES,
)
_SHOWN = items(_TEXT, MAX_SHOWN_ITEMS)
_VARIABLES = items(
    record(
        {"name": _TEXT, "type": _TEXT, "summary": _TEXT, "size_bytes": nullable(integer(0, 2**63 - 1))},
        {
            "mark": text(MAX_MARK_CHARS),
            "text": text(MAX_SHOWN_CHARS),
            "shape": items(integer(0, 2**63 - 1), MAX_DIMENSIONS),
            # Label and type.
            "columns": items(items(_TEXT, 2), MAX_SHOWN_ITEMS),
            "rows": items(_SHOWN, MAX_SHOWN_ITEMS),
            # Key, type and summary.
            "items": items(items(_TEXT, 3), MAX_SHOWN_ITEMS),
        },
    ),
    MAX_VARIABLES,
)
_TELEMETRY = items(
    record(
        {
            "event": text(MAX_TELEMETRY_CHARS),
            "detail": text(MAX_TELEMETRY_CHARS),
            "count": integer(1, 2**31 - 1),
        }
    ),
    MAX_TELEMETRY,
)
_COMM_CONTENT = record({"data": any_object, "metadata": any_object})


def parse_matches(payload: bytes) -> list[str]:
    """Return the completions in the payload of a `complete_reply` that has passed `check`.

    Raises:
        ProtocolError: The payload is not a JSON list of at most `MAX_MATCHES` strings of `MAX_MATCH_CHARS` characters.
    """
    matches = parse_json(payload)
    fault = _MATCHES(matches)

    if fault is not None:
        raise ProtocolError("payload", f"matches {fault}")

    return cast("list[str]", matches)


def parse_arguments(payload: bytes) -> dict[str, Any]:
    """Return the arguments in the payload of a `tool_request` that has passed `check`.

    Raises:
        ProtocolError: The payload is not a JSON object.
    """
    arguments = parse_json(payload)
    fault = any_object(arguments)

    if fault is not None:
        raise ProtocolError("payload", f"arguments: the value {fault}")

    return cast("dict[str, Any]", arguments)


def parse_changes(payload: bytes) -> list[dict[str, Any]]:
    """Return the variables that a cell has changed, from the payload of a `changes` that has passed `check`.

    Raises:
        ProtocolError: The payload is not a JSON list of at most `MAX_VARIABLES` descriptions.
    """
    changes = parse_json(payload)
    fault = _CHANGES(changes)

    if fault is not None:
        raise ProtocolError("payload", f"changes {fault}")

    return cast("list[dict[str, Any]]", changes)


def parse_variables(payload: bytes) -> list[dict[str, Any]]:
    """Return the variables in the payload of a `variables_reply` that has passed `check`.

    Raises:
        ProtocolError: The payload is not a JSON list of at most `MAX_VARIABLES` descriptions.
    """
    found = parse_json(payload)
    fault = _VARIABLES(found)

    if fault is not None:
        raise ProtocolError("payload", f"variables {fault}")

    return cast("list[dict[str, Any]]", found)


def parse_telemetry(payload: bytes) -> list[dict[str, Any]]:
    """Return the audit events in the payload of a `telemetry` that has passed `check`.

    Raises:
        ProtocolError: The payload is not a JSON list of at most `MAX_TELEMETRY` descriptions.
    """
    said = parse_json(payload)
    fault = _TELEMETRY(said)

    if fault is not None:
        raise ProtocolError("payload", f"telemetry {fault}")

    return cast("list[dict[str, Any]]", said)


def split_comm(header: Header, payload: bytes) -> tuple[bytes, list[bytes]]:
    """Return the JSON text and the buffers of a comm message that has passed `check`.

    Raises:
        ProtocolError: The buffers do not fit into the payload.
    """
    sizes = header["buffers"]
    start = len(payload) - sum(sizes)

    if start < 0:
        raise ProtocolError("payload", f"{header['type']}: buffers exceed the {len(payload)} bytes sent")

    content = payload[:start]
    buffers = []

    for size_bytes in sizes:
        buffers.append(payload[start : start + size_bytes])
        start += size_bytes

    return content, buffers


def parse_comm(content: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return data and metadata in the JSON text of a comm message.

    Raises:
        ProtocolError: The text is not a JSON object of exactly these two objects.
    """
    value = parse_json(content)
    fault = _COMM_CONTENT(value)

    if fault is not None:
        raise ProtocolError("payload", f"comm message {fault}")

    said = cast("dict[str, dict[str, Any]]", value)
    return said["data"], said["metadata"]
