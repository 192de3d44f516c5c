"""Shares: views of one sandbox for readers without an account, begun, found by their secrets, listed, ended.

Runs in the server process. A share has a secret, which is in the address that is handed on, behind `#`, and a token,
for which the secret is exchanged; the token is derived from the secret, so that every server of a database knows it.
Only digests of both are stored. A share of the server's own token is bound to it by a code that only the share's token
can check (HMAC), so that the database alone holds nothing to try tokens against. A share that has ended is deleted:
what it was made with leads nowhere.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import delete, func, select, update

from fumehood.errors import QuotaError
from fumehood.storage.database import Database
from fumehood.storage.fresh_cache import FreshCache
from fumehood.storage.tables import SHARES
from fumehood.values.shares import SHARED_PARTS, SharedPart

# What does not name its context, so that a share of a context besides the default one cannot have it.
OF_ALL_CONTEXTS: frozenset[SharedPart] = frozenset({"network"})
MAX_SHARES_OF_KEY = 200
# Of tokens: what tells them from those of keys.
TOKEN_PREFIX = "fhs_"  # noqa: S105 - what goes before a token
_SECRET_BYTES = 32
_ID_BYTES = 8
_REMEMBERED = 10_000
_SECRET = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_TOKEN = re.compile(rf"{TOKEN_PREFIX}([0-9a-f]{{{2 * _ID_BYTES}}})_[0-9a-f]{{64}}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedView:
    """The part of a sandbox that a share shows.

    Attributes:
        sandbox_id: The sandbox.
        context_id: Its one shared context.
        shows: The parts.
        from_at: Cells that began earlier are hidden; None hides nothing. Seconds since 1970, like all times here.
        until_at: Cells that ended later are hidden; None shows the sandbox live.
    """

    sandbox_id: str
    context_id: str
    shows: tuple[SharedPart, ...]
    from_at: float | None = None
    until_at: float | None = None

    def covers(self, began_at: datetime | None, ended_at: datetime | None) -> bool:
        """Returns whether the share shows what began and ended at these times; None: not yet, or not known."""
        if self.from_at is not None and (began_at is None or began_at.timestamp() < self.from_at):
            return False

        return self.until_at is None or (ended_at is not None and ended_at.timestamp() <= self.until_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredShare(SharedView):
    """A share, without its secret.

    Attributes:
        id: Its name in calls and in its address.
        key_id: The key that made it, with which it ends; `owner` for the server's own token.
        created_at: When it was made.
        ends_at: When it ends unless it is revoked.
        openings: How often its address was opened.
    """

    id: str
    key_id: str
    created_at: float
    ends_at: float
    openings: int


@dataclass(slots=True)
class _Known:
    share: StoredShare
    token_hash: bytes
    token_check: bytes | None


class ShareStore:
    """The shares of a database.

    Args:
        database: The database that stores them.
        token_digests: The digest of the present token of each key whose shares end when its token is replaced.
        remember_seconds: How long an answer of the database is cached; so long the end by another process may take.
        clock: Returns the time.
    """

    def __init__(
        self,
        database: Database,
        token_digests: Mapping[str, bytes] | None = None,
        *,
        remember_seconds: float = 0.5,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._token_digests = token_digests or {}
        self._clock = clock
        self._known: FreshCache[str, _Known] = FreshCache(
            self._ask, remember_seconds=remember_seconds, clock=clock, max_entries=_REMEMBERED
        )

    async def make(self, key_id: str, view: SharedView, seconds: float) -> tuple[StoredShare, str]:
        """Make a share that ends after so many seconds, and return it with its secret, which is nowhere else.

        Raises:
            QuotaError: The key already has the maximum number of shares.
        """
        now = self._clock()
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        share = StoredShare(
            id=secrets.token_hex(_ID_BYTES),
            key_id=key_id,
            sandbox_id=view.sandbox_id,
            context_id=view.context_id,
            shows=tuple(part for part in SHARED_PARTS if part in view.shows),
            from_at=view.from_at,
            until_at=view.until_at,
            created_at=now,
            ends_at=now + seconds,
            openings=0,
        )

        async with self._database.writing("making a share", durable=True) as connection:
            await connection.execute(delete(SHARES).where(SHARES.c.ends_at <= now))
            of_key = select(func.count()).select_from(SHARES).where(SHARES.c.key_id == key_id)
            count = (await connection.execute(of_key)).scalar_one()

            if count >= MAX_SHARES_OF_KEY:
                raise QuotaError(
                    quota="shares", used=count, maximum=MAX_SHARES_OF_KEY, retry_after_seconds=None
                )

            values = {name: getattr(share, name) for name in share.__dataclass_fields__}
            token = _token_of(share.id, secret)
            values |= {
                "shows": json.dumps(share.shows),
                "secret_hash": _hash(secret),
                "token_hash": _hash(token),
                "token_check": self._check(key_id, token),
            }
            await connection.execute(SHARES.insert().values(values))

        return share, secret

    async def open(self, share_id: str, secret: str) -> tuple[StoredShare, str] | None:
        """Return the share that a secret opens, with its token, and count that; None if it opens none now."""
        if not _SECRET.fullmatch(secret):
            return None

        query = select(SHARES).where(SHARES.c.id == share_id, SHARES.c.ends_at > self._clock())

        # A wrong secret begins no write transaction, for which others would wait.
        async with self._database.reading("looking up a share") as connection:
            row = (await connection.execute(query)).one_or_none()

        if row is None or not hmac.compare_digest(row.secret_hash, _hash(secret)):
            return None

        if not self._fits(row.key_id, _token_of(share_id, secret), row.token_check):
            return None

        async with self._database.writing("opening a share") as connection:
            counted = update(SHARES).where(SHARES.c.id == share_id).values(openings=SHARES.c.openings + 1)

            if not (await connection.execute(counted)).rowcount:
                return None

        return _share(row), _token_of(share_id, secret)

    async def find(self, token: str) -> StoredShare | None:
        """Return the share that a token belongs to, or None if there is none now; any text gets an answer."""
        parts = _TOKEN.fullmatch(token)

        if parts is None:
            return None

        share_id, now = parts[1], self._clock()
        known = await self._known.find(share_id)

        if known is None or now >= known.share.ends_at:
            return None

        is_right = hmac.compare_digest(known.token_hash, _hash(token))
        return known.share if is_right and self._fits(known.share.key_id, token, known.token_check) else None

    async def list(self, key_id: str | None = None, sandbox_id: str | None = None) -> list[StoredShare]:
        """Return the shares that have not ended, the newest first: of a key, of a sandbox, or all."""
        query = select(SHARES).where(SHARES.c.ends_at > self._clock()).order_by(SHARES.c.created_at.desc())

        if key_id is not None:
            query = query.where(SHARES.c.key_id == key_id)

        if sandbox_id is not None:
            query = query.where(SHARES.c.sandbox_id == sandbox_id)

        async with self._database.reading("listing the shares") as connection:
            return [_share(row) for row in (await connection.execute(query)).all()]

    async def end(self, share_id: str, key_id: str | None = None) -> int:
        """End a share, if it is that key's (None: any key's); return how many there were.

        It counts at once in this process.
        """
        chosen = SHARES.c.id == share_id

        if key_id is not None:
            chosen = chosen & (SHARES.c.key_id == key_id)

        async with self._database.writing("ending a share", durable=True) as connection:
            count = (await connection.execute(delete(SHARES).where(chosen))).rowcount

        if count:
            self._known.forget(share_id)

        return count

    def _check(self, key_id: str, token: str) -> bytes | None:
        """Returns the code that binds a share to the present token of its key, for keys where that counts."""
        digest = self._token_digests.get(key_id)
        return None if digest is None else hmac.digest(token.encode(), digest, "sha256")

    def _fits(self, key_id: str, token: str, stored: bytes | None) -> bool:
        """Whether a key has the token with which a share was made, or that does not count."""
        expected = self._check(key_id, token)
        return expected is None or hmac.compare_digest(expected, stored or b"")

    async def _ask(self, share_id: str) -> _Known | None:
        async with self._database.reading("looking up a share") as connection:
            row = (await connection.execute(select(SHARES).where(SHARES.c.id == share_id))).one_or_none()

        return None if row is None else _Known(_share(row), row.token_hash, row.token_check)


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _token_of(share_id: str, secret: str) -> str:
    return f"{TOKEN_PREFIX}{share_id}_{hmac.digest(secret.encode(), b'token of a reader', 'sha256').hex()}"


def _share(row: Any) -> StoredShare:
    return StoredShare(
        id=row.id,
        key_id=row.key_id,
        sandbox_id=row.sandbox_id,
        context_id=row.context_id,
        shows=tuple(json.loads(row.shows)),
        from_at=row.from_at,
        until_at=row.until_at,
        created_at=row.created_at,
        ends_at=row.ends_at,
        openings=row.openings,
    )


def as_datetime(seconds: float | None) -> datetime | None:
    """Returns a time that is stored as seconds since 1970."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
