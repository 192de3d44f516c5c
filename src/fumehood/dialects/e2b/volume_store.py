"""The volumes of a server: named folders of files that outlive sandboxes, in the records and blobs of its storage.

Runs in the server process. A volume and each of its files are records that belong to a key; the bytes of a file are a
blob whose name is made by the store, so no name of a guest is a path of this machine. Files and folders are kept, with
their content: neither links nor modes nor attributes. Each operation is bounded by the counts and sizes below.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from weakref import WeakValueDictionary

from fumehood.bounds import GIB, MIB
from fumehood.cancellation import complete, finish
from fumehood.dialects.e2b.answers import VolumeError
from fumehood.errors import InvalidArgumentError
from fumehood.server.allowance import used_up
from fumehood.server.services import Services
from fumehood.storage.blobs import Blobs
from fumehood.storage.files import StoredFile, StoredFiles, new_file_id

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
# The name of no blob: what has no bytes of its own.
_NO_BLOB = "none"
_DELETED = "deleted"
# Records that are written together.
_GROUP = 50
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
# Both replaced files and doubles, which an interruption leaves until the next change.
_MAX_RECORDS = 4 * MAX_ENTRIES
# The maximum number of volumes of all keys that are looked through at the start.
_MAX_OF_ALL = 100_000

Entries = MutableMapping[str, StoredFile]


def clean_path(path: str) -> str:
    """Returns the path of an entry relative to its volume; empty for the volume itself.

    Raises:
        InvalidArgumentError: No entry can have it.
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

    # -- volumes

    async def create(self, owner: str, name: str) -> StoredFile:
        """Makes an empty volume.

        Raises:
            VolumeError: The owner has one of this name.
            QuotaError: It has as many as it may.
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
                    blob=_NO_BLOB,
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
            VolumeError: There is none.
        """
        for one in await self.list(owner):
            if name in (one.name, one.id):
                return one

        raise VolumeError(f"there is no volume {name[:200]!r}", status=404)

    async def delete(self, volume: StoredFile) -> None:
        """Deletes a volume that is free, or whose deletion was interrupted, and all that is in it.

        Raises:
            VolumeError: A sandbox has just taken it.
        """
        if not is_deleted(volume) and await self.set_details(volume, {_DELETED: "yes"}) is None:
            raise VolumeError(f"volume {volume.name!r} has just been taken", status=409)

        records = await self._files.list(volume.id, owner=volume.owner, limit=_MAX_RECORDS)
        await self._discard([*records, volume])

    async def set_details(self, volume: StoredFile, details: Mapping[str, str]) -> StoredFile | None:
        """Replaces the details of a volume; None, and nothing done, if another has replaced them meanwhile."""
        is_set = await self._files.replace_details(volume, details)
        return replace(volume, details=dict(details)) if is_set else None

    # -- what is in a volume

    async def entries(self, volume: StoredFile) -> Entries:
        """Returns the files and folders of a volume by their paths."""
        found = await self._files.list(volume.id, owner=volume.owner, limit=_MAX_RECORDS)
        # Of two with one path the newer counts: its older content was to be removed.
        return {one.name: one for one in found}

    async def read(self, entry: StoredFile) -> AsyncIterator[bytes]:
        """Returns the content of a file."""
        return (await self._blobs.get(entry.blob)).chunks

    @asynccontextmanager
    async def storing(self, volume: StoredFile, entries: Entries) -> AsyncGenerator[NewFiles, None]:
        """Stores files while the block runs; those that are complete when it ends, however it does, are kept.

        Args:
            volume: The volume.
            entries: What is in the volume, which is brought up to date.
        """
        files = NewFiles(volume, entries, self._files, self._blobs)

        try:
            yield files
        finally:
            await finish(files.record())

    async def make_folders(self, volume: StoredFile, paths: Sequence[str], entries: Entries) -> None:
        """Makes folders, all or none; the folders above them need no record.

        Args:
            volume: The volume.
            paths: Where, as `clean_path` returns them; nothing is there.
            entries: What is in the volume, which is brought up to date.

        Raises:
            VolumeError: A file is in place of a folder above one of them.
            QuotaError: The volume would have more entries than it may.
        """
        for path in paths:
            _check_place(path, entries)

        _check_count(entries, len(paths))
        folders = [_record(volume, path, _FOLDER) for path in paths]
        entries.update((one.name, one) for one in await self._files.add_all(folders))

    async def remove(self, paths: Sequence[str], entries: Entries) -> None:
        """Removes the records of paths, but not of what else lies below them."""
        await self._discard([entries.pop(path) for path in paths])

    async def _discard(self, records: Sequence[StoredFile]) -> None:
        await _discard(self._files, self._blobs, records)


