"""The rates of a server: who is refused, for how long, and who is not."""

from __future__ import annotations

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


def test_wrong_tokens_are_counted_by_address():
    """Other addresses go on, and so does a token that was right; after a while there is another attempt."""
    clock, refused = Clock(), []
    limits = RateLimits(wrong_tokens_per_minute=2, on_refusal=refused.append, clock=clock)

    with at("192.0.2.1"):
        limits.note_right(b"right")

        for _ in range(2):
            limits.check_attempt(b"wrong")
            limits.note_wrong(b"wrong")

        with pytest.raises(RateLimitError) as raised:
            limits.check_attempt(b"another")

        limits.check_attempt(b"right")

    with at("192.0.2.2"):
        limits.check_attempt(b"another")

    assert raised.value.retry_after_seconds == 30
    assert refused == ["wrong tokens from one address"]
    clock.now = 31

    with at("192.0.2.1"):
        limits.check_attempt(b"another")


def test_an_address_of_ipv6_is_its_network():
    limits = RateLimits(wrong_tokens_per_minute=1)

    with at("2001:db8::1"):
        limits.note_wrong(b"wrong")

    with at("2001:db8::2"), pytest.raises(RateLimitError):
        limits.check_attempt(b"wrong")

    with at("2001:db8:0:1::1"):
        limits.check_attempt(b"wrong")


def test_requests_are_counted_by_key_and_not_for_the_owner():
    limits = RateLimits(requests_per_minute=1)
    limits.count_request(Principal(key_id="a"))
    limits.count_request(Principal(key_id="b"))

    with pytest.raises(RateLimitError):
        limits.count_request(Principal(key_id="a"))

    for _ in range(3):
        limits.count_request(Principal(key_id=OWNER_ID))


def test_zero_is_no_bound():
    limits = RateLimits()

    for _ in range(100):
        limits.check_attempt(b"wrong")
        limits.note_wrong(b"wrong")
        limits.count_request(Principal(key_id="a"))
