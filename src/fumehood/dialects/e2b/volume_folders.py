"""The folder of a volume in a sandbox: filled when the sandbox is created, and read for what has changed.

The guest owns the folder and is hostile: it is read by init, inside, entry by entry within the bounds of
`volume_store`; links are never followed on purpose, and entries that are neither files nor folders are left out and
reported.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence, Set
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime

from fumehood.dialects.e2b.answers import VolumeError
from fumehood.dialects.e2b.volume_store import (
    MAX_DEPTH,
    MAX_ENTRIES,
    MAX_VOLUME_BYTES,
    Entries,
    NewFiles,
    VolumeStore,
    above_of,
    clean_path,
    is_folder,
)
from fumehood.errors import FileError, InvalidArgumentError, PathExistsError, QuotaError, RequestTooLargeError
from fumehood.off_loop import off_loop
from fumehood.port.backend import Backend
from fumehood.storage.files import StoredFile
from fumehood.values.requests import ListFiles, MakeDir, ReadFile, RemoveFile, StatFile
from fumehood.values.sandbox import FileInfo

# Entries in a folder, stored or left out.
MAX_LISTED = 10_000
# A file whose clock is so near is read again: it may have changed within the same tick.
_SETTLED_SECONDS = 1.0
_MAX_REPORTED = 100
# Of a folder: its owner, which all code in the sandbox is, lists it and reaches what is in it.
_READABLE = 0o500

_Sign = tuple[datetime | None, int]


@dataclass(slots=True)
class Mount:
    """A volume in a sandbox.

    Attributes:
        volume: Its record, with the hold.
        known: The time and size of each file when it was last stored, by path; None if it must be read again.
        missing: Stored paths that the last round did not find.
        left_out: The entries that the last round did not store, each with the reason.
        stored_at: When the last successful round ended, in seconds since 1970; 0 for never.
        problem: The error of the last round; empty: none.
        lock: Held while the folder is read.
        task: Stores the changes.
    """

    volume: StoredFile
    known: dict[str, _Sign | None] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    left_out: dict[str, str] = field(default_factory=dict)
    stored_at: float = 0.0
    problem: str = ""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    task: asyncio.Task[None] | None = None

    @property
    def sandbox_id(self) -> str:
        """The sandbox that holds the volume."""
        return self.volume.details["sandbox"]

    @property
    def path(self) -> str:
        """The folder in the sandbox."""
        return self.volume.details["path"]


class VolumeFolders:
    """Fills and reads the folders of volumes.

    Args:
        backend: The sandboxes of all callers.
        store: The volumes.
    """

    def __init__(self, backend: Backend, store: VolumeStore) -> None:
        self._backend = backend
        self._store = store

    async def store_changes(self, mount: Mount, *, reads_all: bool = False) -> None:
        """Stores what has changed in the folder since the last call; records which entries were left out.

        Args:
            mount: The mount.
            reads_all: Whether to read, after the others, also files whose time and size have not changed: in a memory
                filesystem, writes through a mapping change neither.

        Raises:
            FumehoodError: The folder cannot be listed, or the storage failed; files stored before are kept.
        """
        entries = await self._store.entries(mount.volume)
        begun = time.time()
        found = await self._listed(mount)
        plan = await off_loop("listings", _planned, mount, entries, found)
        mount.left_out = plan.left_out
        mount.known = {path: sign for path, sign in mount.known.items() if path in plan.files}
        mount.missing = plan.missing
        read = [path for path in plan.files if path in plan.changed]

        if reads_all:
            read += [path for path in plan.files if path not in plan.changed]

        files: NewFiles | None = None

        try:
            async with self._store.storing(mount.volume, entries, plan.gone) as files:
                for path in plan.new_folders:
                    await self._store_entry(mount, path, files.put_folder(path))

                for path in read:
                    storing = self._store_file(mount, path, plan.files[path], files)
                    await self._store_entry(mount, path, storing)

            mount.missing -= plan.gone
        finally:
            # Also when the time was over: the next round continues from here.
            for path in files.recorded.intersection(read) if files is not None else ():
                sign = _sign(plan.files[path])
                mount.known[path] = sign if _is_settled(sign, begun) else None

    async def _listed(self, mount: Mount) -> Mapping[str, FileInfo]:
        (root,) = await self._backend.file_call(mount.sandbox_id, StatFile(path=mount.path))

        if root.type != "dir" or root.symlink_target is not None:
            raise VolumeError(f"{mount.path} is not a folder any more: nothing is stored", status=409)

        if not _is_readable(root):
            raise VolumeError(f"the mode of {mount.path} forbids to read it: nothing is stored", status=409)

        found = await self._backend.file_call(
            mount.sandbox_id, ListFiles(path=root.path, depth=MAX_DEPTH + 1)
        )

        if len(found) > MAX_LISTED:
            raise VolumeError(
                f"{mount.path} has {len(found)} entries: nothing is stored while there are more than {MAX_LISTED}",
                status=409,
            )

        start = len(root.path) + 1
        return {info.path[start:]: info for info in found if info.path.startswith(f"{root.path}/")}

    async def _store_entry(self, mount: Mount, path: str, storing: Awaitable[None]) -> None:
        try:
            await storing
        except RequestTooLargeError:
            _leave_out(mount.left_out, path, "there is no room for it in the volume, or in all of its key")
        except (FileError, QuotaError, VolumeError, InvalidArgumentError) as error:
            _leave_out(mount.left_out, path, error.message)

    async def _store_file(self, mount: Mount, path: str, info: FileInfo, files: NewFiles) -> None:
        async with aclosing(self._read(mount, info)) as pieces:
            await files.put(path, pieces)

    async def _read(self, mount: Mount, info: FileInfo) -> AsyncGenerator[bytes, None]:
        request = ReadFile(path=info.path, length_bytes=MAX_VOLUME_BYTES + 1, volume=mount.volume.id)

        async with aclosing(self._backend.read(mount.sandbox_id, request)) as pieces:
            async for piece in pieces:
                yield piece

    async def copy_in(self, mount: Mount) -> None:
        """Makes the folder of a mount, deletes its previous content, and writes the volume's files to it."""
        sandbox_id = mount.sandbox_id
        signs: dict[str, _Sign] = {}

        await self._make_empty(sandbox_id, mount.path)

        entries = await self._store.entries(mount.volume)

        for path, entry in sorted(entries.items()):
            place = f"{mount.path}/{path}"

            if any(above in entries and not is_folder(entries[above]) for above in above_of(path)):
                # Written from outside through another server meanwhile; the next round removes it.
                continue

            if is_folder(entry):
                await self._make_dir(sandbox_id, place)
            else:
                written = await self._backend.write(sandbox_id, place, await self._store.read(entry))
                signs[path] = _sign(written)

        ended = time.time()
        mount.known = {path: sign if _is_settled(sign, ended) else None for path, sign in signs.items()}

    async def _make_empty(self, sandbox_id: str, path: str) -> None:
        try:
            await self._backend.file_call(sandbox_id, MakeDir(path=path))
        except PathExistsError:
            (there,) = await self._backend.file_call(sandbox_id, StatFile(path=path))

            if there.type != "dir" or there.symlink_target is not None:
                # A snapshot or a template can hold anything there.
                await self._backend.file_call(sandbox_id, RemoveFile(path=path))
                await self._backend.file_call(sandbox_id, MakeDir(path=path))
                return

            for info in await self._backend.file_call(sandbox_id, ListFiles(path=path)):
                await self._backend.file_call(sandbox_id, RemoveFile(path=info.path))

    async def _make_dir(self, sandbox_id: str, path: str) -> None:
        try:
            await self._backend.file_call(sandbox_id, MakeDir(path=path))
        except PathExistsError:
            # A file in it was written before.
            return


