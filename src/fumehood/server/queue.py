"""Admission of stateless runs: a bounded number at once, the rest in a queue that is fair to every key.

Keys take turns, whatever the length of their queues, so that a flood of one key delays itself first. A run that cannot
be served in time is refused at once, or when its waiting time is over. It was not begun then, so it may be sent again.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fumehood.errors import OverloadedError, QueueTimeoutError
from fumehood.log import events

# The weight of the newest run in the running mean of how long one takes.
_MEAN_WEIGHT = 0.1


@dataclass(slots=True, eq=False)
class _Waiter:
    ready: asyncio.Future[None]
    since: float = field(default_factory=time.monotonic)


class FairQueue:
    """Places for runs, and the queue before them.

    Args:
        places: How many runs may be active at once.
        capacity: How many runs may wait.
    """

    def __init__(self, *, places: int, capacity: int) -> None:
        self.places = places
        self.capacity = capacity
        self.running = 0
        # Runs that were refused, and that have waited too long, since the start.
        self.refused = 0
        self.timed_out = 0
        self._waiting = 0
        # Keys in the order of their turns; the first one is served next and goes to the end.
        self._queues: OrderedDict[str, deque[_Waiter]] = OrderedDict()
        self._mean_seconds = 0.05

    def set_places(self, places: int) -> None:
        """Changes how many run at once; waiting runs begin if there are more places, and current runs continue."""
        self.places = places

        while self._waiting and self.running < self.places:
            self.running += 1
            self._leave()

    @property
    def waiting(self) -> int:
        """The number of runs that wait."""
        return self._waiting

    @property
    def waiting_by_key(self) -> dict[str, int]:
        """The number of waiting runs of each key that has any, in the order of the keys' turns."""
        return {key_id: len(queue) for key_id, queue in self._queues.items()}

    @property
    def mean_seconds(self) -> float:
        """The running mean of the duration of a run."""
        return self._mean_seconds

    @property
    def oldest_wait_seconds(self) -> float | None:
        """How long the longest waiting run has waited; None when none waits."""
        since = [queue[0].since for queue in self._queues.values()]
        return time.monotonic() - min(since) if since else None

    @asynccontextmanager
    async def place(self, key_id: str, timeout_seconds: float) -> AsyncGenerator[float, None]:
        """Holds a place while the block runs; yields how many seconds it took to get the place.

        Raises:
            OverloadedError: The queue is full, or the run could not begin in time.
            QueueTimeoutError: The waiting time is over.
        """
        begun = time.monotonic()
        await self._enter(key_id, timeout_seconds)
        started = time.monotonic()

        try:
            yield started - begun
        finally:
            taken = time.monotonic() - started
            self._mean_seconds += _MEAN_WEIGHT * (taken - self._mean_seconds)
            self._leave()

    def expected_seconds(self, key_id: str) -> float:
        """Estimates how long a new run of this key would wait."""
        if self.running < self.places:
            return 0.0

        # Each other key has its turn before this one has another.
        own = len(self._queues.get(key_id, ()))
        ahead = sum(min(len(queue), own + 1) for queue in self._queues.values())
        return (ahead + 1) * self._mean_seconds / self.places

    async def _enter(self, key_id: str, timeout_seconds: float) -> None:
        if self.running < self.places and not self._waiting:
            self.running += 1
            return

        expected = self.expected_seconds(key_id)

        # Twice the estimate, because it may be too low.
        if expected > 2 * timeout_seconds:
            error = OverloadedError(
                reason=f"a run would wait about {expected:.0f} s", retry_after_seconds=expected
            )
            self._log_refusal(key_id, error.message)
            raise error

        if self._waiting >= self.capacity:
            self._make_room(key_id, expected)

        await self._wait(key_id, timeout_seconds)

    def _make_room(self, key_id: str, expected_seconds: float) -> None:
        """Evicts the newest waiting run of the key with the most waiting runs, so that no key can fill the queue alone.

        Raises:
            OverloadedError: No other key has more waiting runs than this one would have.
        """
        error = OverloadedError(
            reason=f"{self._waiting} runs wait", retry_after_seconds=max(expected_seconds, 1.0)
        )
        longest = max(self._queues, key=lambda name: len(self._queues[name]), default=key_id)

        if len(self._queues.get(longest, ())) <= len(self._queues.get(key_id, ())) + 1:
            self._log_refusal(key_id, error.message)
            raise error

        self._log_refusal(longest, "evicted, to make room for another key")
        waiter = self._queues[longest][-1]
        self._forget(longest, waiter)

        # The waiting task may have been cancelled and not have noticed yet.
        if not waiter.ready.done():
            waiter.ready.set_exception(error)

    async def _wait(self, key_id: str, timeout_seconds: float) -> None:
        waiter = _Waiter(asyncio.get_running_loop().create_future())
        self._queues.setdefault(key_id, deque()).append(waiter)
        self._waiting += 1
        begun = time.monotonic()

        try:
            async with asyncio.timeout(timeout_seconds):
                await waiter.ready
        except BaseException as error:
            if not waiter.ready.done() or waiter.ready.cancelled():
                self._forget(key_id, waiter)
            elif waiter.ready.exception() is None:
                # The place was given in the same turn of the loop.
                self._leave()

            if isinstance(error, TimeoutError):
                self.timed_out += 1
                waited_seconds = time.monotonic() - begun
                events.QUEUE_TIMED_OUT.log(
                    key_id=key_id, waited_seconds=waited_seconds, waiting=self._waiting
                )
                raise QueueTimeoutError(waited_seconds=waited_seconds) from None

            raise

    def _log_refusal(self, key_id: str, reason: str) -> None:
        self.refused += 1
        events.QUEUE_OVERLOADED.log(
            key_id=key_id,
            reason=reason,
            waiting=self._waiting,
            running=self.running,
            capacity=self.capacity,
        )

    def _forget(self, key_id: str, waiter: _Waiter) -> None:
        queue = self._queues.get(key_id, deque())

        # A waiter that has left, or has made room, in the same turn may have removed it already.
        if waiter not in queue:
            return

        queue.remove(waiter)
        self._waiting -= 1

        if not queue:
            del self._queues[key_id]

    def _leave(self) -> None:
        """Gives the place to the next waiter, unless there are too many."""
        while self._queues and self.running <= self.places:
            key_id, queue = next(iter(self._queues.items()))
            waiter = queue.popleft()
            self._waiting -= 1

            if queue:
                self._queues.move_to_end(key_id)
            else:
                del self._queues[key_id]

            if not waiter.ready.done():
                waiter.ready.set_result(None)
                return

        self.running -= 1