class NewFiles:
    """Files of a volume as they are stored: first their bytes, then, in groups, their records.

    Attributes:
        recorded: The paths whose newest content is in the records.

    Args:
        volume: The volume.
        entries: What is in the volume, which is brought up to date.
        files: The records.
        blobs: The bytes.
    """

    def __init__(self, volume: StoredFile, entries: Entries, files: StoredFiles, blobs: Blobs) -> None:
        self.recorded: set[str] = set()
        self._volume = volume
        self._entries = entries
        self._files = files
        self._blobs = blobs
        self._new: dict[str, StoredFile] = {}
        self._replaced: list[StoredFile] = []
        # Of what the key has left; None: to be asked for.
        self._left_bytes: int | None = None

    async def put(self, path: str, pieces: AsyncIterable[bytes]) -> None:
        """Stores a file, in place of one with this path; the same content again changes nothing.

        Args:
            path: Where, as `clean_path` returns it.
            pieces: The content; its errors are raised, and the old content stays.

        Raises:
            VolumeError: A folder is there, or a file in place of one of its folders.
            QuotaError: The volume has as many entries as it may.
            RequestTooLargeError: The content is larger than what is left.
        """
        _check_place(path, self._entries)
        old = self._entries.get(path)

        if old is None:
            _check_count(self._entries, 1)
        elif is_folder(old):
            raise VolumeError(f"{path!r} is a folder", status=400)

        hashed = _Hashed(pieces)
        room_bytes = await self._room_bytes(old)
        blob = await self._blobs.put(hashed, kind=_KIND, max_bytes=room_bytes)

        if old is not None and old.details.get("sha256") == hashed.digest():
            await self._blobs.delete(blob.name)
            self.recorded.add(path)
            return

        self._new[path] = self._entries[path] = replace(
            _record(self._volume, path, _FILE),
            blob=blob.name,
            size_bytes=blob.size_bytes,
            details={"sha256": hashed.digest()},
        )
        # What it replaces is there until the record is written.
        self._left_bytes = max(0, (self._left_bytes or 0) - blob.size_bytes)

        if old is not None:
            self._replaced.append(old)

        if len(self._new) >= _GROUP:
            await finish(self.record())

    async def record(self) -> None:
        """Writes the records of what was stored, and removes what that replaces."""
        new, replaced = self._new, self._replaced
        self._new, self._replaced, self._left_bytes = {}, [], None

        try:
            kept = await self._files.add_all(list(new.values()))
        except BaseException:
            for one in new.values():
                await complete(self._blobs.delete(one.blob))

            raise

        self._entries.update((one.name, one) for one in kept)
        self.recorded.update(new)
        await _discard(self._files, self._blobs, replaced)

    async def _room_bytes(self, old: StoredFile | None) -> int:
        """Returns how large a file may be that replaces `old`."""
        if self._left_bytes is None:
            kept = await self._files.kept_by(self._volume.owner, kind=_KIND)
            self._left_bytes = max(0, MAX_BYTES_OF_KEY - kept.size_bytes)

        freed = 0 if old is None else old.size_bytes
        of_volume = sum(one.size_bytes for one in self._entries.values()) - freed
        return max(0, min(MAX_VOLUME_BYTES - of_volume, self._left_bytes + freed))


async def _discard(files: StoredFiles, blobs: Blobs, records: Sequence[StoredFile]) -> None:
    """Hides records, then deletes their bytes, which no other shares, then the records.

    After an interruption the next look for expired files does the rest.
    """
    if not records:
        return

    await files.end_all(records)

    for one in records:
        if one.blob != _NO_BLOB:
            await blobs.delete(one.blob)

    await files.remove_all(records)


def _check_place(path: str, entries: Entries) -> None:
    parts = path.split("/")

    for end in range(1, len(parts)):
        above = entries.get("/".join(parts[:end]))

        if above is not None and not is_folder(above):
            raise VolumeError(f"{above.name!r} is a file, not a folder", status=400)


def _check_count(entries: Entries, more: int) -> None:
    if len(entries) + more > MAX_ENTRIES:
        raise used_up("entries of a volume", len(entries), MAX_ENTRIES)


def _record(volume: StoredFile, path: str, content_type: str) -> StoredFile:
    """Returns the record of a new entry of a volume, without content."""
    return StoredFile(
        id=new_file_id(),
        session_id=volume.id,
        owner=volume.owner,
        name=path,
        size_bytes=0,
        content_type=content_type,
        blob=_NO_BLOB,
    )


class _Hashed:
    """Pieces as they pass, with the digest of all of them."""

    def __init__(self, pieces: AsyncIterable[bytes]) -> None:
        self._pieces = pieces
        self._hash = hashlib.sha256()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._pieces:
            self._hash.update(piece)
            yield piece

    def digest(self) -> str:
        """Returns the digest of what has passed."""
        return self._hash.hexdigest()
