"""`filesystem.Filesystem`: the files of a sandbox."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fumehood.dialects.e2b import file_words
from fumehood.dialects.e2b.fields import Fields
from fumehood.dialects.e2b.paths import inside
from fumehood.dialects.e2b.watchers import Watchers
from fumehood.errors import PathNotFoundError
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
from fumehood.values.sandbox import FileInfo

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

    async def stat(self, request: Fields) -> dict[str, Any]:
        """Describes a path."""
        return await self._entry(StatFile(path=inside(request.text("path"))))

    async def make_dir(self, request: Fields) -> dict[str, Any]:
        """Makes a directory and its parents."""
        return await self._entry(MakeDir(path=inside(request.text("path"))))

    async def move(self, request: Fields) -> dict[str, Any]:
        """Moves a file or directory."""
        source, destination = inside(request.text("source")), inside(request.text("destination"))
        return await self._entry(RenameFile(source=source, destination=destination))

    async def list_dir(self, request: Fields) -> dict[str, Any]:
        """Describes the entries below a directory."""
        depth = request.integer("depth") or 1
        found = await self._call(ListFiles(path=inside(request.text("path")), depth=depth))
        return {"entries": [file_words.entry_data(info) for info in found]}

    async def remove(self, request: Fields) -> dict[str, Any]:
        """Removes the entry at a path, if there is one."""
        try:
            await self._call(RemoveFile(path=inside(request.text("path"))))
        except PathNotFoundError:
            pass

        return {}

    async def create_watcher(self, request: Fields) -> dict[str, Any]:
        """Begins to collect changes below a directory."""
        watcher_id = await self._watchers.create(self._backend, self._sandbox_id, _watch(request))
        return {"watcherId": watcher_id}

    async def get_watcher_events(self, request: Fields) -> dict[str, Any]:
        """Returns the changes collected since the last call."""
        # Raises if the sandbox has ended.
        await self._backend.info(self._sandbox_id)
        changes = await self._watchers.news(self._backend, self._sandbox_id, request.text("watcherId"))
        return {"events": [file_words.change_data(change) for change in changes]}

    async def remove_watcher(self, request: Fields) -> dict[str, Any]:
        """Ends a watcher."""
        await self._watchers.remove(self._sandbox_id, request.text("watcherId"))
        return {}

    async def watch_dir(self, request: Fields) -> AsyncGenerator[dict[str, Any], None]:
        """Streams the changes below a directory."""
        changes = await self._backend.watch(self._sandbox_id, _watch(request))

        async with aclosing(changes):
            yield {"start": {}}

            async for change in changes:
                yield {"filesystem": file_words.change_data(change)}

    async def _entry(self, call: FileCall) -> dict[str, Any]:
        (info,) = await self._call(call)
        return {"entry": file_words.entry_data(info)}

    async def _call(self, call: FileCall) -> tuple[FileInfo, ...]:
        return await self._backend.file_call(self._sandbox_id, call)


def _watch(request: Fields) -> WatchFiles:
    """Returns the watch that a client wants; no mount here is a network mount, so `allowNetworkMounts` holds."""
    request.flag("allowNetworkMounts")
    return WatchFiles(
        path=inside(request.text("path")),
        recursive=request.flag("recursive") is True,
        entries=request.flag("includeEntry") is True,
    )
