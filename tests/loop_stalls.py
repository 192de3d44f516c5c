"""How long the engine's loop was held up: the processor time that its thread used between two beats.

Processor time and not time of the clock: on a busy machine the thread may not run for a while, which is no stall of the
loop. What one callback computes for seconds is found on any machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fumehood.portal import shared_portal

_BEAT_SECONDS = 0.002


class LoopStalls:
    """Measures the loop while it is entered; `longest_seconds` is what it has found."""

    def __init__(self) -> None:
        self.longest_seconds = 0.0
        self._last = 0.0
        self._handle: asyncio.TimerHandle | None = None
        self._is_over = False

    def begin(self) -> None:
        """Begins to measure; in the loop's thread."""
        self._last = time.thread_time()
        self._handle = asyncio.get_running_loop().call_later(_BEAT_SECONDS, self._beat)

    def end(self) -> None:
        """Ends it; in the loop's thread."""
        self._is_over = True

    def _beat(self) -> None:
        now = time.thread_time()
        self.longest_seconds = max(self.longest_seconds, now - self._last)
        self._last = now

        if not self._is_over:
            self._handle = asyncio.get_running_loop().call_later(_BEAT_SECONDS, self._beat)


@contextmanager
def loop_stalls() -> Iterator[LoopStalls]:
    """Measures the loop of this process's engine."""
    stalls, loop = LoopStalls(), shared_portal().loop
    loop.call_soon_threadsafe(stalls.begin)
    try:
        yield stalls
    finally:
        loop.call_soon_threadsafe(stalls.end)
