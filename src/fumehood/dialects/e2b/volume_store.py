"""The volumes of a server: named folders of files that outlive sandboxes, in the records and blobs of its storage.

A volume and each of its files are records that belong to a key; the bytes of a file are a blob whose name is made by
the store, so no name of a guest is a path of this machine. Files and folders are kept, with their content: neither
links nor modes nor attributes. Each operation is bounded by the counts and sizes below.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from weakref import WeakValueDictionary

from fumehood.bounds import GIB, MIB
from fumehood.cancellation import complete, finish
from fumehood.dialects.e2b.answers import VolumeError
from fumehood.errors import InvalidArgumentError, RequestTooLargeError
from fumehood.server.allowance import used_up
from fumehood.server.services import Services
from fumehood.storage.blobs import Blobs
from fumehood.storage.files import NO_BLOB, StoredFile, StoredFiles, new_file_id

MAX_VOLUMES = 20
MAX_ENTRIES = 1_000
MAX_VOLUME_BYTES = 256 * MIB
# Of all volumes of a key together.
MAX_BYTES_OF_KEY = 2 * GIB
MAX_PATH_CHARACTERS = 1_000
MAX_DEPTH = 32
_SESSION = "e2b volumes"
_KIND = "volumes"
_TYPE = "application/vnd.fumehood.volume"
_FILE = "application/octet-stream"
_FOLDER = "inode/directory"
_DELETED = "deleted"
# Records that are written together.
_GROUP = 50
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
# Two servers that write a volume from outside at once leave two records of a path.
_MAX_RECORDS = 4 * MAX_ENTRIES
# An upload to a remote store can have the time of its beginning.
_STRAY_AFTER = timedelta(days=1)
# Of blobs, in one look for their records.
_MAX_NAMES = 500
# The maximum number of volumes of all keys that are looked through at the start.
_MAX_OF_ALL = 100_000

Entries = MutableMapping[str, StoredFile]


def clean_path(path: str) -> str:
    """Returns the path of an entry relative to its volume; empty for the volume itself.

    Raises:
        InvalidArgumentError: No entry can have this path.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    cleaned = "/".join(parts)
    is_text = cleaned.isprintable() or not any(
        character == "\x00" or "\ud800" <= character <= "\udfff" for character in cleaned
    )

    if ".." in parts or not is_text or len(cleaned) > MAX_PATH_CHARACTERS or len(parts) > MAX_DEPTH:
        raise InvalidArgumentError(
            field="path",
            value=path,
            allowed=f"text of up to {MAX_PATH_CHARACTERS} characters and {MAX_DEPTH} parts, none of them `..`",
        )

    return cleaned


def above_of(path: str) -> Iterator[str]:
    """Yields the paths of the folders above a path."""
    for end, character in enumerate(path):
        if character == "/":
            yield path[:end]


def is_folder(entry: StoredFile) -> bool:
    """Returns whether an entry of a volume is a folder."""
    return entry.content_type == _FOLDER


def is_deleted(volume: StoredFile) -> bool:
    """Returns whether the deletion of a volume has begun."""
    return _DELETED in volume.details


