"""The token bucket: a burst, then a rate."""

from __future__ import annotations

from fumehood.token_bucket import TokenBucket


def test_a_burst_passes_and_then_a_rate():
    """As many events as the bucket is large pass at once, and later as many as have come back."""
    now = 0.0
    bucket = TokenBucket(3, 2.0, lambda: now)

    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
    assert bucket.missing_seconds() == 0.5

    now = 0.5
    assert bucket.take()
    assert not bucket.take()

    now = 100.0
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]


def test_a_refused_event_costs_nothing():
    """An event that is refused does not put off the next one that passes."""
    now = 0.0
    bucket = TokenBucket(1, 1.0, lambda: now)
    assert bucket.take()

    now = 0.9
    assert not bucket.take()
    assert bucket.missing_seconds() < 0.11
