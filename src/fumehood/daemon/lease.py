"""The lease of a machine of a cluster: how long its sandboxes may count on not being made again elsewhere.

Runs in the host daemon; it only computes. A sandbox with `on_host_loss="restore"` is made again elsewhere once a server
has called it lost, which is a minute after the cluster has given its machine up. The machine itself may be alive and
merely cut off, so it ends such sandboxes when its lease is over, which is earlier.

Each answer to a server that asks for figures carries a token: the moment of the answer, by the daemon's own clock. A
server sends the token back only if it has seen afterwards that the machine is still in the cluster, and the lease then
lasts `LEASE_SECONDS` from the moment in the token. So no delay on the way makes it longer, and no two clocks are
compared. The clock also counts while the machine is suspended.

A lease that is over begins again with a token. Nothing that may be restored elsewhere lives on from before that moment:
the engine made none meanwhile, and ended what there was.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

# A server waits longer than this, and the time that ending takes, before it calls a sandbox lost.
LEASE_SECONDS = 45.0


def boot_seconds() -> float:
    """Returns the seconds since the machine was started, in which it was suspended included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """The lease of this run of the daemon; there is none before a server of a cluster has asked for figures.

    Args:
        incarnation: The name of this run: tokens of others are void.
        clock: Returns the seconds of a clock that only moves forward.
    """

    def __init__(self, incarnation: str, clock: Callable[[], float] = boot_seconds) -> None:
        self._incarnation = incarnation
        self._clock = clock
        self._ends_at: float | None = None
        self._began_again_at = -math.inf

    def token(self) -> str:
        """Returns the token of this moment."""
        return f"{self._incarnation}.{self._clock():.3f}"

    def note_request(self, token: str) -> None:
        """Takes a request for figures, with the token of an earlier answer or "": begins or extends the lease."""
        now, was_over = self._clock(), self.is_over

        if self._ends_at is None:
            self._ends_at = now + LEASE_SECONDS

        incarnation, _, moment = token.partition(".")

        if incarnation == self._incarnation and (asked_at := _number(moment)) is not None and asked_at <= now:
            self._ends_at = max(self._ends_at, asked_at + LEASE_SECONDS)

        if was_over and not self.is_over:
            self._began_again_at = now

    def leave(self) -> None:
        """Ends a lease that is over for good: there is none until a server of a cluster asks for figures again."""
        if self.is_over:
            self._ends_at, self._began_again_at = None, self._clock()

    def was_over_since(self, token: str) -> bool:
        """Whether the lease was over after the moment of a token, so that nothing restorable lives from then."""
        incarnation, _, moment = token.partition(".")
        given_at = _number(moment)
        return incarnation == self._incarnation and given_at is not None and given_at < self._began_again_at

    @property
    def is_over(self) -> bool:
        """Whether there was a lease, and it has ended."""
        return self._ends_at is not None and self._clock() > self._ends_at


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
