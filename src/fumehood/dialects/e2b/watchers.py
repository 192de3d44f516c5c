"""Watches that are polled, for clients that cannot hold a stream.

Each collects changes until it is polled, within bounds: a sandbox has few of them, each keeps the newest changes, and
one that is not polled for a long time ends.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace
from sys import getsizeof

from fumehood.bounds import MIB
from fumehood.cancellation import when_done
from fumehood.errors import FumehoodError, InvalidArgumentError
from fumehood.port.backend import Backend
from fumehood.values.requests import WatchFiles
from fumehood.values.sandbox import FileChange

_MAX_WATCHERS = 16
_MAX_CHANGES = 10_000
# Guest code decides how long the names are.
_MAX_BYTES = 8 * MIB
_FORGOTTEN_SECONDS = 3600.0
# The guest's report arrives within moments; a channel that stalls must not delay a response.
_SETTLING_SECONDS = 10.0


class WatcherNotFoundError(FumehoodError, LookupError):
    """There is no such watcher."""

    code = "path_not_found"

    def __init__(self, *, watcher_id: str) -> None:
        self.watcher_id = watcher_id
        super().__init__(f"no watcher has the id {watcher_id[:80]!r}", hint="watch the directory again")


class _Watcher:
    def __init__(self, changes: AsyncGenerator[FileChange, None]) -> None:
        self._news: deque[FileChange] = deque()
        self._held_bytes = 0
        self._received = 0
        self._wake = asyncio.Event()
        self.clock: asyncio.TimerHandle | None = None
        self.error: FumehoodError | None = None
        self.task = asyncio.create_task(self._collect(changes))

    async def received(self, count: int) -> None:
        """Returns when as many changes have come, or no more can come."""
        while self._received < count and not self.task.done():
            self._wake.clear()
            news = asyncio.ensure_future(self._wake.wait())

            try:
                await asyncio.wait({news, self.task}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()

    def take(self) -> list[FileChange]:
        changes = list(self._news)
        self._news.clear()
        self._held_bytes = 0
        return changes

    async def _collect(self, changes: AsyncGenerator[FileChange, None]) -> None:
        try:
            async with aclosing(changes):
                async for change in changes:
                    self._add(change)
        except FumehoodError as error:
            self.error = error

    def _add(self, change: FileChange) -> None:
        self._news.append(change)
        self._held_bytes += _size(change)
        self._received += 1
        self._wake.set()

        while len(self._news) > _MAX_CHANGES or self._held_bytes > _MAX_BYTES:
            self._held_bytes -= _size(self._news.popleft())


class Watchers:
    """The watchers of all sandboxes."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, str], _Watcher] = {}

    async def create(self, backend: Backend, sandbox_id: str, request: WatchFiles) -> str:
        """Watches a directory and returns the watcher's id, which is the name of the watch.

        Raises:
            InvalidArgumentError: The sandbox has as many as it may.
            FileError: There is no such directory.
        """
        if sum(owner == sandbox_id for owner, _ in self._all) >= _MAX_WATCHERS:
            raise InvalidArgumentError(
                field="watchers", value=_MAX_WATCHERS + 1, allowed=f"at most {_MAX_WATCHERS} for a sandbox"
            )

        name = sandbox_id, secrets.token_hex(16)
        watcher = _Watcher(await backend.watch(sandbox_id, replace(request, name=name[1])))
        self._all[name] = watcher
        self._wind(name, watcher)
        when_done(watcher.task, self._ended, name, watcher)
        return name[1]

    async def news(self, backend: Backend, sandbox_id: str, watcher_id: str) -> list[FileChange]:
        """Returns the changes since the last call, up to this one.

        Raises:
            WatcherNotFoundError: There is no such watcher.
        """
        name = sandbox_id, watcher_id
        watcher = self._found(name)
        self._wind(name, watcher)
        # Changes on their way from the guest are awaited: they happened before the call.
        count = await backend.settle_watch(sandbox_id, watcher_id)

        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLING_SECONDS):
                await watcher.received(count)

        return watcher.take()

    async def remove(self, sandbox_id: str, watcher_id: str) -> None:
        """Ends a watcher.

        Raises:
            WatcherNotFoundError: There is no such watcher.
        """
        watcher = self._found((sandbox_id, watcher_id))
        watcher.task.cancel()
        await asyncio.wait([watcher.task])

    def _found(self, name: tuple[str, str]) -> _Watcher:
        if name not in self._all:
            raise WatcherNotFoundError(watcher_id=name[1])

        return self._all[name]

    def _wind(self, name: tuple[str, str], watcher: _Watcher) -> None:
        if watcher.clock is not None:
            watcher.clock.cancel()

        watcher.clock = asyncio.get_running_loop().call_later(_FORGOTTEN_SECONDS, watcher.task.cancel)

    def _ended(self, name: tuple[str, str], watcher: _Watcher) -> None:
        """Removes a watcher whose sandbox has ended, or that was removed."""
        self._all.pop(name, None)

        if watcher.clock is not None:
            watcher.clock.cancel()

        if not watcher.task.cancelled():
            watcher.task.exception()


def _size(change: FileChange) -> int:
    entry = change.entry
    # Only the names in a description can be made long by code.
    named = () if entry is None else (entry.name, entry.path, entry.symlink_target, entry.resolved_target)
    metadata = {} if entry is None else entry.metadata
    return sum(map(getsizeof, (change.name, change.path, *named, *metadata, *metadata.values())))
