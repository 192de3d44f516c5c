"""Idempotency keys: a repeated request gets the reply of the first, and is not done again.

The database decides which request was first, so it holds across servers. A request whose server died in the middle is
neither done again nor waited for: its outcome is unknown, as the answer reports.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, select, update

from fumehood.errors import InvalidArgumentError, StorageError
from fumehood.log import events
from fumehood.storage.database import Database
from fumehood.storage.presence import with_server
from fumehood.storage.tables import IDEMPOTENCY

_KEPT_SECONDS = 24 * 3600.0
_PRUNE_SECONDS = 600.0
_MAX_KEY_CHARACTERS = 1024
_MAX_HEADER_BYTES = 64 * 1024
# After this share of a key's bound, its replies are summed again.
_NEW_SHARE = 8
# Between losing the insert and reading the winner's record it may have been withdrawn; then it is tried again.
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Begun:
    """The request is new: do it, then call `finish`, `withdraw` or `lose` with this."""

    key_id: str
    name_hash: bytes


@dataclass(frozen=True, slots=True)
class StillRunning:
    """The same request is under way."""


@dataclass(frozen=True, slots=True)
class StoredReply:
    """The same request was answered.

    Attributes:
        status: Status of that answer.
        headers: Its headers.
        body: Its body, or None if it was too large to keep.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes | None


@dataclass(frozen=True, slots=True)
class OtherRequest:
    """The idempotency key was used for another request."""


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    """The same request was begun, and its outcome is unknown."""


Answer = Begun | StillRunning | StoredReply | OtherRequest | OutcomeUnknown


def digest_of(parts: Iterable[bytes]) -> bytes:
    """Return a digest of a request, given as its parts (method, path, body): equal only for equal parts."""
    digest = hashlib.sha256()

    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)

    return digest.digest()


