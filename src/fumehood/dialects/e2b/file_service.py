"""`filesystem.Filesystem`: the files of a sandbox, their messages, and watches for clients that cannot hold a stream.

A polled watch collects changes within bounds: a sandbox has few of them, each keeps the newest changes, and one that is
not polled for a long time ends.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace
from sys import getsizeof
from typing import Any

from fumehood.bounds import MIB
from fumehood.cancellation import when_done
from fumehood.dialects.e2b.environment import inside
from fumehood.dialects.e2b.file_messages import (
    ListDirRequest,
    MoveRequest,
    PathRequest,
    WatcherRequest,
    WatchRequest,
)
from fumehood.errors import FumehoodError, InvalidArgumentError, PathNotFoundError
from fumehood.port.backend import Backend
from fumehood.values.requests import (
    FileCall,
    ListFiles,
    MakeDir,
    RemoveFile,
    RenameFile,
    StatFile,
    WatchFiles,
)
from fumehood.values.sandbox import FileChange, FileInfo

_TYPES = {
    "file": "FILE_TYPE_FILE",
    "dir": "FILE_TYPE_DIRECTORY",
    "symlink": "FILE_TYPE_SYMLINK",
    "other": "FILE_TYPE_UNSPECIFIED",
}


def entry_data(info: FileInfo) -> dict[str, Any]:
    """Returns the description of a path."""
    data: dict[str, Any] = {
        "name": info.name,
        "type": _TYPES[info.type],
        "path": info.path,
        # Protobuf's JSON writes numbers of 64 bits as text.
        "size": str(info.size_bytes),
        "mode": info.mode,
        "permissions": info.permissions,
        "owner": info.owner,
        "group": info.group,
        "isSymlink": info.symlink_target is not None,
    }

    if info.modified_at is not None:
        data["modifiedTime"] = info.modified_at.isoformat().replace("+00:00", "Z")

    if info.symlink_target is not None:
        data["symlinkTarget"] = info.resolved_target or info.symlink_target

    if info.metadata:
        data["metadata"] = dict(info.metadata)

    return data


def written_data(info: FileInfo) -> dict[str, Any]:
    """Returns the description of an uploaded file for the answer."""
    data: dict[str, Any] = {"path": info.path, "name": info.name, "type": "file"}
    return {**data, "metadata": dict(info.metadata)} if info.metadata else data


def change_data(change: FileChange) -> dict[str, Any]:
    """Returns a change below a watched directory."""
    data: dict[str, Any] = {"name": change.name, "type": f"EVENT_TYPE_{change.kind.upper()}"}
    return data if change.entry is None else {**data, "entry": entry_data(change.entry)}


_MAX_WATCHERS = 16
_MAX_CHANGES = 10_000
# Guest code decides how long the names are.
_MAX_BYTES = 8 * MIB
_FORGOTTEN_SECONDS = 3600.0
# The guest's report arrives within moments; a channel that stalls must not delay a response.
_SETTLING_SECONDS = 10.0


class WatcherNotFoundError(FumehoodError, LookupError):
    """The watcher does not exist."""

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
        """Waits until that many changes have arrived, or no more can arrive."""
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
            InvalidArgumentError: The sandbox already has the maximum number of watchers.
            FileError: The directory does not exist.
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
        """Returns the file changes that a watcher has seen since the previous call for it.

        Raises:
            WatcherNotFoundError: The watcher does not exist.
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
            WatcherNotFoundError: The watcher does not exist.
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
        """Discards a watcher after the end of its sandbox, or after its removal by the client."""
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


WATCH_KEEPALIVE: dict[str, Any] = {"keepalive": {}}


class FileService:
    """The files of one sandbox, for one call.

    Args:
        backend: The backend as the caller may see it.
        sandbox_id: The sandbox.
        watchers: The watchers of all sandboxes.
    """

    def __init__(self, backend: Backend, sandbox_id: str, watchers: Watchers) -> None:
        self._backend = backend
        self._sandbox_id = sandbox_id
        self._watchers = watchers

    async def stat(self, request: PathRequest) -> dict[str, Any]:
        """Describes a path."""
        return await self._entry(StatFile(path=inside(request.path)))

    async def make_dir(self, request: PathRequest) -> dict[str, Any]:
        """Makes a directory and its parents."""
        return await self._entry(MakeDir(path=inside(request.path)))

    async def move(self, request: MoveRequest) -> dict[str, Any]:
        """Moves a file or directory."""
        source, destination = inside(request.source), inside(request.destination)
        return await self._entry(RenameFile(source=source, destination=destination))

    async def list_dir(self, request: ListDirRequest) -> dict[str, Any]:
        """Describes the entries below a directory."""
        depth = request.depth or 1
        found = await self._call(ListFiles(path=inside(request.path), depth=depth))
        return {"entries": [entry_data(info) for info in found]}

    async def remove(self, request: PathRequest) -> dict[str, Any]:
        """Removes the entry at a path, if there is one."""
        try:
            await self._call(RemoveFile(path=inside(request.path)))
        except PathNotFoundError:
            pass

        return {}

    async def create_watcher(self, request: WatchRequest) -> dict[str, Any]:
        """Begins to collect changes below a directory."""
        watcher_id = await self._watchers.create(self._backend, self._sandbox_id, request.watch())
        return {"watcherId": watcher_id}

    async def get_watcher_events(self, request: WatcherRequest) -> dict[str, Any]:
        """Returns the changes collected since the last call."""
        # Raises if the sandbox has ended.
        await self._backend.info(self._sandbox_id)
        changes = await self._watchers.news(self._backend, self._sandbox_id, request.watcher_id)
        return {"events": [change_data(change) for change in changes]}

    async def remove_watcher(self, request: WatcherRequest) -> dict[str, Any]:
        """Ends a watcher."""
        await self._watchers.remove(self._sandbox_id, request.watcher_id)
        return {}

    async def watch_dir(self, request: WatchRequest) -> AsyncGenerator[dict[str, Any], None]:
        """Streams the changes below a directory."""
        changes = await self._backend.watch(self._sandbox_id, request.watch())

        async with aclosing(changes):
            yield {"start": {}}

            async for change in changes:
                yield {"filesystem": change_data(change)}

    async def _entry(self, call: FileCall) -> dict[str, Any]:
        (info,) = await self._call(call)
        return {"entry": entry_data(info)}

    async def _call(self, call: FileCall) -> tuple[FileInfo, ...]:
        return await self._backend.file_call(self._sandbox_id, call)