class VolumeStore:
    """The volumes of a server.

    Args:
        services: The services of the server.
    """

    def __init__(self, services: Services) -> None:
        self._files = services.stored_files
        self._blobs = services.blobs
        # One lock for each owner that makes a volume now.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        # For each key in whose volumes something is stored now.
        self._left: WeakValueDictionary[str, LeftBytes] = WeakValueDictionary()

    # -- volumes

    async def create(self, owner: str, name: str) -> StoredFile:
        """Makes an empty volume.

        Raises:
            VolumeError: The owner already has a volume with this name.
            QuotaError: The key already has the maximum number of volumes.
        """
        if not _NAME.fullmatch(name):
            raise InvalidArgumentError(
                field="name",
                value=name,
                allowed="up to 128 letters, digits and . _ -, a letter or digit first",
            )

        async with self._turns.setdefault(owner, asyncio.Lock()):
            known = await self.list(owner)

            if any(one.name == name for one in known):
                raise VolumeError(f"there is a volume {name!r}", status=409, hint="delete it, or use it")

            if len(known) >= MAX_VOLUMES:
                raise used_up("volumes", len(known), MAX_VOLUMES)

            return await self._files.add(
                StoredFile(
                    id=new_file_id(),
                    session_id=_SESSION,
                    owner=owner,
                    name=name,
                    size_bytes=0,
                    content_type=_TYPE,
                    blob=NO_BLOB,
                )
            )

    async def list(self, owner: str) -> Sequence[StoredFile]:
        """Returns the volumes of an owner, the oldest first."""
        return await self._files.list(_SESSION, owner=owner)

    async def list_all(self) -> Sequence[StoredFile]:
        """Returns the volumes of all owners."""
        return await self._files.list(_SESSION, owner=None, limit=_MAX_OF_ALL)

    async def find(self, owner: str, name: str) -> StoredFile:
        """Returns an owner's volume by its name or id.

        Raises:
            VolumeError: The owner has no such volume.
        """
        for one in await self.list(owner):
            if name in (one.name, one.id):
                return one

        raise VolumeError(f"there is no volume {name[:200]!r}", status=404)

    async def delete(self, volume: StoredFile) -> None:
        """Deletes a volume that is free, or whose deletion was interrupted, and its content.

        Raises:
            VolumeError: A sandbox has just taken the volume.
        """
        if not is_deleted(volume) and await self.set_details(volume, {_DELETED: "yes"}) is None:
            raise VolumeError(f"volume {volume.name!r} has just been taken", status=409)

        records = await self._files.list(volume.id, owner=volume.owner, limit=_MAX_RECORDS)
        await self._discard([*records, volume])

    async def set_details(self, volume: StoredFile, details: Mapping[str, str]) -> StoredFile | None:
        """Replaces the details of a volume.

        Returns None and does nothing if another server has replaced them meanwhile.
        """
        is_set = await self._files.replace_details(volume, details)
        return replace(volume, details=dict(details)) if is_set else None

    async def remove_strays(self) -> None:
        """Deletes bytes that have had no record for a day: a server that was killed while it stored leaves them."""
        before = datetime.now(UTC) - _STRAY_AFTER
        old = [blob.name async for blob in self._blobs.list(_KIND) if blob.modified_at < before]

        for start in range(0, len(old), _MAX_NAMES):
            names = old[start : start + _MAX_NAMES]
            await self._blobs.delete_many(set(names) - await self._files.blobs_among(names))

    # -- what is in a volume

    async def entries(self, volume: StoredFile) -> Entries:
        """Returns the files and folders of a volume by their paths."""
        found = await self._files.list(volume.id, owner=volume.owner, limit=_MAX_RECORDS)
        entries = {one.name: one for one in found}
        # Of two with one path the newer counts; the older never comes back.
        await self._discard([one for one in found if entries[one.name] is not one])
        return entries

    def receiving(self, pieces: AsyncIterable[bytes], max_bytes: int) -> AbstractAsyncContextManager[Content]:
        """Receives the content of a file before it is known whether it can be stored in the volume."""
        return receiving(self._blobs, pieces, max_bytes)

    async def read(self, entry: StoredFile) -> AsyncIterator[bytes]:
        """Returns the content of a file."""
        return (await self._blobs.get(entry.blob)).chunks

    @asynccontextmanager
    async def storing(
        self, volume: StoredFile, entries: Entries, gone: Iterable[str] = ()
    ) -> AsyncGenerator[NewFiles, None]:
        """Stores entries while the block runs; complete entries are kept, even if the block fails.

        Args:
            volume: The volume.
            entries: The entries of the volume, which are updated.
            gone: The paths of entries to be removed when the block has ended without an error, or earlier, together
                with a new entry that has the same path or needs their room.
        """
        left = self._left.setdefault(volume.owner, LeftBytes(volume.owner))
        files = NewFiles(volume, entries, self._files, self._blobs, left, gone)

        try:
            yield files
            files.replace_gone()
        finally:
            await finish(files.record())

    async def remove(self, paths: Sequence[str], entries: Entries) -> None:
        """Removes the records of paths, but not of what else lies below them."""
        await self._discard([entries.pop(path) for path in paths])

    async def _discard(self, records: Sequence[StoredFile]) -> None:
        await _discard(self._files, self._blobs, records)


