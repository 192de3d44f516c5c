"""A token bucket: how many events may happen at once, and how many in the long run.

Pure but for the clock that it is given. Used wherever a guest or a client could cause events without an end: entries of
the audit record, wrong tokens, requests with one key.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """Full at first; each event takes one token, and tokens come back at a constant rate.

    Args:
        size: The number of tokens in a full bucket.
        per_second: The number of tokens that come back in a second.
        clock: Returns the time in seconds.
    """

    __slots__ = ("_clock", "_counted_at", "_left", "_per_second", "_size")

    def __init__(self, size: float, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = size
        self._per_second = per_second
        self._clock = clock
        self._left = size
        self._counted_at = clock()

    def missing_seconds(self) -> float:
        """Returns the seconds until a token is available; 0 if one is available now."""
        return max(0.0, (1 - self._refilled()) / self._per_second)

    def take(self) -> bool:
        """Takes a token and returns True; with less than a whole token, changes nothing and returns False."""
        if self._refilled() < 1:
            return False

        self._left -= 1
        return True

    def _refilled(self) -> float:
        now = self._clock()
        self._left = min(self._size, self._left + (now - self._counted_at) * self._per_second)
        self._counted_at = now
        return self._left
