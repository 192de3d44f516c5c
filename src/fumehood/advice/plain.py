"""The scan of code as plain text: hidden characters, disguised names, secrets, escapes, declared encodings.

Runs in the host process; each check is one pass over the text. It needs no parser, so it works in any language.
"""

from __future__ import annotations

import bisect
import re

from fumehood.advice.cells import outside_strings
from fumehood.advice.findings import Collection
from fumehood.advice.hidden import hidden_kinds
from fumehood.advice.lookalikes import disguised_names
from fumehood.advice.secret_shapes import secrets_in

_ESCAPES = re.compile(
    r"(?:\\x[0-9a-fA-F]{2}|\\u00[0-9a-fA-F]{2}|\\U000000[0-9a-fA-F]{2}|\\[0-3]?[0-7]{2}){16}"
)
_PRINTABLE_ESCAPE = re.compile(r"\\(?:x|u00|U000000)[2-7][0-9a-fA-F]|\\1?[0-7]{2}")
_ENCODING = re.compile(r"^[ \t\f]*#.{0,200}?coding[:=][ \t]*([-\w.]+)")
_ORDINARY_ENCODINGS = frozenset(
    {"utf-8", "utf8", "utf_8", "ascii", "us-ascii", "latin-1", "latin1", "iso-8859-1"}
)
_MAX_TOLD = 150


class Places:
    """Turns places in a text into lines and columns."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def of(self, at: int) -> tuple[int, int]:
        """Return line and column, both from 1, of the character `at`."""
        line = bisect.bisect_right(self._starts, at)
        return line, at - self._starts[line - 1] + 1


def look_at_text(code: str, collection: Collection, *, is_python: bool = True) -> None:
    """Look at code as text."""
    places = Places(code)

    for kind, at in hidden_kinds(code).items():
        line, column = places.of(at)
        is_worst = kind == "tag" or (kind == "text direction" and code[at] not in "\u200e\u200f\u061c")
        collection.add(
            "hidden-text",
            f"hidden characters: {kind} (U+{ord(code[at]):04X})",
            line=line,
            column=column,
            severity="danger" if is_worst else "warning",
        )

    for number, (kind, at) in enumerate(secrets_in(code)):
        if number == _MAX_TOLD:
            break

        line, column = places.of(at)
        collection.add("secret", f"a secret: {kind}", line=line, column=column)

    if is_python:
        _look_at_python(code, collection, places)


def _look_at_python(code: str, collection: Collection, places: Places) -> None:
    if not code.isascii():
        for number, (plain, at) in enumerate(disguised_names(outside_strings(code))):
            if number == _MAX_TOLD:
                break

            line, column = places.of(at)
            collection.add("lookalike-name", f"Python reads this name as {plain}", line=line, column=column)

    for number, match in enumerate(_ESCAPES.finditer(code)):
        if number == _MAX_TOLD:
            break

        if len(_PRINTABLE_ESCAPE.findall(match[0])) >= 12:
            line, column = places.of(match.start())
            collection.add(
                "encoded-blob", "plain letters written as a row of escapes", line=line, column=column
            )

    for number, first in enumerate(code.split("\n", 2)[:2], 1):
        declared = _ENCODING.match(first[:400])

        if declared and declared[1].lower() not in _ORDINARY_ENCODINGS:
            collection.add(
                "hidden-text", f"the encoding {declared[1]} changes what the code says", line=number
            )