class NewFiles:
    """Entries of a volume as they are stored: first their bytes, then, in groups, their records.

    A record is written, and those that it replaces are ended, in one transaction: an interruption leaves one of both.

    Attributes:
        recorded: The paths whose newest content is in the records.

    Args:
        volume: The volume.
        entries: The entries of the volume, which are updated.
        files: The records.
        blobs: The bytes.
        left: The remaining bytes of the key's quota.
        gone: The paths of entries that new ones may replace.
    """

    def __init__(
        self,
        volume: StoredFile,
        entries: Entries,
        files: StoredFiles,
        blobs: Blobs,
        left: LeftBytes,
        gone: Iterable[str],
    ) -> None:
        self.recorded: set[str] = set()
        self._volume = volume
        self._entries = entries
        self._files = files
        self._blobs = blobs
        self._gone = set(gone)
        self._new: dict[str, StoredFile] = {}
        self._replaced: list[StoredFile] = []
        self._left = left

    async def put(self, path: str, pieces: AsyncIterable[bytes]) -> None:
        """Stores a file, in place of one with this path; the same content again changes nothing.

        Args:
            path: The path, as `clean_path` returns it.
            pieces: The content; its errors are raised, and the old content is kept.

        Raises:
            VolumeError: A folder has this path, or a file has the path of one of its parents.
            QuotaError: The volume already has the maximum number of entries.
            RequestTooLargeError: The content is larger than the remaining room.
        """
        self._check(path, is_file=True)
        room_bytes = await self._room_bytes({path, *self._gone})

        async with receiving(self._blobs, pieces, room_bytes) as content:
            await self.keep(path, content)

    async def keep(self, path: str, content: Content) -> None:
        """Stores a file whose content has been received; otherwise like `put`."""
        self._check(path, is_file=True)
        old = self._entries.get(path)

        if old is not None and old.details.get("sha256") == content.sha256:
            self.recorded.add(path)
            return

        room_bytes = await self._room_bytes({path, *self._gone})

        if content.size_bytes > room_bytes:
            raise RequestTooLargeError(what="file", maximum=room_bytes)

        content.is_kept = True
        await self._add(
            replace(
                _record(self._volume, path, _FILE),
                blob=content.blob,
                size_bytes=content.size_bytes,
                details={"sha256": content.sha256},
            )
        )

    async def put_folder(self, path: str) -> None:
        """Makes a folder; the folders above it need no record.

        Args:
            path: The path, as `clean_path` returns it; it is not a folder yet.

        Raises:
            VolumeError: A file has this path, or that of one of its parents.
            QuotaError: The volume already has the maximum number of entries.
        """
        self._check(path, is_file=False)
        await self._add(_record(self._volume, path, _FOLDER))

    def replace_gone(self) -> None:
        """Marks the records of deleted entries for removal, which the next `record` carries out."""
        self._replace(self._gone & self._entries.keys())

    async def record(self) -> None:
        """Writes the records of stored entries, and removes the records that they replace."""
        new, replaced = self._new, self._replaced
        self._new, self._replaced = {}, []

        try:
            kept = await self._files.replace_all(replaced, list(new.values()))
        except BaseException:
            self._left.add(new.values())

            for one in new.values():
                if one.blob != NO_BLOB:
                    await complete(self._blobs.delete(one.blob))

            raise

        self._entries.update((one.name, one) for one in kept)
        self.recorded.update(new)
        await _discard(self._files, self._blobs, replaced)
        self._left.add(replaced)

    async def _add(self, entry: StoredFile) -> None:
        replaced = self._in_the_way(entry.name, is_file=not is_folder(entry))
        needed = self._needed_room(entry, replaced, await self._left.ask(self._files))
        self._replace([*replaced, *needed])
        self._new[entry.name] = self._entries[entry.name] = entry
        self._left.take(entry)

        # What the room was needed of is there until the record is written.
        if needed or len(self._new) >= _GROUP:
            await finish(self.record())

    def _needed_room(self, entry: StoredFile, replaced: Sequence[str], left_bytes: int) -> Sequence[str]:
        """Returns the deleted entries to remove for more room.

        Entries with the same content come first, since they were renamed.
        """
        others = (self._gone & self._entries.keys()) - set(replaced)
        waiting = sorted(others, key=lambda path: (self._same(path, entry), path))
        needed: list[str] = []

        while waiting and not self._fits(entry, [*replaced, *needed], left_bytes):
            needed.append(waiting.pop())

        return needed

    def _same(self, path: str, entry: StoredFile) -> bool:
        return self._entries[path].details == entry.details

    def _fits(self, entry: StoredFile, replaced: Collection[str], left_bytes: int) -> bool:
        is_counted = len(self._entries) - len(replaced) < MAX_ENTRIES
        return is_counted and entry.size_bytes <= self._room_beside(replaced, left_bytes)

    def _replace(self, paths: Iterable[str]) -> None:
        ended = {path: self._entries.pop(path) for path in paths}
        self._gone -= ended.keys()
        self._replaced += ended.values()

    def _in_the_way(self, path: str, *, is_file: bool) -> Sequence[str]:
        """Returns the paths of the entries that conflict with a new one."""
        above = [one for one in above_of(path) if one in self._entries and not is_folder(self._entries[one])]
        below = [one for one in self._entries if one.startswith(f"{path}/")] if is_file else []
        return [*above, *below, *([path] if path in self._entries else [])]

    def _check(self, path: str, *, is_file: bool) -> None:
        """Raises VolumeError or QuotaError if an entry cannot be stored."""
        in_the_way = self._in_the_way(path, is_file=is_file)

        for other in in_the_way:
            is_older = other == path and is_file and not is_folder(self._entries[other])

            if not is_older and other not in self._gone:
                raise VolumeError(f"{other!r} is there, and no place for {path!r}", status=400)

        ended = self._gone.union(in_the_way) & self._entries.keys()

        if len(self._entries) - len(ended) >= MAX_ENTRIES:
            raise used_up("entries of a volume", len(self._entries), MAX_ENTRIES)

    async def _room_bytes(self, replaced: Collection[str]) -> int:
        """Returns the maximum size in bytes of a file that replaces entries."""
        return self._room_beside(replaced, await self._left.ask(self._files))

    def _room_beside(self, replaced: Collection[str], left_bytes: int) -> int:
        freed = sum(self._entries[path].size_bytes for path in replaced if path in self._entries)
        of_volume = sum(one.size_bytes for one in self._entries.values()) - freed
        return max(0, min(MAX_VOLUME_BYTES - of_volume, left_bytes + freed))