class Idempotency:
    """The requests with an idempotency key.

    Args:
        database: The database that stores them.
        max_body_bytes: A larger reply is not stored, only that there was one.
        max_kept_bytes: When the replies to a key are about so much together, the oldest are not stored either.
        clock: Returns the time.
    """

    def __init__(
        self,
        database: Database,
        *,
        max_body_bytes: int = 1024 * 1024,
        max_kept_bytes: int = 256 * 1024 * 1024,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._max_body_bytes = max_body_bytes
        self._max_kept_bytes = max_kept_bytes
        self._clock = clock
        self._pruned_at = 0.0
        # Bytes by key, since its replies were last summed.
        self._new_bytes: Counter[str] = Counter()

    async def begin(self, key_id: str, idempotency_key: str, request_digest: bytes) -> Answer:
        """Record a request, and return what to do about it.

        Args:
            key_id: The id of the caller's key: the same idempotency key of two callers is two keys.
            idempotency_key: Any text of the caller.
            request_digest: See `digest_of`.
        """
        name_hash = _name_hash(idempotency_key)

        for _ in range(_ATTEMPTS):
            if await self._enter(key_id, name_hash, request_digest):
                return Begun(key_id, name_hash)

            row = await self._row(key_id, name_hash)

            if row is not None:
                return self._judge(row, request_digest)

        operation, reason = "looking up an idempotency key", "it came and went while it was looked at"
        events.STORAGE_FAILED.log(operation=operation, reason=reason)
        raise StorageError(operation=operation, reason=reason)

    async def finish(self, begun: Begun, *, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Store the reply of a request that was done."""
        # ASCII, with every other character escaped: any database can hold it.
        text = json.dumps(dict(headers))
        is_kept = len(body) <= self._max_body_bytes and len(text) <= _MAX_HEADER_BYTES
        values = {
            "state": "done",
            "status": status,
            "headers": text if is_kept else None,
            "body": body if is_kept else None,
        }
        now = self._clock()

        async with self._database.writing("storing a reply", durable=True) as connection:
            await connection.execute(await self._ours(update(IDEMPOTENCY).values(values), begun))

            if now - self._pruned_at > _PRUNE_SECONDS:
                self._pruned_at = now
                await connection.execute(delete(IDEMPOTENCY).where(IDEMPOTENCY.c.expires_at <= now))

        if is_kept and self._is_to_be_trimmed(begun.key_id, len(body) + len(text)):
            # In a transaction of its own: an error here does not lose the reply.
            async with self._database.writing("forgetting old replies") as connection:
                await connection.execute(self._trim(begun.key_id))

    async def withdraw(self, begun: Begun) -> None:
        """Delete a request that was refused before anything was done: it may be sent again."""
        async with self._database.writing("forgetting a request") as connection:
            await connection.execute(await self._ours(delete(IDEMPOTENCY), begun))

    async def lose(self, begun: Begun) -> None:
        """Record that the outcome of a request is unknown."""
        async with self._database.writing("recording an unknown outcome") as connection:
            await connection.execute(await self._ours(update(IDEMPOTENCY).values(state="unknown"), begun))

    def _is_to_be_trimmed(self, key_id: str, new_bytes: int) -> bool:
        """Count a reply; summing all of them each time would cost more with every stored one."""
        self._new_bytes[key_id] += new_bytes

        if self._new_bytes[key_id] * _NEW_SHARE < self._max_kept_bytes:
            return False

        del self._new_bytes[key_id]
        return True

    def _trim(self, key_id: str) -> Any:
        """Return a statement that deletes the oldest replies to a key beyond its bound; their records stay."""
        size_bytes = func.length(IDEMPOTENCY.c.body) + func.length(IDEMPOTENCY.c.headers)
        newest_first = (IDEMPOTENCY.c.created_at.desc(), IDEMPOTENCY.c.name_hash)
        summed = (
            select(
                IDEMPOTENCY.c.name_hash,
                func.sum(size_bytes).over(order_by=newest_first).label("with_newer"),
            )
            .where(IDEMPOTENCY.c.key_id == key_id, IDEMPOTENCY.c.body.is_not(None))
            .subquery()
        )
        beyond = select(summed.c.name_hash).where(summed.c.with_newer > self._max_kept_bytes)
        return (
            update(IDEMPOTENCY)
            .where(IDEMPOTENCY.c.key_id == key_id, IDEMPOTENCY.c.name_hash.in_(beyond))
            .values(body=None, headers=None)
        )

    async def _enter(self, key_id: str, name_hash: bytes, request_digest: bytes) -> bool:
        """Record a new request; return whether this was the first of its key."""
        server_id = await self._database.presence.server_id()
        now = self._clock()
        values = {
            "key_id": key_id,
            "name_hash": name_hash,
            "request_hash": request_digest,
            "server_id": server_id,
            "state": "running",
            "created_at": now,
            "expires_at": now + _KEPT_SECONDS,
        }
        expired = delete(IDEMPOTENCY).where(
            IDEMPOTENCY.c.key_id == key_id,
            IDEMPOTENCY.c.name_hash == name_hash,
            IDEMPOTENCY.c.expires_at <= now,
        )
        insert = self._database.insert(IDEMPOTENCY).values(values).on_conflict_do_nothing()
        # The row is returned if it was inserted; the row count is not reliable with every driver.
        inserted = insert.returning(IDEMPOTENCY.c.state)

        async with self._database.writing("recording a request", durable=True) as connection:
            await connection.execute(expired)
            return (await connection.execute(inserted)).first() is not None

    async def _row(self, key_id: str, name_hash: bytes) -> Any:
        statement = with_server(IDEMPOTENCY).where(
            IDEMPOTENCY.c.key_id == key_id, IDEMPOTENCY.c.name_hash == name_hash
        )

        async with self._database.reading("looking up an idempotency key") as connection:
            return (await connection.execute(statement)).one_or_none()

    def _judge(self, row: Any, request_digest: bytes) -> Answer:
        if row.request_hash != request_digest:
            return OtherRequest()

        if row.state == "done":
            return StoredReply(row.status, json.loads(row.headers or "{}"), row.body)

        if row.state == "running" and self._database.presence.is_alive(row):
            return StillRunning()

        return OutcomeUnknown()

    async def _ours(self, statement: Any, begun: Begun) -> Any:
        """Bound a statement to a record that this server began and has not ended."""
        return statement.where(
            IDEMPOTENCY.c.key_id == begun.key_id,
            IDEMPOTENCY.c.name_hash == begun.name_hash,
            IDEMPOTENCY.c.server_id == await self._database.presence.server_id(),
            IDEMPOTENCY.c.state == "running",
        )


def _name_hash(idempotency_key: str) -> bytes:
    """Return the stored form of an idempotency key: any text has one, and every database can hold it."""
    if not isinstance(idempotency_key, str) or not 1 <= len(idempotency_key) <= _MAX_KEY_CHARACTERS:
        raise InvalidArgumentError(
            field="idempotency_key",
            value=idempotency_key,
            allowed=f"text of 1 to {_MAX_KEY_CHARACTERS} characters",
        )

    return hashlib.sha256(idempotency_key.encode("utf-8", "surrogatepass")).digest()
