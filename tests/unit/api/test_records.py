"""The list of sandboxes that have ended, where it comes in pages; a scripted backend."""

from __future__ import annotations

import asyncio
from typing import Any

from fumehood import AsyncRecords
from fumehood.port.backend import Backend
from fumehood.port.record_keeping import RecordKeeping
from fumehood.values.kept_records import ListRecords, RecordList


class Pages(Backend, RecordKeeping):
    """Five sandboxes: in pages of two, of none and of three."""

    def __init__(self) -> None:
        self.asked: list[tuple[str | None, int]] = []

    async def find_records(self, request: ListRecords) -> RecordList:
        self.asked.append((request.before, request.limit))
        items, cursor = {None: ("ab", "1"), "1": ("", "2"), "2": ("cde", None)}[request.before]
        found: Any = tuple(items[: request.limit])
        return RecordList(is_kept=True, items=found, next_cursor=cursor)


# What the list asks for is all that is scripted.
Pages.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]


def test_all_pages_are_read_up_to_the_limit():
    """A page is bounded in bytes, so that one with few items or none is not the end."""
    pages: Any = Pages()
    assert asyncio.run(AsyncRecords(backend=pages).list()) == ["a", "b", "c", "d", "e"]
    assert pages.asked == [(None, 100), ("1", 98), ("2", 98)]
    assert asyncio.run(AsyncRecords(backend=Pages()).list(limit=2)) == ["a", "b"]  # type: ignore[arg-type]
    assert asyncio.run(AsyncRecords(backend=Pages()).list(limit=4)) == ["a", "b", "c", "d"]  # type: ignore[arg-type]