class LeftBytes:
    """The remaining quota of a key for its volumes; all concurrent stores of the key share one object.

    Args:
        owner: The key.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._lock = asyncio.Lock()
        self._bytes: int | None = None

    async def ask(self, files: StoredFiles) -> int:
        """Returns the remaining bytes, which are looked up once."""
        async with self._lock:
            if self._bytes is None:
                kept = await files.kept_by(self._owner, kind=_KIND)
                self._bytes = MAX_BYTES_OF_KEY - kept.size_bytes

            return self._bytes

    def take(self, entry: StoredFile) -> None:
        """Subtracts the size of an entry, after `ask`."""
        self.add([], entry.size_bytes)

    def add(self, entries: Iterable[StoredFile], taken_bytes: int = 0) -> None:
        """Adds the size of removed entries, after `ask`."""
        if self._bytes is not None:
            self._bytes += sum(one.size_bytes for one in entries) - taken_bytes


@dataclass(slots=True)
class Content:
    """Received content, for which a record is to be written.

    Attributes:
        blob: The name of its bytes.
        size_bytes: Its size.
        sha256: Its digest.
        is_kept: Whether a record has it now.
    """

    blob: str
    size_bytes: int
    sha256: str
    is_kept: bool = False


@asynccontextmanager
async def receiving(
    blobs: Blobs, pieces: AsyncIterable[bytes], max_bytes: int
) -> AsyncGenerator[Content, None]:
    """Receives content, and deletes it after the block if it was not kept."""
    hashed = _Hashed(pieces)
    blob = await blobs.put(hashed, kind=_KIND, max_bytes=max_bytes)
    content = Content(blob.name, blob.size_bytes, hashed.digest())

    try:
        yield content
    finally:
        if not content.is_kept:
            await complete(blobs.delete(content.blob))


async def _discard(files: StoredFiles, blobs: Blobs, records: Sequence[StoredFile]) -> None:
    """Hides records, then deletes their bytes, which no other record shares, then the records.

    After an interruption the next look for expired files does the rest.
    """
    if not records:
        return

    await files.end_all(records)

    for one in records:
        if one.blob != NO_BLOB:
            await blobs.delete(one.blob)

    await files.remove_all(records)


def _record(volume: StoredFile, path: str, content_type: str) -> StoredFile:
    """Returns the record of a new entry of a volume, without content."""
    return StoredFile(
        id=new_file_id(),
        session_id=volume.id,
        owner=volume.owner,
        name=path,
        size_bytes=0,
        content_type=content_type,
        blob=NO_BLOB,
    )


class _Hashed:
    """Passes pieces on, and computes the digest of all of them."""

    def __init__(self, pieces: AsyncIterable[bytes]) -> None:
        self._pieces = pieces
        self._hash = hashlib.sha256()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._pieces:
            self._hash.update(piece)
            yield piece

    def digest(self) -> str:
        """Returns the digest of the pieces so far."""
        return self._hash.hexdigest()
