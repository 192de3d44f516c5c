"""Logins of browsers: begun, found by their cookie, listed, ended.

Runs in the server process. Only the SHA-256 of a cookie is stored. A login is bound to the token it was made with by a
code that only the cookie can check (HMAC), so that the database alone holds nothing to try tokens against. A login ends
when it is not used for a while, and at the latest after a week.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, delete, or_, select, update

from fumehood.storage.database import Database
from fumehood.storage.fresh_cache import FreshCache
from fumehood.storage.tables import LOGINS
from fumehood.storage.write_behind import Later

LONGEST_SECONDS = 7 * 24 * 3600.0
MAX_LOGINS_OF_KEY = 100
_COOKIE = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_SECRET_BYTES = 32
_ID_BYTES = 6
_REMEMBERED = 10_000
_FLUSH_SECONDS = 30.0
_AGENT_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A login, without its cookie.

    Attributes:
        id: Its name in calls.
        key_id: The key that it acts for; `owner` for the server's own token.
        created_at: Seconds since 1970, like all times here.
        last_used_at: When it was last used, as far as that is stored already.
        ends_at: When it ends at the latest.
        user_agent: The User-Agent header of its browser.
    """

    id: str
    key_id: str
    created_at: float
    last_used_at: float
    ends_at: float
    user_agent: str


@dataclass(frozen=True, slots=True)
class FoundLogin:
    """A login that a cookie belongs to.

    Attributes:
        login: The login.
        fits: Returns whether a digest is the digest of the token that made the login.
    """

    login: Login
    fits: Callable[[bytes], bool]


@dataclass(slots=True)
class _Known:
    login: Login
    token_check: bytes
    used_at: float


class Logins:
    """The logins of a database.

    Args:
        database: The database that stores them.
        idle_seconds: How long a login lives without being used.
        remember_seconds: How long an answer of the database is cached; its end by another process may take as long to
            have effect.
        clock: Returns the time.
    """

    def __init__(
        self,
        database: Database,
        idle_seconds: float,
        *,
        remember_seconds: float = 2.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._known: FreshCache[bytes, _Known] = FreshCache(
            self._ask, remember_seconds=remember_seconds, clock=clock, max_entries=_REMEMBERED
        )
        self._used: dict[str, float] = {}
        self._later = Later(_FLUSH_SECONDS, self.flush)

    async def close(self) -> None:
        """Store what is still in memory."""
        await self._later.close()

    async def begin(
        self, key_id: str, token_digest: bytes, user_agent: str, ends_at: float | None = None
    ) -> tuple[Login, str]:
        """Begin a login, and return it with its cookie, which is nowhere else; of too many of a key the oldest end.

        It ends at `ends_at` at the latest, if that is earlier than its longest time.
        """
        now = self._clock()
        latest = now + LONGEST_SECONDS
        cookie = secrets.token_urlsafe(_SECRET_BYTES)
        login = Login(
            id=secrets.token_hex(_ID_BYTES),
            key_id=key_id,
            created_at=now,
            last_used_at=now,
            ends_at=latest if ends_at is None else min(latest, ends_at),
            user_agent=_readable(user_agent),
        )
        oldest = (
            select(LOGINS.c.id)
            .where(LOGINS.c.key_id == key_id)
            .order_by(LOGINS.c.last_used_at.desc())
            .offset(MAX_LOGINS_OF_KEY - 1)
        )

        async with self._database.writing("beginning a login", durable=True) as connection:
            await connection.execute(delete(LOGINS).where(self._is_over(now)))
            too_many = [row.id for row in (await connection.execute(oldest)).all()]
            await connection.execute(delete(LOGINS).where(LOGINS.c.id.in_(too_many)))
            values = {name: getattr(login, name) for name in login.__dataclass_fields__}
            values |= {"cookie_hash": _hash(cookie), "token_check": _check(cookie, token_digest)}
            await connection.execute(LOGINS.insert().values(values))

        self._known.forget_if(lambda known: known.login.id in too_many)
        return login, cookie

    async def find(self, cookie: str, *, is_use: bool = True) -> FoundLogin | None:
        """Return the login that a cookie belongs to, or None if there is none now; any text gets an answer.

        Only with `is_use` does the call count as use, which extends the login.
        """
        if not _COOKIE.fullmatch(cookie):
            return None

        cookie_hash, now = _hash(cookie), self._clock()
        known = await self._known.find(cookie_hash)

        if known is None or now >= min(known.login.ends_at, known.used_at + self._idle_seconds):
            return None

        if is_use:
            known.used_at = self._used[known.login.id] = now
            self._later.ask()

        token_check = known.token_check

        def fits(token_digest: bytes) -> bool:
            return hmac.compare_digest(token_check, _check(cookie, token_digest))

        return FoundLogin(known.login, fits)

    async def list(self, key_id: str) -> list[Login]:
        """Return the logins of a key that have not ended, the one that was used last first."""
        now = self._clock()
        query = select(LOGINS).where(LOGINS.c.key_id == key_id, ~self._is_over(now))

        async with self._database.reading("listing the logins") as connection:
            rows = (await connection.execute(query)).all()

        found = [_login(row, self._used.get(row.id, row.last_used_at)) for row in rows]
        return sorted(found, key=lambda login: login.last_used_at, reverse=True)

    async def end(self, key_id: str, login_id: str | None = None) -> int:
        """End a login of a key, or all of them; return how many there were. It counts at once in this process."""
        chosen = LOGINS.c.key_id == key_id

        if login_id is not None:
            chosen = chosen & (LOGINS.c.id == login_id)

        async with self._database.writing("ending a login", durable=True) as connection:
            count = (await connection.execute(delete(LOGINS).where(chosen))).rowcount

        self._known.forget_if(
            lambda known: known.login.key_id == key_id and login_id in (None, known.login.id)
        )
        return count

    async def flush(self) -> None:
        """Store when logins were last used."""
        used, self._used = self._used, {}

        if not used:
            return

        statement = (
            update(LOGINS)
            .where(LOGINS.c.id == bindparam("used_id"))
            .values(last_used_at=bindparam("used_at"))
        )
        rows = [{"used_id": login_id, "used_at": at} for login_id, at in sorted(used.items())]

        try:
            async with self._database.writing("storing when logins were used") as connection:
                await connection.execute(statement, rows)
        except BaseException:
            self._used = {**used, **self._used}
            raise

    def _is_over(self, now: float) -> Any:
        return or_(
            LOGINS.c.ends_at <= now, LOGINS.c.last_used_at <= now - self._idle_seconds - _FLUSH_SECONDS
        )

    async def _ask(self, cookie_hash: bytes) -> _Known | None:
        async with self._database.reading("looking up a login") as connection:
            query = select(LOGINS).where(LOGINS.c.cookie_hash == cookie_hash)
            row = (await connection.execute(query)).one_or_none()

        if row is None:
            return None

        used_at = self._used.get(row.id, row.last_used_at)
        return _Known(_login(row, used_at), row.token_check, used_at)


def _hash(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode()).digest()


def _check(cookie: str, token_digest: bytes) -> bytes:
    return hmac.digest(cookie.encode(), token_digest, "sha256")


def _readable(user_agent: str) -> str:
    return "".join(
        one if one.isprintable() and one.isascii() else "?" for one in user_agent[:_AGENT_CHARACTERS]
    )


def _login(row: Any, last_used_at: float) -> Login:
    return Login(
        id=row.id,
        key_id=row.key_id,
        created_at=row.created_at,
        last_used_at=last_used_at,
        ends_at=row.ends_at,
        user_agent=row.user_agent,
    )