@dataclass(frozen=True, slots=True)
class _Plan:
    """The work of one round.

    Attributes:
        files: The files that have a place in the volume.
        changed: The paths of those that are not stored, or may differ from the stored content.
        new_folders: The paths of folders that are not stored.
        gone: Stored paths that are to be removed.
        missing: Stored paths that this listing did not find.
        left_out: The entries that are not stored, each with the reason.
    """

    files: Mapping[str, FileInfo]
    changed: Set[str]
    new_folders: Sequence[str]
    gone: Set[str]
    missing: set[str]
    left_out: dict[str, str]


def _planned(mount: Mount, entries: Entries, found: Mapping[str, FileInfo]) -> _Plan:
    """Compares a listing with what is stored, and changes nothing: it runs beside the loop."""
    left_out: dict[str, str] = {}
    files: dict[str, FileInfo] = {}
    folders: list[str] = []

    # Those that are stored come first, then the others in order.
    for path in sorted(found, key=lambda path: (path not in entries, path)):
        info = found[path]
        is_full = len(files) + len(folders) >= MAX_ENTRIES

        if reason := _reason(path, info) or ("there are too many" if is_full else ""):
            _leave_out(left_out, path, reason)
        elif info.type == "dir":
            folders.append(path)
        else:
            files[path] = info

    hidden = _hidden(left_out, entries, found)
    return _Plan(
        files=files,
        changed={
            path
            for path, info in files.items()
            if path not in entries or mount.known.get(path) != _sign(info)
        },
        new_folders=[path for path in folders if path not in entries or not is_folder(entries[path])],
        gone=_gone(mount.missing, entries, found) - hidden,
        missing=entries.keys() - found.keys() - hidden,
        left_out=left_out,
    )


