"""The clock of one sandbox: it stops while the sandbox is paused, with all its timers and the measure of idle time.

Every time limit of a sandbox or in it must use this clock and no other, so that a pause takes no time from any of them.
It follows the monotonic clock of the machine: setting the time of day does not affect it. A call under way counts as
use, however long it is silent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Timer:
    """A callback that is scheduled on the clock of a sandbox."""

    def __init__(self, clock: SandboxClock, due_at: float, action: Callable[[], object]) -> None:
        self.due_at = due_at
        self.handle: asyncio.TimerHandle | None = None
        self._clock = clock
        self._action = action

    def cancel(self) -> None:
        """Cancels the callback."""
        if self.handle is not None:
            self.handle.cancel()

        self._clock.forget(self)

    def fire(self) -> None:
        """Runs the callback."""
        self._clock.forget(self)
        self._action()


class SandboxClock:
    """A clock that can be stopped."""

    def __init__(self) -> None:
        self._behind_seconds = 0.0
        self._stopped_at: float | None = None
        self._timers: set[Timer] = set()
        self._going = asyncio.Event()
        self._going.set()
        self._stopped = asyncio.Event()

    @property
    def is_stopped(self) -> bool:
        """True while the sandbox is paused."""
        return self._stopped_at is not None

    @property
    def stood_still_seconds(self) -> float:
        """The total time that the clock has been stopped."""
        if self._stopped_at is not None:
            return time.monotonic() - self._stopped_at

        return self._behind_seconds

    def time(self) -> float:
        """Returns seconds, which do not advance while the clock is stopped."""
        if self._stopped_at is not None:
            return self._stopped_at

        return time.monotonic() - self._behind_seconds

    def call_later(self, seconds: float, action: Callable[..., object], *arguments: Any) -> Timer:
        """Calls `action` with the arguments after a time by this clock; returns the timer, which can be cancelled."""
        timer = Timer(self, self.time() + seconds, lambda: action(*arguments))
        self._timers.add(timer)

        if not self.is_stopped:
            self._arm(timer)

        return timer

    async def wait(self, *futures: asyncio.Future[Any], seconds: float) -> None:
        """Returns when one of the futures is done, or after a time by this clock."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, over.set_result, None)
        try:
            await asyncio.wait([*futures, over], return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()

    async def while_going(self, future: asyncio.Future[Any]) -> None:
        """Returns when the future is done, or when the clock is stopped."""
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait([future, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()

    async def going(self) -> None:
        """Returns when the clock is running."""
        await self._going.wait()

    def stop(self) -> None:
        """Stops the clock."""
        if self._stopped_at is not None:
            return

        self._stopped_at = self.time()
        self._going.clear()
        self._stopped.set()

        for timer in self._timers:
            if timer.handle is not None:
                timer.handle.cancel()

    def start(self) -> None:
        """Continues from the time at which it was stopped."""
        if self._stopped_at is None:
            return

        self._behind_seconds = time.monotonic() - self._stopped_at
        self._stopped_at = None
        self._stopped.clear()
        self._going.set()

        for timer in self._timers:
            self._arm(timer)

    def forget(self, timer: Timer) -> None:
        """Removes a timer."""
        self._timers.discard(timer)

    def _arm(self, timer: Timer) -> None:
        loop = asyncio.get_running_loop()
        timer.handle = loop.call_later(max(0.0, timer.due_at - self.time()), timer.fire)


class Idleness:
    """When one sandbox was last used.

    Args:
        clock: The sandbox's clock.
    """

    def __init__(self, clock: SandboxClock) -> None:
        self._clock = clock
        self._last_used = clock.time()
        self._under_way = 0

    @property
    def seconds(self) -> float:
        """The seconds without a call; 0 during one."""
        return 0.0 if self._under_way else self._clock.time() - self._last_used

    def touch(self) -> None:
        """Records a use."""
        self._last_used = self._clock.time()

    @contextmanager
    def during_call(self) -> Iterator[None]:
        """Counts as use while the block runs."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self.touch()
