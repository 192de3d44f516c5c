"""The rates of a server: who is refused, for how long, and who is not."""

from __future__ import annotations

import asyncio

import pytest

from fumehood.errors import RateLimitError
from fumehood.server.principal import OWNER_ID, Principal
from fumehood.server.rate_limits import RateLimits, client_of


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def at(address: str):
    return client_of({"type": "http", "client": (address, 1)})


async def attempt(limits: RateLimits, digest: bytes, *, is_right: bool = False) -> None:
    async with limits.attempt(digest):
        await asyncio.sleep(0)  # the database is asked
        if is_right:
            limits.note_right(digest, "key")
        else:
            limits.note_wrong(digest)


def test_wrong_tokens_are_counted_by_address():
    """Other addresses go on, and so does a token that was right; after a while there is another attempt."""

    async def scene() -> None:
        clock, refused = Clock(), []
        limits = RateLimits(wrong_tokens_per_minute=2, on_refusal=refused.append, clock=clock)

        with at("192.0.2.1"):
            limits.note_right(b"right", "key")

            for _ in range(2):
                await attempt(limits, b"wrong")

            with pytest.raises(RateLimitError) as raised:
                await attempt(limits, b"another")

            await attempt(limits, b"right", is_right=True)

        with at("192.0.2.2"):
            await attempt(limits, b"another")

        assert raised.value.retry_after_seconds == 30
        assert refused == ["wrong tokens from one address"]
        clock.now = 31

        with at("192.0.2.1"):
            await attempt(limits, b"another")

    asyncio.run(scene())


def test_wrong_tokens_that_come_at_once_are_counted_one_by_one():
    """All of them would pass a check that is made before the first is counted."""

    async def scene() -> None:
        limits = RateLimits(wrong_tokens_per_minute=2, clock=Clock())

        with at("192.0.2.1"):
            tried = await asyncio.gather(
                *(attempt(limits, b"%d" % number) for number in range(20)), return_exceptions=True
            )

        assert [type(one) for one in tried].count(RateLimitError) == 18

    asyncio.run(scene())


def test_right_tokens_that_come_at_once_all_pass():
    """The control: as many callers as there are, all of them seen for the first time."""

    async def scene() -> None:
        limits = RateLimits(wrong_tokens_per_minute=2, clock=Clock())

        with at("192.0.2.1"):
            await asyncio.gather(*(attempt(limits, b"%d" % number, is_right=True) for number in range(20)))

    asyncio.run(scene())


def test_an_address_of_ipv6_is_its_network():
    async def scene() -> None:
        limits = RateLimits(wrong_tokens_per_minute=1)

        with at("2001:db8::1"):
            await attempt(limits, b"wrong")

        with at("2001:db8::2"), pytest.raises(RateLimitError):
            await attempt(limits, b"wrong")

        with at("2001:db8:0:1::1"):
            await attempt(limits, b"wrong")

    asyncio.run(scene())


def test_visits_use_up_nothing_of_the_key():
    """Who visits what a key has signed is not its holder."""
    limits = RateLimits(requests_per_minute=1)
    key = Principal(key_id="a")
    limits.count_visit(key)

    with pytest.raises(RateLimitError):
        limits.count_visit(key)

    limits.count_request(key)
    limits.count_visit(Principal(key_id="b"))


def test_requests_are_counted_by_key_and_not_for_the_owner():
    limits = RateLimits(requests_per_minute=1)
    limits.count_request(Principal(key_id="a"))
    limits.count_request(Principal(key_id="b"))

    with pytest.raises(RateLimitError):
        limits.count_request(Principal(key_id="a"))

    for _ in range(3):
        limits.count_request(Principal(key_id=OWNER_ID))


def test_zero_is_no_bound():
    async def scene() -> None:
        limits = RateLimits()

        for _ in range(100):
            await attempt(limits, b"wrong")
            limits.count_request(Principal(key_id="a"))
            limits.count_visit(Principal(key_id="a"))

    asyncio.run(scene())


def test_the_shares_of_a_key_have_one_rate_besides_that_of_each():
    """Many shares do not get around the rate of their key; another key's and the owner's go on, and so does the key."""
    clock, refused = Clock(), []
    limits = RateLimits(requests_per_minute=3, on_refusal=refused.append, clock=clock)
    ada, eve, owner = (Principal(key_id=name) for name in ("ada", "eve", OWNER_ID))

    for number in range(3):
        limits.count_reading(f"share {number}", ada)

    with pytest.raises(RateLimitError, match="shares of one key"):
        limits.count_reading("share 3", ada)

    assert refused == ["requests of the shares of one key"]
    limits.count_request(ada)
    limits.count_reading("another", eve)

    for _ in range(10):
        limits.count_reading("of the owner", owner)

    clock.now += 20
    limits.count_reading("share 3", ada)
