"""The files of storage sessions: bytes in the blob store, records in the database, a quota for each owner.

A file belongs to the key that uploaded or made it; for any other key it does not exist. It is kept for a day after its
session was last used. Concurrent uploads count for each other in the quota; whether a file may stay is decided when it
is complete, for one file of an owner at a time. A file is described in one form for each `detail`, with the ids of both
generations.
"""

from __future__ import annotations

import asyncio
import mimetypes
import posixpath
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from fumehood.bounds import GIB
from fumehood.dialects.librechat.answers import NotThereError
from fumehood.errors import InvalidArgumentError
from fumehood.server.allowance import used_up
from fumehood.server.services import Services
from fumehood.storage.files import KeptFiles, StoredFile, StoredFiles, discard_file, new_file_id

KIND = "librechat"
MAX_FILES = 20_000
MAX_BYTES = 20 * GIB


class _Coming:
    """The uploads under way to the files of one server, by owner."""

    def __init__(self) -> None:
        self.bytes_of: Counter[str] = Counter()
        self.turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()


# A shelf is made for each request, and a process may have several servers.
_COMING: WeakKeyDictionary[StoredFiles, _Coming] = WeakKeyDictionary()


class FileQuota:
    """The room for one more file of an owner; made by `room_for_one`.

    Args:
        stored_files: The stored files of all owners.
        owner: The owner of the file.
    """

    def __init__(self, stored_files: StoredFiles, owner: str) -> None:
        self._stored_files = stored_files
        self._owner = owner
        self._coming = _COMING.setdefault(stored_files, _Coming())
        self._own_bytes = 0

    async def counted(self, pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Passes the file's bytes on.

        Raises:
            QuotaError: The quota has no room for more bytes.
        """
        kept = await self._kept(0)

        async for piece in pieces:
            self._own_bytes += len(piece)
            self._coming.bytes_of[self._owner] += len(piece)
            _check_bytes(kept.size_bytes + self._coming.bytes_of[self._owner])
            yield piece

    @asynccontextmanager
    async def taken(self) -> AsyncGenerator[None, None]:
        """Holds the room while the file, which is complete now, is recorded.

        Raises:
            QuotaError: Other uploads have taken the room meanwhile.
        """
        async with self._coming.turns.setdefault(self._owner, asyncio.Lock()):
            await self._kept(self._own_bytes)
            yield

    def give_back(self) -> None:
        """Stops counting the file's bytes, which were recorded or removed."""
        coming = self._coming.bytes_of
        coming[self._owner] -= self._own_bytes

        if not coming[self._owner]:
            del coming[self._owner]

    async def _kept(self, more_bytes: int) -> KeptFiles:
        kept = await self._stored_files.kept_by(self._owner, kind=KIND)

        if kept.count >= MAX_FILES:
            raise used_up("files", kept.count, MAX_FILES)

        _check_bytes(kept.size_bytes + more_bytes)
        return kept


@asynccontextmanager
async def room_for_one(stored_files: StoredFiles, owner: str) -> AsyncGenerator[FileQuota, None]:
    """Counts the bytes of one upload of an owner until it is recorded or removed, which happens in the block."""
    room = FileQuota(stored_files, owner)

    try:
        yield room
    finally:
        room.give_back()


def _check_bytes(size_bytes: int) -> None:
    if size_bytes > MAX_BYTES:
        raise used_up("bytes of files", size_bytes, MAX_BYTES)


KEPT_SECONDS = 24 * 3600.0
_SESSION_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A file to be stored.

    Attributes:
        session_id: Its storage session.
        name: Its name.
        details: Fields that the client gave for it.
        content_type: Its media type; guessed from the name when empty.
        source: The earlier version of the file, or None.
    """

    session_id: str
    name: str
    details: Mapping[str, str]
    content_type: str = ""
    source: StoredFile | None = None


def new_session_id() -> str:
    """Returns an id that cannot be guessed."""
    return secrets.token_hex(_SESSION_BYTES)


class Shelf:
    """The files of one owner.

    Args:
        services: The services of the server.
        owner: The key that owns the files.
    """

    def __init__(self, services: Services, owner: str) -> None:
        self._services = services
        self._owner = owner

    async def put(self, file: NewFile, pieces: AsyncIterator[bytes]) -> StoredFile:
        """Stores a file.

        Raises:
            RequestTooLargeError: The file is larger than the server's settings allow; it is not kept.
            QuotaError: The owner's files are too many, or too large together; the file is not kept.
        """
        async with room_for_one(self._services.stored_files, self._owner) as room:
            return await self._put(file, pieces, room)

    async def _put(self, file: NewFile, pieces: AsyncIterator[bytes], room: FileQuota) -> StoredFile:
        blobs = self._services.blobs
        max_bytes = self._services.settings.max_upload_bytes
        stored = await blobs.put(room.counted(pieces), kind=KIND, max_bytes=max_bytes)
        guessed = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        try:
            async with room.taken():
                return await self._services.stored_files.add(
                    StoredFile(
                        id=new_file_id(),
                        session_id=file.session_id,
                        owner=self._owner,
                        name=file.name,
                        size_bytes=stored.size_bytes,
                        content_type=file.content_type or guessed,
                        blob=stored.name,
                        modified_from=file.source.id if file.source else None,
                        modified_from_session=file.source.session_id if file.source else None,
                        details=file.details,
                        expires_at=time.time() + KEPT_SECONDS,
                    )
                )
        except BaseException:
            await blobs.delete(stored.name)
            raise

    async def get(self, file_id: str, session_id: str | None) -> StoredFile:
        """Returns a file of the owner.

        Raises:
            NotThereError: The session has no file with this id.
        """
        file = await self._services.stored_files.get(file_id, owner=self._owner, session_id=session_id)

        if file is None or not _is_of_shelf(file):
            where = "" if session_id is None else f"{session_id}/"
            raise NotThereError(
                field="file",
                value=f"{where}{file_id}",
                allowed="a file that this key has, and that has not expired",
            )

        return file

    async def list(self, session_id: str) -> Sequence[StoredFile]:
        """Returns the files of a session, the oldest first."""
        files = await self._services.stored_files.list(session_id, owner=self._owner)
        return [file for file in files if _is_of_shelf(file)]

    async def keep(self, session_id: str) -> None:
        """Keeps the files of a session for another day."""
        await self._services.stored_files.keep_until(
            session_id, owner=self._owner, kind=KIND, expires_at=time.time() + KEPT_SECONDS
        )

    async def remove(self, file: StoredFile) -> None:
        """Removes a file and its bytes."""
        await discard_file(self._services.stored_files, self._services.blobs, file)

    async def content(self, file: StoredFile) -> AsyncIterator[bytes]:
        """Begins to read a file's bytes."""
        return (await self._services.blobs.get(file.blob)).chunks


DETAILS = ("simple", "summary", "full", "normalized")


def _is_of_shelf(file: StoredFile) -> bool:
    """Returns whether a file is one of this dialect, since files of other dialects are in the same table."""
    return file.blob.startswith(f"{KIND}/")


def object_name(file: StoredFile) -> str:
    """Returns the name of the stored object: clients read the file's id from it."""
    suffix = posixpath.splitext(file.name)[1]
    return f"{file.session_id}/{file.id}{suffix}"


def described(file: StoredFile, detail: str) -> Any:
    """Returns the description of a file in the form that `detail` names.

    Raises:
        InvalidArgumentError: `detail` names no form.
    """
    form = _FORMS.get(detail)

    if form is None:
        raise InvalidArgumentError(field="detail", value=detail, allowed=", ".join(DETAILS))

    return form(file)


def produced(file: StoredFile, echoed: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns a file of a run in the form of the run's answer."""
    data: dict[str, Any] = {
        "id": file.id,
        "name": file.name,
        "path": f"/mnt/data/{file.name}",
        "session_id": file.session_id,
        "storage_session_id": file.session_id,
        "size": file.size_bytes,
        **(echoed or {}),
    }

    if file.modified_from is not None:
        source = file.modified_from_session
        data["modified_from"] = {
            "id": file.modified_from,
            "session_id": source,
            "storage_session_id": source,
        }

    return data


def etag_of(file: StoredFile) -> str:
    """Returns the tag of a file: its bytes never change."""
    return f'"{file.id}"'


def _last_modified(file: StoredFile) -> str:
    moment = datetime.fromtimestamp(file.created_at, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _simple(file: StoredFile) -> str:
    return object_name(file)


def _summary(file: StoredFile) -> dict[str, Any]:
    return {
        "name": object_name(file),
        "size": file.size_bytes,
        "lastModified": _last_modified(file),
        "etag": etag_of(file).strip('"'),
    }


def _full(file: StoredFile) -> dict[str, Any]:
    return {
        **_summary(file),
        "id": file.id,
        "session_id": file.session_id,
        "storage_session_id": file.session_id,
        "metadata": {
            "content-type": file.content_type,
            "original-filename": file.name,
            "session-id": file.session_id,
        },
        "versionId": None,
        "contentType": file.content_type,
    }


def _normalized(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "name": file.name,
        "session_id": file.session_id,
        "storage_session_id": file.session_id,
        "size": file.size_bytes,
        "contentType": file.content_type,
        "lastModified": _last_modified(file),
    }


_FORMS: Mapping[str, Callable[[StoredFile], Any]] = {
    "simple": _simple,
    "summary": _summary,
    "full": _full,
    "normalized": _normalized,
}
