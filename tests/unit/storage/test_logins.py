"""Logins: how long they live, what the database holds of them, and how many a key may have."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from fumehood.errors import RateLimitError, UnauthenticatedError
from fumehood.server.authenticator import TokenAuthenticator
from fumehood.server.rate_limits import RateLimits
from fumehood.storage.keys import Keys, token_digest
from fumehood.storage.logins import LONGEST_SECONDS, MAX_LOGINS_OF_KEY, Logins
from fumehood.storage.tables import LOGINS

from .scenes import opened

DIGEST = token_digest("fh_token")
IDLE = 3600.0


async def test_a_login_ends_when_it_is_not_used_and_after_a_week(database_url, clock):
    """Each use gives it the idle time again, up to the week; a use is stored, for other processes and later starts."""
    async with opened(database_url) as database:
        logins = Logins(database, IDLE, clock=clock)
        begun, cookie = await logins.begin("ada", DIGEST, "Browser\x1b[31m/1")
        _, unused = await logins.begin("ada", DIGEST, "")
        assert begun.user_agent == "Browser?[31m/1"

        for _ in range(int(LONGEST_SECONDS / (IDLE * 0.9))):
            clock.now += IDLE * 0.9
            assert await logins.find(cookie) is not None

        assert await logins.find(unused) is None
        await logins.flush()
        assert await Logins(database, IDLE, clock=clock).find(cookie) is not None
        assert [one.id for one in await logins.list("ada")] == [begun.id]
        clock.now = begun.created_at + LONGEST_SECONDS
        assert await logins.find(cookie) is None


async def test_a_look_is_no_use(database_url, clock):
    """A page that is open, and looked after by the server, keeps no login alive, and costs its key no request."""
    async with opened(database_url) as database:
        logins, keys = Logins(database, IDLE, clock=clock), Keys(database, clock=clock)
        made = await keys.create("ada")
        key_id = made.record.id
        _, cookie = await logins.begin(key_id, token_digest(made.token), "")
        authenticator = TokenAuthenticator("o" * 20, keys, RateLimits(requests_per_minute=1, clock=clock))

        for _ in range(4):
            assert (await authenticator.look(made.token)).key_id == key_id
            found = await logins.find(cookie, is_use=False)
            assert found is not None
            assert await authenticator.holder(key_id, found.fits, is_use=False) is not None
            clock.now += IDLE / 4

        assert await logins.find(cookie, is_use=False) is None
        await keys.flush()
        assert (await keys.get(key_id)).last_used_at is None
        # Control: a use is one.
        await authenticator.authenticate(made.token)

        with pytest.raises(RateLimitError):
            await authenticator.authenticate(made.token)

        await keys.revoke(key_id)

        with pytest.raises(UnauthenticatedError):
            await authenticator.look(made.token)


async def test_the_database_holds_no_cookie_and_no_digest(database_url, clock):
    """What is stored opens nothing, and cannot be compared with a guessed token."""
    async with opened(database_url) as database:
        logins = Logins(database, IDLE, clock=clock)
        _, cookie = await logins.begin("ada", DIGEST, "")

        async with database.reading("looking") as connection:
            (row,) = (await connection.execute(select(LOGINS))).all()

        stored = (row.cookie_hash, row.token_check)
        assert DIGEST not in stored
        assert cookie.encode() not in stored
        found = await logins.find(cookie)
        assert found is not None
        assert found.fits(DIGEST)
        assert not found.fits(token_digest("fh_other"))

        for other in ("", cookie[:-1], cookie + "A", "é" * 43, row.cookie_hash.hex()):
            assert await logins.find(other) is None


async def test_a_key_has_so_many_logins_and_ends_its_own_only(database_url, clock):
    """The one used longest ago makes room; ending all of a key leaves those of others."""
    async with opened(database_url) as database:
        logins = Logins(database, IDLE, clock=clock)
        _, of_other = await logins.begin("bob", DIGEST, "")
        cookies = []

        for _ in range(MAX_LOGINS_OF_KEY + 1):
            clock.now += 0.1
            cookies.append((await logins.begin("ada", DIGEST, ""))[1])

        assert await logins.find(cookies[0]) is None
        assert await logins.find(cookies[1]) is not None
        assert await logins.end("ada") == MAX_LOGINS_OF_KEY
        assert await logins.find(cookies[1]) is None
        assert await logins.find(of_other) is not None
