"""API keys: made, verified, rotated, revoked. Only the SHA-256 of a token is stored (decision 15), never the token.

`verify` is called for every request: it answers from memory for a few seconds and then asks the database again, so that
another process's revocation counts soon, and our own at once.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, select, update

from fumehood.errors import KeyNotFoundError, StorageError
from fumehood.log import events
from fumehood.storage.database import Database
from fumehood.storage.fresh_cache import FreshCache
from fumehood.storage.policy import KeyPolicy, as_json, check_scopes, from_json
from fumehood.storage.tables import KEYS, check_text
from fumehood.storage.write_behind import Later
from fumehood.values.limits import check_seconds

_TOKEN = re.compile(r"fh_([a-z0-9]{12})_[A-Za-z0-9_-]{43}", re.ASCII)
_TOKEN_CHARACTERS = 59
_ID_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_SECRET_BYTES = 32
_REMEMBERED_KEYS = 10_000
_NOTHING = bytes(32)
# The time of last use is for people: it may be a minute old.
_FLUSH_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key, without its secret.

    Attributes:
        id: Twelve characters; part of its token, and the owner of its sandboxes and files.
        name: Its owner's name for it.
        scopes: Its permissions.
        policy: Its quotas and limits.
        created_at: Seconds since 1970, like all times here.
        revoked_at: When it was revoked, or None.
        last_used_at: The latest stored time at which it was verified, or None.
        previous_until: Until when the token before the last rotation is valid, or None.
        made_by: The id of the key whose holder made it; empty: the server's owner did.
    """

    id: str
    name: str
    scopes: frozenset[str]
    policy: KeyPolicy
    created_at: float
    revoked_at: float | None = None
    last_used_at: float | None = None
    previous_until: float | None = None
    made_by: str = ""


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key and its token, which is shown this once."""

    record: KeyRecord
    token: str


@dataclass(frozen=True, slots=True)
class _Known:
    record: KeyRecord
    token_hash: bytes
    previous_hash: bytes | None


class Keys:
    """The API keys in the server's database.

    Args:
        database: The database that stores them.
        remember_seconds: How long an answer of the database is cached; a revocation by another process may take as long
            to have effect.
        clock: Returns the time.
    """

    def __init__(
        self, database: Database, *, remember_seconds: float = 5.0, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._clock = clock
        self._known: FreshCache[str, _Known] = FreshCache(
            self._ask, remember_seconds=remember_seconds, clock=clock, max_entries=_REMEMBERED_KEYS
        )
        self._used: dict[str, float] = {}
        self._later = Later(_FLUSH_SECONDS, self.flush)

    async def close(self) -> None:
        """Store what is still in memory."""
        await self._later.close()

    async def create(
        self,
        name: str,
        *,
        scopes: Iterable[str] = ("execute", "sandboxes"),
        policy: KeyPolicy | None = None,
        made_by: str = "",
    ) -> NewKey:
        """Make a key; its token is in the result and nowhere else."""
        check_text("name", name, max_characters=200)
        record = KeyRecord(
            id="".join(secrets.choice(_ID_ALPHABET) for _ in range(12)),
            name=name,
            scopes=check_scopes(scopes),
            policy=policy or KeyPolicy(),
            created_at=self._clock(),
            made_by=made_by,
        )
        token = _new_token(record.id)
        values = {
            "id": record.id,
            "name": name,
            "policy": as_json(record.scopes, record.policy, made_by),
            "token_hash": token_digest(token),
            "created_at": record.created_at,
        }

        async with self._database.writing("making a key", durable=True) as connection:
            await connection.execute(KEYS.insert().values(values))

        return NewKey(record, token)

    async def verify(self, token: object, *, is_use: bool = True) -> KeyRecord | None:
        """Return the key that `token` belongs to, or None if there is none that is valid now.

        Any value gets an answer, whatever its type, size or characters; only a failing database raises (StorageError).
        """
        if not isinstance(token, str) or len(token) != _TOKEN_CHARACTERS:
            return None

        match = _TOKEN.fullmatch(token)

        if match is None:
            return None

        key_id = match[1]
        known = await self._known.find(key_id)

        if not _fits(known, token_digest(token), self._clock()) or known is None:
            return None

        if is_use:
            self._note_use(key_id)

        return known.record

    async def holder(
        self, key_id: str, fits: Callable[[bytes], bool], *, is_use: bool = True
    ) -> KeyRecord | None:
        """Return the key `key_id` if it is valid and `fits` accepts the hash of its current token; otherwise None.

        For URLs and cookies that were signed with that token.
        """
        known = await self._known.find(key_id)

        if known is None or not _is_valid(known.record, self._clock()) or not fits(known.token_hash):
            return None

        if is_use:
            self._note_use(key_id)

        return known.record

    async def token_hash(self, key_id: str) -> bytes | None:
        """Return the hash of a key's current token, or None when the key is not valid."""
        known = await self._known.find(key_id)
        return None if known is None or not _is_valid(known.record, self._clock()) else known.token_hash

    async def get(self, key_id: str) -> KeyRecord:
        """Return a key, revoked or not; raise KeyNotFoundError if there is none."""
        row = await self._row(key_id)

        if row is None:
            raise KeyNotFoundError(key_id=str(key_id))

        return _record(row)

    async def list(self) -> list[KeyRecord]:
        """Return all keys, oldest first, including revoked ones."""
        async with self._database.reading("listing the keys") as connection:
            rows = (await connection.execute(select(KEYS).order_by(KEYS.c.created_at, KEYS.c.id))).all()

        return [_record(row) for row in rows]

    async def rotate(self, key_id: str, *, grace_seconds: float = 0.0) -> NewKey:
        """Give a key a new token; the old one is valid for `grace_seconds` more, an older one no longer."""
        if grace_seconds:
            check_seconds("grace_seconds", grace_seconds, optional=False)

        await self.get(key_id)
        token = _new_token(key_id)
        previous_until = self._clock() + grace_seconds
        statement = (
            update(KEYS)
            .where(KEYS.c.id == key_id, KEYS.c.revoked_at.is_(None))
            .values(
                previous_hash=KEYS.c.token_hash if grace_seconds else None,
                previous_until=previous_until if grace_seconds else None,
                token_hash=token_digest(token),
            )
        )
        await self._change(key_id, statement, "rotating a key")
        return NewKey(await self.get(key_id), token)

    async def change(self, key_id: str, change: Callable[[KeyRecord], KeyRecord]) -> KeyRecord:
        """Give a key another name, other scopes or another policy; its token stays. It counts at once in this process.

        Args:
            key_id: The key.
            change: Returns the changed key from the stored one; nothing is stored if it raises.

        Raises:
            KeyNotFoundError: The key does not exist, or was revoked.
        """
        await self.get(key_id)

        async with self._database.writing("changing a key", durable=True) as connection:
            query = select(KEYS).where(KEYS.c.id == key_id, KEYS.c.revoked_at.is_(None)).with_for_update()
            row = (await connection.execute(query)).one_or_none()

            if row is None:
                raise KeyNotFoundError(key_id=key_id)

            record = change(_record(row))
            check_text("name", record.name, max_characters=200)
            policy = as_json(check_scopes(record.scopes), record.policy, record.made_by)
            await connection.execute(
                update(KEYS).where(KEYS.c.id == key_id).values(name=record.name, policy=policy)
            )

        self._known.forget(key_id)
        return record

    async def revoke(self, key_id: str) -> None:
        """End a key, at once in this process. A second time changes nothing but is no error."""
        await self.get(key_id)

        # The first revocation's time stays.
        async with self._database.writing("revoking a key", durable=True) as connection:
            await connection.execute(
                update(KEYS)
                .where(KEYS.c.id == key_id, KEYS.c.revoked_at.is_(None))
                .values(revoked_at=self._clock(), previous_hash=None, previous_until=None)
            )

        self._known.forget(key_id)

    async def flush(self) -> None:
        """Store when keys were last used; called now and then, and at the end."""
        used, self._used = self._used, {}

        if not used:
            return

        statement = (
            update(KEYS).where(KEYS.c.id == bindparam("used_id")).values(last_used_at=bindparam("used_at"))
        )

        # In one order for all servers, so that two that update the same keys do not deadlock.
        rows = [{"used_id": key_id, "used_at": at} for key_id, at in sorted(used.items())]

        try:
            async with self._database.writing("storing when keys were used") as connection:
                await connection.execute(statement, rows)
        except BaseException:
            self._used = {**used, **self._used}
            raise

    async def _change(self, key_id: str, statement: Any, operation: str) -> None:
        async with self._database.writing(operation, durable=True) as connection:
            changed = (await connection.execute(statement)).rowcount

        self._known.forget(key_id)

        if not changed:
            raise KeyNotFoundError(key_id=key_id)

    def _note_use(self, key_id: str) -> None:
        self._used[key_id] = self._clock()
        self._later.ask()

    async def _ask(self, key_id: str) -> _Known | None:
        row = await self._row(key_id)
        return None if row is None else _Known(_record(row), row.token_hash, row.previous_hash)

    async def _row(self, key_id: str) -> Any:
        if not isinstance(key_id, str) or len(key_id) != 12 or not key_id.isascii() or not key_id.isalnum():
            return None

        async with self._database.reading("looking up a key") as connection:
            return (await connection.execute(select(KEYS).where(KEYS.c.id == key_id))).one_or_none()


