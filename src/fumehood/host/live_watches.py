"""The watched directories of one sandbox: what init tells of them, kept for whoever watches.

Runs in the host process, on the engine's loop. A watcher who does not look loses what is beyond a bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from fumehood.errors import FileError, FumehoodError
from fumehood.host.init_client import InitError, InitGoneError
from fumehood.models import FileChange

_MAX_QUEUED_CHANGES = 10_000

Ask = Callable[..., Awaitable[tuple[Any, bytes]]]


class LiveWatches:
    """The watches of one sandbox.

    Args:
        ask: Asks init.
        check_alive: Raises when the sandbox has ended.
    """

    def __init__(self, ask: Ask, check_alive: Callable[[], None]) -> None:
        self._ask = ask
        self._check_alive = check_alive
        self._queues: dict[int, asyncio.Queue[FileChange | None]] = {}

    async def begin(self, path: str, recursive: bool) -> AsyncGenerator[FileChange, None]:
        """Begins to watch a directory; closing the iterator ends it."""
        try:
            value, _ = await self._ask("watch", path=path, recursive=recursive)
        except InitError as error:
            raise FileError.from_errno(path=path, operation="watch", errno_value=error.errno_value) from None

        queue: asyncio.Queue[FileChange | None] = asyncio.Queue(_MAX_QUEUED_CHANGES)
        self._queues[value["watch_id"]] = queue
        return self._changes(value["watch_id"], queue)

    def note(self, header: dict[str, Any]) -> None:
        """Takes what init tells."""
        queue = self._queues.get(header["watch_id"])

        if queue is None:
            return

        for change in header["changes"]:
            if queue.full():
                return

            queue.put_nowait(FileChange(kind=change["kind"], name=change["name"], path=change["path"]))

    def close(self) -> None:
        """The sandbox has ended."""
        for queue in self._queues.values():
            if not queue.full():
                queue.put_nowait(None)

    async def _changes(
        self, watch_id: int, queue: asyncio.Queue[FileChange | None]
    ) -> AsyncGenerator[FileChange, None]:
        try:
            while True:
                change = await queue.get()

                if change is None:
                    self._check_alive()
                    return

                yield change
        finally:
            self._queues.pop(watch_id, None)

            # A sandbox that has ended watches nothing.
            with suppress(FumehoodError, InitError, InitGoneError):
                await self._ask("unwatch", watch_id=watch_id)
