"""Checks values that enter or leave a sandbox as JSON: any other value is refused, with its place.

Runs in the host process, without any input or output. The bounds lie within those of the wire, so that a value that
passes here can be sent. It never repairs: a key that is a number does not become text, and NaN not null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from fumehood.text import visible_line

MAX_DEPTH = 30
MAX_VALUES = 50_000
_MAX_INTEGER = 10**20
_SHOWN_CHARACTERS = 40
_to_json = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


class NotJsonError(ValueError):
    """A value is not JSON, or too large; the message begins with its place."""


def json_of(value: object, where: str, max_bytes: int) -> bytes:
    """Returns a value as JSON.

    Raises:
        NotJsonError: It is no JSON value, nested more than 30 deep, holds more than 50,000 values, or takes more
            bytes than it may.
    """
    _Look().at(value, where, 1)
    data = _to_json(value).encode("ascii")

    if len(data) > max_bytes:
        raise NotJsonError(f"{where} takes {len(data):,} bytes as JSON, and may take {max_bytes:,}")

    return data


class _Look:
    """The checks of one value, with its counts."""

    def __init__(self) -> None:
        self._values = 0

    def at(self, value: object, where: str, depth: int) -> None:
        self._values += 1

        if value is None or isinstance(value, bool):
            return

        if isinstance(value, str):
            _check_text(value, where)
        elif isinstance(value, int):
            if not -_MAX_INTEGER < value < _MAX_INTEGER:
                raise NotJsonError(f"{where} has more than 20 digits")
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise NotJsonError(f"{where} is {value!r}, which JSON does not know")
        elif isinstance(value, list | tuple | dict):
            self._inside(value, where, depth)
        else:
            raise NotJsonError(f"{where} is of type {type(value).__name__}, which JSON does not know")

    def _inside(
        self, value: list[object] | tuple[object, ...] | dict[object, object], where: str, depth: int
    ) -> None:
        if depth > MAX_DEPTH:
            raise NotJsonError(f"{where} is nested more than {MAX_DEPTH} deep")

        if self._values + len(value) > MAX_VALUES:
            raise NotJsonError(f"{where} holds more than {MAX_VALUES:,} values")

        if isinstance(value, Mapping):
            for key, item in value.items():
                if not isinstance(key, str):
                    shown = visible_line(repr(key)[:_SHOWN_CHARACTERS])
                    raise NotJsonError(f"{where} has the key {shown}, and keys of JSON are text")

                shown = visible_line(repr(key[:_SHOWN_CHARACTERS]))
                _check_text(key, f"{where}[{shown}]")
                self.at(item, f"{where}[{shown}]", depth + 1)
        else:
            for place, item in enumerate(value):
                self.at(item, f"{where}[{place}]", depth + 1)


def _check_text(text: str, where: str) -> None:
    # Half a surrogate pair can be escaped in JSON, but is lost or refused in other encodings.
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NotJsonError(f"{where} is text that UTF-8 cannot hold") from None
