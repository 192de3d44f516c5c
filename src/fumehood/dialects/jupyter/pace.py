"""How fast messages of WebSockets are taken: none of them keeps the server's loop from its other work.

A connection has a credit of processor time for its messages, which is refilled slowly. Without credit it waits after
each message, and the connections that wait divide one small share of the loop's time. Nothing is lost: what is not
taken stays in the connection, and its client waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

# Processor time of one connection at once. Some hundreds of messages of ordinary size.
_CREDIT_SECONDS = 0.1
# Part of the loop's time that refills a credit, and that all connections without credit divide among themselves. The
# answers to what they ask take several times as long as taking it.
_PART = 0.04
# The longest time without a return to the loop.
_TURN_SECONDS = 0.002


class SharedPace:
    """What the connections without credit have in common."""

    def __init__(self) -> None:
        self._free_at = 0.0

    def delay_seconds(self, used_seconds: float) -> float:
        """Returns how long a connection waits that has used so much processor time."""
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + used_seconds / _PART
        return self._free_at - now


class ConnectionPace:
    """The pace of one connection.

    Args:
        shared: Of all connections.
    """

    def __init__(self, shared: SharedPace) -> None:
        self._shared = shared
        self._credit_seconds = _CREDIT_SECONDS
        self._refilled_at = time.monotonic()
        self._used_seconds = 0.0
        self._turn_seconds = 0.0

    @contextmanager
    def charged(self) -> Iterator[None]:
        """Charges the connection with the processor time of the block, which must not wait."""
        began = time.thread_time()
        try:
            yield
        finally:
            self._used_seconds += time.thread_time() - began

    async def wait(self) -> None:
        """Waits until the connection may take its next message."""
        used, self._used_seconds = self._used_seconds, 0.0
        now = time.monotonic()
        refilled = self._credit_seconds + (now - self._refilled_at) * _PART
        self._credit_seconds = min(refilled, _CREDIT_SECONDS) - used
        self._refilled_at = now

        if self._credit_seconds <= 0:
            # Paid by waiting.
            self._credit_seconds = 0.0
            await asyncio.sleep(self._shared.delay_seconds(used))
            self._refilled_at = time.monotonic()
            return

        self._turn_seconds += used

        if self._turn_seconds > _TURN_SECONDS:
            self._turn_seconds = 0.0
            await asyncio.sleep(0)
