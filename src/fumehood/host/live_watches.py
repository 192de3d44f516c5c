"""The watched directories of one sandbox: what init tells of them, kept for whoever watches.

Runs in the host process, on the engine's loop. A watcher who does not look loses what is beyond a bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from sys import getsizeof
from typing import Any

from fumehood.errors import FileError, FumehoodError
from fumehood.host.init_client import InitError, InitGoneError
from fumehood.limits import MIB
from fumehood.models import FileChange

_MAX_QUEUED_CHANGES = 10_000
# Code decides how long the names are.
_MAX_QUEUED_BYTES = 8 * MIB

Ask = Callable[..., Awaitable[tuple[Any, bytes]]]


class _Queue(asyncio.Queue[FileChange | None]):
    """What has changed and nobody has seen; there is always room for the end."""

    def __init__(self) -> None:
        super().__init__(_MAX_QUEUED_CHANGES + 1)
        self._held_bytes = 0

    def add(self, change: FileChange) -> None:
        """Adds a change, if there is room for it."""
        held_bytes = self._held_bytes + _size(change)

        if self.qsize() < _MAX_QUEUED_CHANGES and held_bytes <= _MAX_QUEUED_BYTES:
            self._held_bytes = held_bytes
            self.put_nowait(change)

    async def take(self) -> FileChange | None:
        """Waits for the next one; None is the end."""
        change = await self.get()
        self._held_bytes -= 0 if change is None else _size(change)
        return change


class LiveWatches:
    """The watches of one sandbox.

    Args:
        ask: Asks init.
        check_alive: Raises when the sandbox has ended.
    """

    def __init__(self, ask: Ask, check_alive: Callable[[], None]) -> None:
        self._ask = ask
        self._check_alive = check_alive
        self._queues: dict[int, _Queue] = {}

    async def begin(self, path: str, recursive: bool) -> AsyncGenerator[FileChange, None]:
        """Begins to watch a directory; closing the iterator ends it."""
        try:
            value, _ = await self._ask("watch", path=path, recursive=recursive)
        except InitError as error:
            raise FileError.from_errno(path=path, operation="watch", errno_value=error.errno_value) from None

        # It may have ended since init has answered: of what comes later, nobody would tell.
        self._check_alive()
        queue = self._queues[value["watch_id"]] = _Queue()
        return self._changes(value["watch_id"], queue)

    def note(self, header: dict[str, Any]) -> None:
        """Takes what init tells."""
        queue = self._queues.get(header["watch_id"])

        if queue is None:
            return

        for change in header["changes"]:
            queue.add(FileChange(kind=change["kind"], name=change["name"], path=change["path"]))

    def close(self) -> None:
        """The sandbox has ended."""
        for queue in self._queues.values():
            queue.put_nowait(None)

    async def _changes(self, watch_id: int, queue: _Queue) -> AsyncGenerator[FileChange, None]:
        try:
            while True:
                change = await queue.take()

                if change is None:
                    self._check_alive()
                    return

                yield change
        finally:
            self._queues.pop(watch_id, None)

            # A sandbox that has ended watches nothing.
            with suppress(FumehoodError, InitError, InitGoneError):
                await self._ask("unwatch", watch_id=watch_id)


def _size(change: FileChange) -> int:
    return getsizeof(change.name) + getsizeof(change.path)
