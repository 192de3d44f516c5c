"""Idempotency keys: done once, answered again, never done twice because somebody died."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import func, select, update

from fumehood.errors import InvalidArgumentError
from fumehood.storage.idempotency import (
    Begun,
    Idempotency,
    OtherRequest,
    OutcomeUnknown,
    StillRunning,
    StoredReply,
    digest_of,
)
from fumehood.storage.tables import IDEMPOTENCY, SERVERS

from .scenes import go, opened, start

DIGEST = digest_of([b"POST", b"/v1/execute", b"{}"])
HEADERS = {"content-type": "application/json", "x-é": "\u2028"}

BEGIN = """
from fumehood.storage.idempotency import Idempotency, digest_of
database = await open_database(sys.argv[1])
answer = await Idempotency(database).begin("k", "once", digest_of([b"POST", b"/v1/execute", b"{}"]))
print(type(answer).__name__, flush=True)
os._exit(0)
"""


async def test_the_life_of_a_request(database_url):
    async with opened(database_url) as database:
        requests = Idempotency(database)
        begun = await requests.begin("k", "once", DIGEST)
        assert isinstance(begun, Begun)
        assert await requests.begin("k", "once", DIGEST) == StillRunning()
        assert await requests.begin("k", "once", digest_of([b"other"])) == OtherRequest()
        assert isinstance(await requests.begin("another", "once", DIGEST), Begun)

        await requests.finish(begun, status=201, headers=HEADERS, body=b"\x00{}")
        assert await requests.begin("k", "once", DIGEST) == StoredReply(201, HEADERS, b"\x00{}")
        assert await requests.begin("k", "once", digest_of([b"other"])) == OtherRequest()

    async with opened(database_url) as database:
        assert await Idempotency(database).begin("k", "once", DIGEST) == StoredReply(201, HEADERS, b"\x00{}")


async def test_only_one_of_many_is_new(database_url):
    """The database decides, whoever asks at the same time."""
    async with opened(database_url) as one, opened(database_url) as other:
        answers = await asyncio.gather(
            *(Idempotency(database).begin("k", "once", DIGEST) for database in [one, other] * 10)
        )

    assert sorted(type(answer).__name__ for answer in answers) == ["Begun"] + ["StillRunning"] * 19


async def test_a_request_that_was_refused_may_be_sent_again(database_url):
    async with opened(database_url) as database:
        requests = Idempotency(database)
        await requests.withdraw(await requests.begin("k", "once", DIGEST))
        assert isinstance(await requests.begin("k", "once", DIGEST), Begun)


async def test_a_lost_request_is_unknown_from_then_on(database_url):
    async with opened(database_url) as database:
        requests = Idempotency(database)
        begun = await requests.begin("k", "once", DIGEST)
        await requests.lose(begun)
        assert await requests.begin("k", "once", DIGEST) == OutcomeUnknown()

        # What comes too late changes nothing.
        await requests.finish(begun, status=200, headers={}, body=b"")
        await requests.withdraw(begun)
        assert await requests.begin("k", "once", DIGEST) == OutcomeUnknown()


async def test_a_reply_that_is_too_large_is_known_to_have_been_given(database_url):
    async with opened(database_url) as database:
        requests = Idempotency(database, max_body_bytes=10)
        await requests.finish(
            await requests.begin("k", "a", DIGEST), status=200, headers=HEADERS, body=b"x" * 10
        )
        await requests.finish(
            await requests.begin("k", "b", DIGEST), status=200, headers=HEADERS, body=b"x" * 11
        )
        assert await requests.begin("k", "a", DIGEST) == StoredReply(200, HEADERS, b"x" * 10)
        assert await requests.begin("k", "b", DIGEST) == StoredReply(200, {}, None)


async def test_the_replies_to_a_key_are_bounded_together(database_url, clock):
    """The oldest are kept no longer, but nothing is done again; other keys have bounds of their own."""
    async with opened(database_url) as database:
        requests = Idempotency(database, max_kept_bytes=10_000, clock=clock)
        others = await requests.begin("other", "once", DIGEST)
        await requests.finish(others, status=200, headers={}, body=b"y" * 9000)

        for number in range(30):
            clock.now += 1
            begun = await requests.begin("k", str(number), DIGEST)
            await requests.finish(begun, status=200, headers={}, body=b"x" * 1000)

        replies = [await requests.begin("k", str(number), DIGEST) for number in range(30)]
        assert all(isinstance(reply, StoredReply) and reply.status == 200 for reply in replies)
        kept = [reply.body is not None for reply in replies]
        assert kept == [False] * (30 - sum(kept)) + [True] * sum(kept)
        assert 9 <= sum(kept) <= 11
        assert (await requests.begin("other", "once", DIGEST)).body == b"y" * 9000


async def test_after_a_day_the_key_is_free(database_url, clock):
    async with opened(database_url) as database:
        requests = Idempotency(database, clock=clock)
        await requests.finish(await requests.begin("k", "old", DIGEST), status=200, headers={}, body=b"")
        clock.now += 24 * 3600 - 1
        assert isinstance(await requests.begin("k", "old", DIGEST), StoredReply)
        clock.now += 1
        assert isinstance(await requests.begin("k", "old", digest_of([b"other"])), Begun)

        # The record of that day goes by itself when others come.
        clock.now += 24 * 3600
        await requests.finish(await requests.begin("k", "new", DIGEST), status=200, headers={}, body=b"")

        async with database.reading("counting") as connection:
            assert (await connection.execute(select(func.count()).select_from(IDEMPOTENCY))).scalar_one() == 1


async def test_a_request_whose_process_died_is_unknown_at_once(database_url):
    """Nobody waits for it, and nobody does it again."""
    assert go(start(BEGIN, database_url)) == [(0, "Begun\n")]

    async with opened(database_url) as database:
        assert await Idempotency(database).begin("k", "once", DIGEST) == OutcomeUnknown()


async def test_a_request_of_a_server_that_left_is_unknown(database_url):
    async with opened(database_url) as database:
        await Idempotency(database).begin("k", "once", DIGEST)

    async with opened(database_url) as database:
        assert await Idempotency(database).begin("k", "once", DIGEST) == OutcomeUnknown()


async def test_a_server_elsewhere_is_dead_when_it_is_silent(database_url):
    async with opened(database_url) as there, opened(database_url) as here:
        await Idempotency(there).begin("k", "once", DIGEST)

        async with here.writing("moving it to another machine") as connection:
            await connection.execute(update(SERVERS).values(place="another machine"))

        assert await Idempotency(here).begin("k", "once", DIGEST) == StillRunning()

        async with here.writing("letting time pass") as connection:
            await connection.execute(update(SERVERS).values(seen_at=SERVERS.c.seen_at - 61))

        assert await Idempotency(here).begin("k", "once", DIGEST) == OutcomeUnknown()


@pytest.mark.parametrize("key", ["a\x00b", "\ud800", "'; DROP TABLE keys; --", "é" * 1024, " "])
async def test_any_text_is_an_idempotency_key(database_url, key):
    async with opened(database_url) as database:
        requests = Idempotency(database)
        assert isinstance(await requests.begin("k", key, DIGEST), Begun)
        assert await requests.begin("k", key, DIGEST) == StillRunning()


@pytest.mark.parametrize("key", ["", "x" * 1025, None])
async def test_no_key_and_an_endless_one_are_refused(database_url, key):
    async with opened(database_url) as database:
        with pytest.raises(InvalidArgumentError, match="idempotency_key"):
            await Idempotency(database).begin("k", key, DIGEST)


def test_a_digest_keeps_the_borders_between_parts():
    assert digest_of([b"ab", b"c"]) != digest_of([b"a", b"bc"]) != digest_of([b"abc"])
