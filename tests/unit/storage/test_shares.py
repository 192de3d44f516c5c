"""Shares: what the database holds of them, when they end, and how many a key may have."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import select, update

from fumehood.errors import QuotaError
from fumehood.storage.shares import MAX_SHARES_OF_KEY, SharedPart, SharedView, ShareStore
from fumehood.storage.tables import SHARES

from .scenes import opened


def _view(*shows: SharedPart) -> SharedView:
    return SharedView(sandbox_id="box", context_id="default", shows=shows)


async def test_a_share_is_opened_by_its_secret_and_read_with_its_token(database_url, clock):
    """Neither is in the database; each server of it knows both, and no other text opens or reads it."""
    async with opened(database_url) as database:
        shares, others = ShareStore(database, clock=clock), ShareStore(database, clock=clock)
        made, secret = await shares.make("ada", _view("files", "record"), 60)
        assert made.shows == ("record", "files")
        found, token = await others.open(made.id, secret)
        assert (found.id, (await shares.find(token)).openings) == (made.id, 1)

        async with database.reading("looking") as connection:
            row = (await connection.execute(select(SHARES))).one()

        assert secret not in str(row)
        assert token not in str(row)

        for wrong in ("", secret, token[:-1], token.upper(), f"fhs_{made.id}_{'0' * 64}", "fhs_" + "\udcff"):
            assert await shares.find(wrong) is None

        for wrong in ("", token, secret[:-1], "A" * 43, "\udcff" * 43):
            assert await shares.open(made.id, wrong) is None

        clock.now += 60
        assert await shares.find(token) is None
        assert await shares.open(made.id, secret) is None
        assert await shares.list() == []


async def test_the_end_of_a_share_counts_at_once_here_and_soon_elsewhere(database_url, clock):
    """Another process caches what the database said for half a second."""
    async with opened(database_url) as database:
        shares, others = ShareStore(database, clock=clock), ShareStore(database, clock=clock)
        made, secret = await shares.make("ada", _view("record"), 60)
        _, token = await shares.open(made.id, secret)
        assert await shares.find(token) == await others.find(token)
        assert await shares.end(made.id, "eve") == 0
        assert await shares.find(token) is not None
        assert await shares.end(made.id, "ada") == 1
        assert await shares.find(token) is None
        clock.now += 0.6
        assert await others.find(token) is None


async def test_a_share_of_the_owner_ends_when_the_owner_has_another_token(database_url, clock):
    """It is not opened and not read then, and is there again with the old token; shares of keys are not bound so."""
    async with opened(database_url) as database:
        digests = ({"owner": b"old"}, {"owner": b"new"}, {"owner": b"old"})
        old, new, again = (ShareStore(database, given, clock=clock) for given in digests)
        made, secret = await old.make("owner", _view("record"), 60)
        other, other_secret = await old.make("ada", _view("record"), 60)
        _, token = await old.open(made.id, secret)
        _, other_token = await new.open(other.id, other_secret)
        assert await new.open(made.id, secret) is None
        assert await new.find(token) is None
        assert (await new.find(other_token)).id == other.id
        assert (await again.find(token)).id == made.id
        assert (await again.open(made.id, secret))[0].id == made.id


async def test_a_wrong_secret_begins_no_write(database_url, clock):
    """It is refused while another connection writes, for which opening with the right one waits."""
    async with opened(database_url) as database:
        shares = ShareStore(database, clock=clock)
        made, secret = await shares.make("ada", _view("record"), 60)

        async with database.writing("holding the turn") as connection:
            # So that a database that locks rows holds this one.
            await connection.execute(update(SHARES).values(openings=7))
            assert await asyncio.wait_for(shares.open(made.id, "A" * 43), 10) is None
            assert await asyncio.wait_for(shares.open("none", secret), 10) is None
            opening = asyncio.create_task(shares.open(made.id, secret))
            await asyncio.wait([opening], timeout=0.2)
            assert not opening.done()

        assert (await opening)[0].id == made.id
        assert (await shares.list("ada"))[0].openings == 8


async def test_a_key_has_so_many_shares(database_url, clock):
    """Those that have ended make room; those of other keys take none."""
    async with opened(database_url) as database:
        shares = ShareStore(database, clock=clock)

        async def make(key_id):
            return await shares.make(key_id, _view("record"), 60)

        for _ in range(MAX_SHARES_OF_KEY):
            await make("ada")

        with pytest.raises(QuotaError, match="200 of 200 shares"):
            await make("ada")

        await make("eve")
        assert len(await shares.list("ada")) == MAX_SHARES_OF_KEY
        assert len(await shares.list(sandbox_id="box")) == MAX_SHARES_OF_KEY + 1
        clock.now += 60
        await make("ada")
