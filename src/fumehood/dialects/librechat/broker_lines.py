"""Output lines of the broker of a run, parsed; the broker has the rights of the user's code.

Pure, used in the server process. Whatever a line holds, the returned value can be encoded in a response: infinity and
NaN are null, halves of surrogate pairs are replaced, and a line that is too deep or has too many values is dropped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from fumehood.errors import InvalidArgumentError
from fumehood.server.json_bodies import check_values

_MAX_DEPTH = 100
_MOST_DIGITS = 10**100


class BrokerLines:
    """Cuts received pieces into lines; nothing is searched twice, however small the pieces are."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._searched = 0

    @property
    def held_bytes(self) -> int:
        """The number of bytes in lines that were not taken."""
        return len(self._held)

    def add(self, piece: bytes) -> None:
        """Adds a received piece."""
        self._held += piece

    def take(self) -> bytes | None:
        """Returns the next line without its end, or None while it is incomplete."""
        end = self._held.find(b"\n", self._searched)

        if end < 0:
            self._searched = len(self._held)
            return None

        line = bytes(self._held[:end])
        del self._held[: end + 1]
        self._searched = 0
        return line


def read_line(line: bytes) -> Mapping[str, Any] | None:
    """Returns the object of a line, or None if it holds none that can be encoded."""
    try:
        check_values(line)
        said = _repeatable(json.loads(line.decode()), 0)
    except (ValueError, RecursionError, InvalidArgumentError):
        return None

    return said if isinstance(said, dict) else None


def _repeatable(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError("too deep")

    match value:
        case str():
            return value if value.isascii() else value.encode("utf-8", "replace").decode()
        case float():
            return value if math.isfinite(value) else None
        case bool() | None:
            return value
        case int():
            return value if -_MOST_DIGITS < value < _MOST_DIGITS else None
        case list():
            return [_repeatable(item, depth + 1) for item in value]
        case _:
            return {_repeatable(name, depth): _repeatable(item, depth + 1) for name, item in value.items()}
