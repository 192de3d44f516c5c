"""Watches that are asked for their news: what nobody asks for is kept within bounds, the newest of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from fumehood.dialects.e2b import file_service
from fumehood.dialects.e2b.file_service import Watchers
from fumehood.values.requests import WatchFiles
from fumehood.values.sandbox import FileChange


class Box:
    """Plays a backend in whose sandbox files come and go, named by a number at their end."""

    def __init__(self, begin: str, count: int) -> None:
        self._begin = begin
        self._count = count
        self.over = asyncio.Event()

    async def watch(self, *_: Any, **__: Any) -> AsyncGenerator[FileChange, None]:
        return self._changes()

    async def settle_watch(self, *_: Any) -> int:
        return self._count

    async def _changes(self) -> AsyncGenerator[FileChange, None]:
        for number in range(self._count):
            name = f"{self._begin}{number}"
            yield FileChange(kind="create", name=name, path=f"/{name}")

        self.over.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("length", [0, 4000])
def test_the_newest_changes_are_kept_as_far_as_they_are_not_much(length):
    async def work() -> None:
        box = Box("x" * length, 30_000)
        known = Watchers()
        name = await known.create(box, "box", WatchFiles(path="/", recursive=True))
        await box.over.wait()
        news = await known.news(box, "box", name)
        held_bytes = sum(len(change.name) + len(change.path) for change in news)
        assert 900 < len(news) <= file_service._MAX_CHANGES
        assert held_bytes < file_service._MAX_BYTES
        assert [change.name[length:] for change in news] == [
            str(number) for number in range(30_000 - len(news), 30_000)
        ]
        assert await known.news(box, "box", name) == []
        await known.remove("box", name)

    asyncio.run(work())
