"""Parses untrusted JSON member by member and item by item: no call parses more than a megabyte at once.

Used in the host process, in a thread; pure. One call of C code reads JSON and keeps the interpreter's lock meanwhile: a
text of many megabytes would hold up every other thread for as long.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

# Objects and lists above this depth are read piece by piece if they are large; what lies in them must fit into a
# window.
_DEPTH = 4
_WINDOWS = (1 << 12, 1 << 16, 1 << 20)
# The most values that may be read piece by piece, all together.
_MAX_MEMBERS = 20_000
_MAX_ITEMS = 320_000
# The same for values that are read at once, counted by commas and brackets.
_MAX_MARKS = 3_000_000
_SPACE = re.compile(r"[ \t\n\r]*")
_read = json.JSONDecoder().raw_decode


def parse_in_pieces(content: bytes) -> object:
    """Returns the value of these bytes.

    Raises:
        ValueError: The bytes are not JSON, have too many values, or hold a deeply nested value larger than a megabyte.
    """
    reader = _Reader(content.decode())
    try:
        value = reader.value(_DEPTH)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None

    if not reader.is_at_end():
        raise ValueError(f"text after the end (character {reader.place})")

    return value


class _Reader:
    """Reads a text from its beginning."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._members_left = _MAX_MEMBERS
        self._items_left = _MAX_ITEMS
        self._marks_left = _MAX_MARKS
        self.place = 0

    def is_at_end(self) -> bool:
        self._skip_space()
        return self.place == len(self._text)

    def value(self, depth: int) -> Any:
        self._skip_space()
        begin = self._text[self.place : self.place + 1]

        # Nearly all values are small, and are read at once.
        if not depth or begin not in ("{", "["):
            return self._whole(_WINDOWS)

        try:
            return self._whole(_WINDOWS[:1])
        except ValueError:
            return self._object(depth) if begin == "{" else self._list(depth)

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self.place += 1

        if self._take("}"):
            return found

        while True:
            self._skip_space()
            name = self._whole(_WINDOWS)

            if type(name) is not str or not self._take(":"):
                raise self._fault()

            found[name] = self.value(depth - 1)
            self._members_left -= 1

            if not self._members_left:
                raise ValueError(f"its objects hold more than {_MAX_MEMBERS:,} values")

            if self._take("}"):
                return found

            if not self._take(","):
                raise self._fault()

    def _list(self, depth: int) -> list[Any]:
        found: list[Any] = []
        self.place += 1

        if self._take("]"):
            return found

        while True:
            found.append(self.value(depth - 1))
            self._items_left -= 1

            if not self._items_left:
                raise ValueError(f"its lists hold more than {_MAX_ITEMS:,} values")

            if self._take("]"):
                return found

            if not self._take(","):
                raise self._fault()

    def _whole(self, windows: Sequence[int]) -> Any:
        """Reads a value in one call, in the smallest window that holds all of it and what ends it."""
        for window in windows:
            text = self._text[self.place : self.place + window]
            try:
                value, length = _read(text)
            except json.JSONDecodeError:
                continue

            # A number may go on behind the window: with digits, or with what is left out as no number yet (`1.`,
            # `1e+`).
            if length + 2 < len(text) or self.place + len(text) == len(self._text):
                self.place += length

                if isinstance(value, (dict, list)):
                    self._count(text[:length])

                return value

        raise self._fault()

    def _count(self, text: str) -> None:
        self._marks_left -= text.count(",") + text.count("[") + text.count("{")

        if self._marks_left < 0:
            raise ValueError(f"it holds more than {_MAX_MARKS:,} values")

    def _take(self, mark: str) -> bool:
        self._skip_space()
        is_there = self._text.startswith(mark, self.place)
        self.place += is_there
        return is_there

    def _skip_space(self) -> None:
        match = _SPACE.match(self._text, self.place)
        assert match is not None, "it matches nothing, too"
        self.place = match.end()

    def _fault(self) -> ValueError:
        return ValueError(f"no JSON, or too much of it at once (character {self.place})")
