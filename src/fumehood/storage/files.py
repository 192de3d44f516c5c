"""The records of files that dialects with uploads keep: owner, session, and origin of each.

The bytes are in the blob store, under a name that is made here; the user's name is text in a column and is never part
of a path.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import delete, func, select, update

from fumehood.errors import InvalidArgumentError
from fumehood.storage.blobs import Blobs
from fumehood.storage.database import Database
from fumehood.storage.tables import FILES, check_text

_MAX_DETAILS_CHARACTERS = 4096
_MAX_SIZE_BYTES = 2**63 - 1
# Stands for the blob of a file that has no bytes of its own, such as a folder.
NO_BLOB = "none"
# The expiry of a file that is being removed: past on every clock, and never extended.
_ENDED_AT = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A stored file.

    Attributes:
        id: 32 random characters, its id for clients; `new_file_id` makes one.
        session_id: The storage session that it belongs to.
        owner: The key that may see it.
        name: The user's name for it; may hold slashes.
        size_bytes: Its size.
        content_type: Its media type, as it was given or guessed.
        blob: Name of its bytes in the blob store, or `NO_BLOB`.
        created_at: Seconds since 1970; 0 stands for now when it is added.
        modified_from: Id of the file that this one is a newer form of, or None.
        modified_from_session: The session of that file, or None.
        details: Fields of the dialect: short texts by name.
        expires_at: When it may be removed, or None.
    """

    id: str
    session_id: str
    owner: str
    name: str
    size_bytes: int
    content_type: str
    blob: str
    created_at: float = 0.0
    modified_from: str | None = None
    modified_from_session: str | None = None
    details: Mapping[str, str] = field(default_factory=dict)
    expires_at: float | None = None

    def __post_init__(self) -> None:
        widths = {"id": 64, "session_id": 128, "owner": 128, "name": 1024, "content_type": 255, "blob": 255}

        for name, width in widths.items():
            check_text(name, getattr(self, name), max_characters=width)

        for name, width in {"modified_from": 64, "modified_from_session": 128}.items():
            if getattr(self, name) is not None:
                check_text(name, getattr(self, name), max_characters=width)

        if not 0 <= self.size_bytes <= _MAX_SIZE_BYTES:
            raise InvalidArgumentError(
                field="size_bytes", value=self.size_bytes, allowed="a number of bytes, 0 or more"
            )

        if len(json.dumps(dict(self.details))) > _MAX_DETAILS_CHARACTERS:
            raise InvalidArgumentError(
                field="details", value="...", allowed=f"up to {_MAX_DETAILS_CHARACTERS} characters as JSON"
            )


@dataclass(frozen=True, slots=True)
class KeptFiles:
    """The stored files of an owner, expired ones included: until they are removed they count.

    Attributes:
        count: The number of files.
        size_bytes: Their total size.
    """

    count: int
    size_bytes: int


def new_file_id() -> str:
    """Return an id that cannot be guessed."""
    return secrets.token_hex(16)


