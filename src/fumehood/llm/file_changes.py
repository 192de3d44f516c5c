"""Finds files that are new or changed since the last call: compares two bounded listings.

Lists /home/user and /mnt/data at once, without hidden files. A tree with very many files is listed less deeply the next
time, so that a call stays fast.
"""

from __future__ import annotations

import asyncio
import mimetypes
import posixpath
from collections.abc import Iterable
from datetime import datetime

from fumehood import AsyncSandbox, FileError, FileInfo
from fumehood.llm.result import FileChangeWord, ToolFile
from fumehood.values.guest_paths import DATA_PATH, HOME_PATH

_DEPTH = 4
# Folders of the home that are listed; packages and caches lie in hidden ones.
_MAX_FOLDERS = 8
# More entries than this cost more time than the call itself.
_MAX_ENTRIES = 2_000
_TREES = ("/__pycache__/", "/node_modules/", "/site-packages/")

_Stamp = tuple[int, datetime | None]


class FileChanges:
    """The files of the sandbox, as they were listed last."""

    def __init__(self) -> None:
        self._seen: dict[str, _Stamp] | None = None
        self._depths: dict[str, int] = {}

    @property
    def is_begun(self) -> bool:
        """True when there is an earlier listing."""
        return self._seen is not None

    @property
    def paths(self) -> tuple[str, ...]:
        """The files of the last listing, below /mnt/data first."""
        return tuple(sorted(self._seen or (), key=lambda path: (not path.startswith(DATA_PATH), path)))

    @property
    def overfull(self) -> tuple[str, ...]:
        """Folders with so many files that they are not listed any more."""
        return tuple(folder for folder, depth in self._depths.items() if depth == 0)

    def know(self, file: FileInfo) -> None:
        """Record a file that the host has written, so that it is not reported as new."""
        if self._seen is not None:
            self._seen[file.path] = (file.size_bytes, file.modified_at)

    async def look(self, sandbox: AsyncSandbox) -> list[ToolFile]:
        """Return the files that are new or changed since the last call; none at the first call."""
        listings = await asyncio.gather(self._list(sandbox, DATA_PATH), self._list_home(sandbox))
        files = _visible_files(entry for listing in listings for entry in listing)
        found = {file.path: (file.size_bytes, file.modified_at) for file in files}
        before, self._seen = self._seen, found

        if before is None or before == found:
            return []

        return [
            _tool_file(path, stamp[0], "changed" if path in before else "new")
            for path, stamp in sorted(found.items())
            if before.get(path) != stamp
        ]

    async def _list_home(self, sandbox: AsyncSandbox) -> list[FileInfo]:
        entries = await self._list(sandbox, HOME_PATH, depth=1)
        folders = [
            entry.path
            for entry in entries
            if entry.type == "dir" and entry.symlink_target is None and not entry.name.startswith(".")
        ]

        for folder in folders[:_MAX_FOLDERS]:
            entries += await self._list(sandbox, folder, depth=_DEPTH - 1)

        return entries

    async def _list(self, sandbox: AsyncSandbox, folder: str, *, depth: int = _DEPTH) -> list[FileInfo]:
        depth = min(depth, self._depths.get(folder, depth))

        if depth == 0:
            return []

        try:
            entries = await sandbox.files.list(folder, depth=depth)
        except FileError:
            return []

        if len(entries) > _MAX_ENTRIES:
            self._depths[folder] = depth - 1

        return entries


def mime_of(name: str) -> str:
    """Return the media type of a file by its name."""
    # Only the suffix: a part of a whole name could be taken for an address.
    return (
        mimetypes.guess_type(f"x{posixpath.splitext(name)[1]}", strict=False)[0] or "application/octet-stream"
    )


def _visible_files(entries: Iterable[FileInfo]) -> Iterable[FileInfo]:
    for entry in entries:
        if entry.type != "file" or entry.symlink_target is not None or "/." in entry.path:
            continue

        if not any(tree in entry.path for tree in _TREES):
            yield entry


def _tool_file(path: str, size: int, change: FileChangeWord) -> ToolFile:
    name = path.rpartition("/")[2]
    return ToolFile(name=name, path=path, size_bytes=size, mime=mime_of(name), change=change)
