"""JSON that enters or leaves a sandbox: counts values before parsing, and refuses those that JSON cannot hold.

Pure. A byte of JSON can cost thirty in memory, so the number of values and of texts is bounded, in time proportional to
the bytes. Values that enter or leave a sandbox are checked within the bounds of the wire, so that a value that passes
here can be sent; nothing is repaired: a numeric key is not converted to text, nor NaN to null.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

from fumehood.errors import InvalidArgumentError
from fumehood.text import visible_line

# More than any request needs.
MAX_VALUES_OF_BODY = 500_000

# An unterminated text extends to the end: if the match failed, another would be tried from each later quote.
JSON_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)


def has_more_values(content: bytes, max_values: int, max_texts: int) -> bool:
    """Return whether a JSON text holds more values than a bound, or possibly more strings; it need not be JSON."""
    # Each value except for the first has one such mark before it.
    if len(content) <= max_values or count_values(content) <= max_values:
        return False

    rest, texts = JSON_STRING.subn(b"", content, count=max_texts + 1)
    return texts > max_texts or count_values(rest) > max_values


def check_values(body: bytes) -> None:
    """Raise InvalidArgumentError if a body has more values than any request needs.

    Raises:
        InvalidArgumentError: The body has more values.
    """
    if has_more_values(body, MAX_VALUES_OF_BODY, MAX_VALUES_OF_BODY):
        raise InvalidArgumentError(
            field="body",
            value=f"{len(body):,} bytes of many values",
            allowed=f"at most {MAX_VALUES_OF_BODY:,} values",
        )


def count_values(content: bytes) -> int:
    """Return an upper bound of the values in a JSON text: separators inside strings are counted too."""
    return content.count(b",") + content.count(b"[") + content.count(b"{")


def parse(content: bytes, max_values: int) -> object:
    """Parse JSON.

    Raises:
        ValueError: The content is not JSON, is nested too deeply, or holds more values than `max_values`.
    """
    if has_more_values(content, max_values, 2 * max_values):
        raise ValueError(f"it holds more than {max_values:,} values")

    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


MAX_DEPTH = 30
MAX_VALUES = 50_000
_MAX_INTEGER = 10**20
_SHOWN_CHARACTERS = 40
_to_json = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


class NotJsonError(ValueError):
    """A value is not JSON, or too large; the message begins with its path."""


def json_of(value: object, where: str, max_bytes: int) -> bytes:
    """Returns a value as JSON.

    Raises:
        NotJsonError: The value is not a JSON value, is nested more than 30 deep, holds more than 50,000 values, or
            takes more bytes than allowed.
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