def _gone(missing: Set[str], entries: Entries, found: Mapping[str, FileInfo]) -> Set[str]:
    """Returns the stored paths that are to be removed.

    A path that is missing once may have been renamed during the listing: it is removed when the next round misses it
    too, or when its parent is no longer a folder.
    """

    def is_gone(path: str) -> bool:
        info = found.get(path)

        if info is not None:
            return not _is_kind(info, "dir" if is_folder(entries[path]) else "file")

        return path in missing or any(
            above in found and not _is_kind(found[above], "dir") for above in above_of(path)
        )

    return {path for path in entries if is_gone(path)}


def _hidden(left_out: dict[str, str], entries: Entries, found: Mapping[str, FileInfo]) -> Set[str]:
    """Returns the stored paths below unreadable folders, which are kept; records these folders."""
    folders = {path for path, info in found.items() if _is_kind(info, "dir") and not _is_readable(info)}

    for path in sorted(folders):
        _leave_out(left_out, path, "its mode forbids to read it; what was stored of it is kept")

    return {path for path in entries if path not in found and not folders.isdisjoint(above_of(path))}


def _is_readable(folder: FileInfo) -> bool:
    return folder.mode & _READABLE == _READABLE


def _is_kind(info: FileInfo, kind: str) -> bool:
    return info.symlink_target is None and info.type == kind


def _sign(info: FileInfo) -> _Sign:
    return info.modified_at, info.size_bytes


def _is_settled(sign: _Sign, now: float) -> bool:
    """Returns whether a later change must show in the time of a file."""
    return sign[0] is not None and sign[0].timestamp() < now - _SETTLED_SECONDS


def _leave_out(left_out: dict[str, str], path: str, reason: str) -> None:
    if len(left_out) < _MAX_REPORTED:
        left_out[path] = reason


def _reason(path: str, info: FileInfo) -> str:
    """Returns why a guest's entry is not stored; empty if it is stored."""
    if info.symlink_target is not None:
        return "it is a link"

    if info.type not in ("file", "dir"):
        return "it is neither a file nor a folder"

    if info.type == "file" and info.size_bytes > MAX_VOLUME_BYTES:
        return f"its {info.size_bytes} bytes are too many"

    try:
        is_same = clean_path(path) == path
    except InvalidArgumentError:
        is_same = False

    return "" if is_same else "its path is no text, too long or too deep"