class StoredFiles:
    """The table of stored files in the server's database."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    async def add(self, file: StoredFile) -> StoredFile:
        """Record a file whose bytes are stored; return the record with the time of its creation."""
        return (await self.add_all([file]))[0]

    async def add_all(self, files: Sequence[StoredFile]) -> Sequence[StoredFile]:
        """Record files, all or none, as `add` does."""
        return await self.replace_all([], files)

    async def get(self, file_id: str, *, owner: str, session_id: str | None = None) -> StoredFile | None:
        """Return a file of an owner, and of a session if one is given, or None if the file does not exist."""
        for value in (file_id, owner, session_id or "any"):
            if "\x00" in value or not value.isprintable():
                return None

        statement = select(FILES).where(FILES.c.id == file_id, FILES.c.owner == owner, self._not_over())

        if session_id is not None:
            statement = statement.where(FILES.c.session_id == session_id)

        async with self._database.reading("looking up a file") as connection:
            row = (await connection.execute(statement)).mappings().one_or_none()

        return None if row is None else _file_of(row)

    async def list(self, session_id: str, *, owner: str | None, limit: int = 1000) -> Sequence[StoredFile]:
        """Return the files of an owner (None: of all) in a session, oldest first."""
        if "\x00" in session_id or not session_id.isprintable():
            return []

        statement = (
            select(FILES)
            .where(FILES.c.session_id == session_id, self._not_over())
            .order_by(FILES.c.created_at, FILES.c.id)
            .limit(limit)
        )

        if owner is not None:
            statement = statement.where(FILES.c.owner == owner)

        async with self._database.reading("listing files") as connection:
            rows = (await connection.execute(statement)).mappings().all()

        return [_file_of(row) for row in rows]

    async def keep_until(self, session_id: str, *, owner: str, kind: str, expires_at: float | None) -> None:
        """Set the expiry of files that have not expired yet: a used one is kept longer.

        Args:
            session_id: Their session.
            owner: Their owner.
            kind: The kind of the blobs with their bytes.
            expires_at: When they may be removed.
        """
        statement = update(FILES).where(
            FILES.c.session_id == session_id,
            FILES.c.owner == owner,
            FILES.c.blob.startswith(f"{kind}/"),
            self._not_over(),
        )

        async with self._database.writing("keeping files") as connection:
            await connection.execute(statement.values(expires_at=expires_at))

    async def replace_details(self, file: StoredFile, details: Mapping[str, str]) -> bool:
        """Replace the details of a file if they are still those of `file`; return whether that was done."""
        changed = replace(file, details=details)
        condition = (FILES.c.id == file.id) & (FILES.c.details == json.dumps(dict(file.details)))
        statement = update(FILES).where(condition, self._not_over())

        async with self._database.writing("changing a file") as connection:
            values = {"details": json.dumps(dict(changed.details))}
            return (await connection.execute(statement.values(values))).rowcount == 1

    async def end(self, file: StoredFile, *, only_expired: bool = False) -> bool:
        """Hide a file from all callers, before its bytes are deleted; return whether it was visible.

        Args:
            file: The file.
            only_expired: Whether one whose time was extended meanwhile stays; else one that has expired does.
        """
        condition = FILES.c.expires_at <= self._clock() if only_expired else self._not_over()
        statement = update(FILES).where(FILES.c.id == file.id, condition).values(expires_at=_ENDED_AT)

        async with self._database.writing("ending a file") as connection:
            return (await connection.execute(statement)).rowcount == 1

    async def remove(self, file: StoredFile) -> bool:
        """Delete the record of a file; return whether there was one. Its bytes must be deleted before."""
        async with self._database.writing("removing a file") as connection:
            return (await connection.execute(delete(FILES).where(FILES.c.id == file.id))).rowcount == 1

    async def replace_all(
        self, ended: Sequence[StoredFile], files: Sequence[StoredFile]
    ) -> Sequence[StoredFile]:
        """Hide files from all callers, as `end_all`, and record others, in one transaction."""
        rows = [self._values(file) for file in files]

        if not ended and not rows:
            return []

        async with self._database.writing("replacing files") as connection:
            if ended:
                await connection.execute(_ending(ended))

            if rows:
                await connection.execute(FILES.insert(), rows)

        return [_file_of(row) for row in rows]

    async def end_all(self, files: Sequence[StoredFile]) -> None:
        """Hide files from all callers, before their bytes are deleted."""
        async with self._database.writing("ending files") as connection:
            await connection.execute(_ending(files))

    async def remove_all(self, files: Sequence[StoredFile]) -> None:
        """Delete the records of files, whose bytes must be deleted before."""
        statement = delete(FILES).where(FILES.c.id.in_([file.id for file in files]))

        async with self._database.writing("removing files") as connection:
            await connection.execute(statement)

    async def expired(self, *, limit: int = 1000) -> Sequence[StoredFile]:
        """Return expired files, to be removed with their bytes; no caller sees them."""
        statement = (
            select(FILES).where(FILES.c.expires_at <= self._clock()).order_by(FILES.c.expires_at).limit(limit)
        )

        async with self._database.reading("looking for expired files") as connection:
            rows = (await connection.execute(statement)).mappings().all()

        return [_file_of(row) for row in rows]

    async def kept_by(self, owner: str, *, kind: str) -> KeptFiles:
        """Return the total size of an owner's files whose bytes are blobs of a kind."""
        statement = select(func.count(), func.coalesce(func.sum(FILES.c.size_bytes), 0)).where(
            FILES.c.owner == owner, FILES.c.blob.startswith(f"{kind}/")
        )

        async with self._database.reading("adding up the files of an owner") as connection:
            count, size_bytes = (await connection.execute(statement)).one()

        return KeptFiles(int(count), int(size_bytes))

    async def blobs_among(self, names: Sequence[str]) -> Set[str]:
        """Return which of these blobs have a record, of a hidden file too."""
        statement = select(FILES.c.blob).where(FILES.c.blob.in_(names))

        async with self._database.reading("looking for the records of blobs") as connection:
            return set((await connection.execute(statement)).scalars())

    async def uses_of(self, blob: str) -> int:
        """Return how many visible files have their bytes in a blob: an inherited file shares them."""
        is_used = FILES.c.expires_at.is_(None) | (FILES.c.expires_at > _ENDED_AT)
        statement = select(FILES.c.id).where(FILES.c.blob == blob, is_used)

        async with self._database.reading("counting the uses of a blob") as connection:
            return len((await connection.execute(statement)).all())

    def _values(self, file: StoredFile) -> dict[str, Any]:
        values = {name: getattr(file, name) for name in FILES.columns.keys()}  # noqa: SIM118 - a collection of columns, not a dict
        values["details"] = json.dumps(dict(file.details))
        values["created_at"] = file.created_at or self._clock()
        return values

    def _not_over(self) -> Any:
        return FILES.c.expires_at.is_(None) | (FILES.c.expires_at > self._clock())


def _ending(files: Sequence[StoredFile]) -> Any:
    return update(FILES).where(FILES.c.id.in_([file.id for file in files])).values(expires_at=_ENDED_AT)


def _file_of(values: Any) -> StoredFile:
    return StoredFile(**{**values, "details": json.loads(values["details"])})


async def discard_file(
    stored_files: StoredFiles, blobs: Blobs, file: StoredFile, *, only_expired: bool = False
) -> bool:
    """Remove a file, and its bytes if no other file shares them; return whether it was there.

    It is hidden first, then its bytes are removed, then its record: an interruption in between leaves a record that the
    next look for expired files removes.

    Args:
        stored_files: The records.
        blobs: The bytes.
        file: The file.
        only_expired: Whether it stays when its time was extended meanwhile.

    Raises:
        StorageError: The bytes of the file could not be removed; the file is hidden, and they are removed later.
    """
    if not await stored_files.end(file, only_expired=only_expired):
        return False

    if file.blob != NO_BLOB and not await stored_files.uses_of(file.blob):
        await blobs.delete(file.blob)

    await stored_files.remove(file)
    return True
