"""The history of a kernel, for the arrow keys of consoles: in memory, bounded, gone with the kernel.

Pure, in the server process.
"""

from __future__ import annotations

import fnmatch
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any

_MAX_ENTRIES = 1000
_MAX_CHARACTERS = 1 << 20
# The cost of a search is the product of these two, for each cell.
_MAX_PATTERN_CHARACTERS = 100
_MAX_SEARCHED_CHARACTERS = 10_000


class History:
    """The code that a kernel has run, the oldest first; a restart begins a new session."""

    def __init__(self) -> None:
        self._entries: deque[tuple[int, int, str]] = deque()
        self._characters = 0
        self._session = 1

    def add(self, number: int, source: str) -> None:
        """Adds a cell; the oldest cells are removed if there is no room."""
        if len(source) > _MAX_CHARACTERS:
            return

        self._entries.append((self._session, number, source))
        self._characters += len(source)

        while len(self._entries) > _MAX_ENTRIES or self._characters > _MAX_CHARACTERS:
            self._characters -= len(self._entries.popleft()[2])

    def begin_session(self) -> None:
        """Begins a new session, when the kernel was restarted."""
        self._session += 1

    def answer(self, content: Mapping[str, Any]) -> list[list[Any]]:
        """Returns the answer to a `history_request`: session, number and source of each cell.

        Outputs are not kept: where they are asked for, there is None.
        """
        found = self._found(content)
        with_output = content.get("output") is True
        return [
            [session, number, [source, None] if with_output else source] for session, number, source in found
        ]

    def _found(self, content: Mapping[str, Any]) -> list[tuple[int, int, str]]:
        kind = content.get("hist_access_type")
        count = _whole(content.get("n"), _MAX_ENTRIES)

        if kind == "range":
            return self._range(content)

        entries = list(self._entries)

        if kind == "search":
            pattern = _pattern(content.get("pattern"))
            entries = [
                entry
                for entry in entries
                if fnmatch.fnmatchcase(entry[2][:_MAX_SEARCHED_CHARACTERS], pattern)
            ]

            if content.get("unique") is True:
                entries = sorted({entry[2]: entry for entry in entries}.values())

        return entries[-count:] if count else []

    def _range(self, content: Mapping[str, Any]) -> list[tuple[int, int, str]]:
        session = _whole(content.get("session"), 0, low=-_MAX_ENTRIES)
        wanted = session if session > 0 else self._session + session
        start = _whole(content.get("start"), 0)
        stop = _whole(content.get("stop"), 1 << 60)
        chosen = (entry for entry in self._entries if entry[0] == wanted and start <= entry[1] < stop)
        return list(islice(chosen, _MAX_ENTRIES))


def _pattern(value: object) -> str:
    """Returns the search pattern; a long one is cut."""
    pattern = str(value or "*")
    return (
        pattern if len(pattern) <= _MAX_PATTERN_CHARACTERS else f"{pattern[: _MAX_PATTERN_CHARACTERS - 1]}*"
    )


def _whole(value: object, default: int, *, low: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        return default

    return max(low, value)
