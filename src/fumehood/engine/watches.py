"""The watched directories of one sandbox: changes reported by init, queued for their watchers.

The queue is bounded: a watcher that does not read loses the excess.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from sys import getsizeof
from typing import Any

from fumehood.bounds import MIB
from fumehood.engine.files import file_info, size_of_info
from fumehood.engine.init_client import InitError, InitGoneError
from fumehood.errors import FileError, FumehoodError, InvalidArgumentError
from fumehood.values.requests import WatchFiles
from fumehood.values.sandbox import FileChange

_MAX_QUEUED_CHANGES = 10_000
# Code in the sandbox chooses the length of the names.
_MAX_QUEUED_BYTES = 8 * MIB

Ask = Callable[..., Awaitable[tuple[Any, bytes]]]


class _Queue(asyncio.Queue[FileChange | None]):
    """The unread changes; there is always room for the end marker."""

    def __init__(self) -> None:
        super().__init__(_MAX_QUEUED_CHANGES + 1)
        self._held_bytes = 0
        # How many were ever added.
        self.added = 0

    def add(self, change: FileChange) -> None:
        """Adds a change, if there is room for it."""
        held_bytes = self._held_bytes + _size(change)

        if self.qsize() < _MAX_QUEUED_CHANGES and held_bytes <= _MAX_QUEUED_BYTES:
            self._held_bytes = held_bytes
            self.added += 1
            self.put_nowait(change)

    async def take(self) -> FileChange | None:
        """Waits for the next change and returns it; None at the end of the watch."""
        change = await self.get()
        self._held_bytes -= 0 if change is None else _size(change)
        return change


class LiveWatches:
    """The watches of one sandbox.

    Args:
        ask: Sends requests to init.
        check_alive: Raises when the sandbox has ended.
    """

    def __init__(self, ask: Ask, check_alive: Callable[[], None]) -> None:
        self._ask = ask
        self._check_alive = check_alive
        self._queues: dict[int, _Queue] = {}
        self._names: dict[str, int] = {}

    async def begin(self, request: WatchFiles) -> AsyncGenerator[FileChange, None]:
        """Begins to watch a directory; closing the iterator ends it."""
        path = request.path

        if request.name in self._names:
            raise InvalidArgumentError(
                field="name", value=request.name, allowed="a name that no watch of this sandbox has"
            )

        try:
            value, _ = await self._ask(
                "watch", path=path, recursive=request.recursive, entries=request.entries
            )
        except InitError as error:
            raise FileError.from_errno(path=path, operation="watch", errno_value=error.errno_value) from None

        # The sandbox may have ended since the reply: later events would never be reported.
        self._check_alive()
        queue = self._queues[value["watch_id"]] = _Queue()

        if request.name:
            self._names[request.name] = value["watch_id"]

        return self._changes(value["watch_id"], queue, request.name)

    async def settle(self, name: str) -> int:
        """Has init report all changes so far, and returns how many the watch has had since it began."""
        watch_id = self._names.get(name, 0)
        queue = self._queues.get(watch_id)

        if queue is None:
            raise InvalidArgumentError(
                field="name", value=name, allowed="the name of a watch of this sandbox"
            )

        await self._ask("settle_watch", watch_id=watch_id)
        return queue.added

    def note(self, header: dict[str, Any]) -> None:
        """Queues the file changes in an event of init for the watch that it names; ignores unknown watches."""
        queue = self._queues.get(header["watch_id"])

        if queue is None:
            return

        for change in header["changes"]:
            entry = file_info(change["entry"]) if "entry" in change else None
            queue.add(FileChange(kind=change["kind"], name=change["name"], path=change["path"], entry=entry))

    def close(self) -> None:
        """Ends all watches, after the end of the sandbox."""
        for queue in self._queues.values():
            queue.put_nowait(None)

    async def _changes(self, watch_id: int, queue: _Queue, name: str) -> AsyncGenerator[FileChange, None]:
        try:
            while True:
                change = await queue.take()

                if change is None:
                    self._check_alive()
                    return

                yield change
        finally:
            self._queues.pop(watch_id, None)
            self._names.pop(name, None)

            # A sandbox that has ended has no watches.
            with suppress(FumehoodError, InitError, InitGoneError):
                await self._ask("unwatch", watch_id=watch_id)


def _size(change: FileChange) -> int:
    size = getsizeof(change.name) + getsizeof(change.path)
    return size if change.entry is None else size + size_of_info(change.entry)
