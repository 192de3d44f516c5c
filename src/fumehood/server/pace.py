"""The pace of connections: each has a credit of time on the server's loop, and waits when it is used up.

What a message costs is measured as processor time of the loop's thread, and paid by waiting after it. A connection that
is within its credit does not wait.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

# Processor time of one connection at once. Some hundreds of messages of ordinary size.
_CREDIT_SECONDS = 0.1
# The longest time that a connection may work before the loop runs again.
TURN_SECONDS = 0.002
# For how long a connection counts among those that divide what refills credits.
_ACTIVE_SECONDS = 1.0


class SharedPace:
    """The state that all connections without credit share.

    Args:
        part: The part of the loop's time that refills a credit, and that all connections without credit share.
    """

    def __init__(self, part: float) -> None:
        self._part = part
        self._free_at = 0.0
        # When each connection was last charged, the latest last.
        self._charged_at: OrderedDict[ConnectionPace, float] = OrderedDict()

    def refill_part(self, connection: ConnectionPace, now: float) -> float:
        """Returns the part of the loop's time that refills the credit of a connection that is charged now.

        The connections that were charged in the last second divide the part: with one for each of them, some dozens of
        connections together could use all of the loop's time without ever being out of credit.
        """
        self._charged_at[connection] = now
        self._charged_at.move_to_end(connection)

        while next(iter(self._charged_at.values())) < now - _ACTIVE_SECONDS:
            self._charged_at.popitem(last=False)

        return self._part / len(self._charged_at)

    def delay_seconds(self, used_seconds: float) -> float:
        """Returns how long a connection must wait after using this much processor time."""
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + used_seconds / self._part
        return self._free_at - now


class ConnectionPace:
    """The pace of one connection.

    Args:
        shared: The state that all connections share.
        credit_seconds: How much processor time the connection may use at once.
    """

    def __init__(self, shared: SharedPace, credit_seconds: float = _CREDIT_SECONDS) -> None:
        self._shared = shared
        self._most_seconds = self._credit_seconds = credit_seconds
        self._refilled_at = time.monotonic()
        self._used_seconds = 0.0
        self._turn_seconds = 0.0

    @contextmanager
    def charged(self) -> Iterator[None]:
        """Charges the connection for the processor time that the block uses; the block must not await."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.charge(time.thread_time() - began)

    def charge(self, seconds: float) -> None:
        """Charges the connection with this much processor time."""
        self._used_seconds += seconds

    @property
    def is_used_up(self) -> bool:
        """Whether the connection had no credit left when it was last charged."""
        return self._credit_seconds <= 0

    def delay_seconds(self) -> float:
        """Returns how long the connection must wait for what it was charged with; 0 within its credit.

        Without credit a turn is paid at once: to wait for each message costs more than most messages.
        """
        if self._credit_seconds <= 0 and self._used_seconds < TURN_SECONDS:
            return 0.0

        used, self._used_seconds = self._used_seconds, 0.0
        now = time.monotonic()
        part = self._shared.refill_part(self, now)
        refilled = self._credit_seconds + max(0.0, now - self._refilled_at) * part
        self._credit_seconds = min(refilled, self._most_seconds) - used
        self._refilled_at = now

        self._turn_seconds += used

        if self._credit_seconds > 0:
            return 0.0

        # Paid by waiting, during which nothing is refilled.
        self._credit_seconds = 0.0
        delay = self._shared.delay_seconds(used)
        self._refilled_at = now + delay
        return delay

    async def wait(self) -> None:
        """Waits until the connection may take its next message."""
        delay = self.delay_seconds()

        if delay or self._turn_seconds > TURN_SECONDS:
            self._turn_seconds = 0.0
            await asyncio.sleep(delay)
