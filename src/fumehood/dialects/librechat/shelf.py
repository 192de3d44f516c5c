"""The files of storage sessions: bytes in the blob store, records in the database, by owner.

A file belongs to the key that uploaded or made it; for any other key it does not exist. A file is kept for a day after
its session was last used.
"""

from __future__ import annotations

import mimetypes
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from fumehood.dialects.librechat.answers import NotThereError
from fumehood.dialects.librechat.room import KIND, Room, room_for_one
from fumehood.server.services import Services
from fumehood.storage.files import StoredFile, discard_file, new_file_id

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
        source: The file that it is a newer form of, or None.
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
            RequestTooLargeError: It is larger than the server's settings allow; nothing was kept.
            QuotaError: The owner's files are too many, or too large together; nothing was kept.
        """
        async with room_for_one(self._services.stored_files, self._owner) as room:
            return await self._put(file, pieces, room)

    async def _put(self, file: NewFile, pieces: AsyncIterator[bytes], room: Room) -> StoredFile:
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
            NotThereError: There is none of this id in this session.
        """
        file = await self._services.stored_files.get(file_id, owner=self._owner, session_id=session_id)

        if file is None:
            where = "" if session_id is None else f"{session_id}/"
            raise NotThereError(
                field="file",
                value=f"{where}{file_id}",
                allowed="a file that this key has, and that has not expired",
            )

        return file

    async def list(self, session_id: str) -> Sequence[StoredFile]:
        """Returns the files of a session, the oldest first."""
        return await self._services.stored_files.list(session_id, owner=self._owner)

    async def keep(self, session_id: str) -> None:
        """Keeps the files of a session for another day."""
        await self._services.stored_files.keep_until(
            session_id, owner=self._owner, expires_at=time.time() + KEPT_SECONDS
        )

    async def remove(self, file: StoredFile) -> None:
        """Removes a file and its bytes."""
        await discard_file(self._services.stored_files, self._services.blobs, file)

    async def content(self, file: StoredFile) -> AsyncIterator[bytes]:
        """Begins to read a file's bytes."""
        return (await self._services.blobs.get(file.blob)).chunks