def _fits(known: _Known | None, token_hash: bytes, now: float) -> bool:
    """Return whether a token is one of the key's, and the key valid; both hashes are compared in any case."""
    record = known.record if known else None
    is_current = hmac.compare_digest(known.token_hash if known else _NOTHING, token_hash)
    is_previous = hmac.compare_digest(known.previous_hash or _NOTHING if known else _NOTHING, token_hash)

    if record is None or not _is_valid(record, now):
        return False

    return is_current or (is_previous and record.previous_until is not None and now < record.previous_until)


def _is_valid(record: KeyRecord, now: float) -> bool:
    expires_at = record.policy.expires_at
    return record.revoked_at is None and (expires_at is None or expires_at > now)


def _new_token(key_id: str) -> str:
    return f"fh_{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"


def token_digest(token: str) -> bytes:
    """Return the stored form of a token, its SHA-256."""
    # Surrogates can stand in a header that was decoded leniently.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _record(row: Any) -> KeyRecord:
    try:
        scopes, policy, made_by = from_json(row.policy)
    except ValueError as error:
        operation, reason = "reading a key", f"key {row.id}: {error}"
        events.STORAGE_FAILED.log(operation=operation, reason=reason)
        raise StorageError(operation=operation, reason=reason) from error

    return KeyRecord(
        id=row.id,
        name=row.name,
        scopes=scopes,
        policy=policy,
        created_at=row.created_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
        previous_until=row.previous_until,
        made_by=made_by,
    )
