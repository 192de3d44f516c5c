"""Shares of the engine's loop: data from one sandbox keeps the loop busy for a bounded time, then others are served.

Every reader of a guest's bytes registers here instead of at the loop. A reader works for one turn of about two
milliseconds. A sandbox has a small credit of loop time, refilled at a rate; while the credit lasts its readers run as
soon as their descriptors are ready. A sandbox without credit, or with more work than one turn, is queued: the loop
runs one queued turn in each of its iterations, round robin over the sandboxes. On an idle loop the queued sandbox
therefore still gets nearly all of the time, and a busy loop gives it the rest. While sandboxes that are not queued are
served, queued turns are a millisecond apart.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from weakref import WeakKeyDictionary

# How long a reader may work before it returns to the loop.
TURN_SECONDS = 0.002
# How long a queued turn may take: shorter, since each iteration of the loop runs one.
_QUEUED_TURN_SECONDS = 0.0005
# Loop time that a sandbox may use at once, and the share of the loop's time that refills it; those that are queued
# divide that share among themselves.
_CREDIT_SECONDS = 0.05
_REFILL_RATE = 0.2
# A debt beyond this is not remembered: the sandbox has paid by then.
_MAX_DEBT_SECONDS = 0.1
# One frame may cost more than a turn. The sandbox then pauses for this many times as long.
_LONG_TURN_SECONDS = 0.005
_LONG_TURN_PAUSE = 3.0
# When other work kept the loop busy for longer than this, the queue leaves the loop to it for twice as long again.
_BUSY_SECONDS = 0.001
_BUSY_PAUSE = 2.0
_MAX_BUSY_PAUSE_SECONDS = 0.02
# While sandboxes that are not queued use the loop, it sleeps between two queued turns, as briefly as it can. A loop
# that never sleeps keeps the interpreter's lock: a thread that has called it gets the lock only after the switch
# interval of 5 ms, several times for each call.
_SHARED_PAUSE_SECONDS = 0.001
# How long the loop counts as used by others after one of their readers has run.
_SHARED_HOLD_SECONDS = 0.05

Reader = Callable[[], bool]


class _Queue:
    """The sandboxes of one loop that wait for a turn."""

    def __init__(self) -> None:
        self._waiting: deque[LoopShare] = deque()
        self._handle: asyncio.Handle | None = None
        self._asked_at = 0.0
        self._is_shared_until = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, share: LoopShare) -> None:
        """Queues a sandbox that is not queued yet."""
        self._waiting.append(share)

        if self._handle is None:
            self._ask()

    def note_other(self) -> None:
        """Records that a sandbox outside the queue uses the loop."""
        self._is_shared_until = time.monotonic() + _SHARED_HOLD_SECONDS

    def _ask(self) -> None:
        self._asked_at = time.monotonic()
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        # The loop did not sleep in between: all of this time went to the work of others.
        now = time.monotonic()
        others_seconds = now - self._asked_at

        if others_seconds > _BUSY_SECONDS:
            pause = min(_BUSY_PAUSE * others_seconds, _MAX_BUSY_PAUSE_SECONDS)
        elif now < self._is_shared_until:
            pause = _SHARED_PAUSE_SECONDS
        else:
            self._turn()
            return

        self._handle = asyncio.get_running_loop().call_later(pause, self._turn)

    def _turn(self) -> None:
        self._handle = None
        now = time.monotonic()
        soonest = min((share.pauses_until for share in self._waiting), default=0.0)

        if soonest > now:
            self._handle = asyncio.get_running_loop().call_later(soonest - now, self._turn)
            return

        while self._waiting and self._waiting[0].pauses_until > now:
            self._waiting.rotate(-1)

        try:
            if self._waiting:
                self._waiting.popleft().take_turn()
        finally:
            # The turn may have queued a sandbox itself, and asked for the next turn.
            if self._waiting and self._handle is None:
                self._ask()


# A queue must not refer to its loop, which could then never be freed.
_QUEUES: WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue] = WeakKeyDictionary()


class LoopShare:
    """The share of the loop that one sandbox has, and the readers of its descriptors.

    Attributes:
        pauses_until: When a queued sandbox may have its next turn, by the monotonic clock in seconds.
    """

    def __init__(self) -> None:
        self.pauses_until = 0.0
        self._loop = asyncio.get_running_loop()
        self._queue = _QUEUES.setdefault(self._loop, _Queue())
        self._is_queued = False
        self._readers: dict[int, Reader] = {}
        # Descriptors that are not watched by the loop, as they wait for their turn.
        self._waiting: deque[int] = deque()
        self._credit_seconds = _CREDIT_SECONDS
        self._credited_at = time.monotonic()
        self._turn_ends = 0.0
        # The queue of callbacks that the loop runs next, if its implementation has one.
        self._ready_handles: deque[asyncio.Handle] | None = getattr(self._loop, "_ready", None)

    def add_reader(self, fd: int, reader: Reader) -> None:
        """Calls a reader whenever a descriptor is ready and the sandbox has its turn.

        Args:
            fd: The descriptor.
            reader: Reads from it without blocking, until `is_turn_over`. Returns true when it has more to do although
                the descriptor may not become ready again; it is then called in a later turn.
        """
        self._readers[fd] = reader
        self._loop.add_reader(fd, self._ready, fd)

    def remove_reader(self, fd: int) -> None:
        """Stops the calls for a descriptor; must be called before it is closed. A second call does nothing."""
        if self._readers.pop(fd, None) is None:
            return

        if fd in self._waiting:
            self._waiting.remove(fd)
        else:
            self._loop.remove_reader(fd)

    def call_again(self, fd: int) -> None:
        """Calls the reader of a descriptor in a later turn, even if the descriptor does not become ready again."""
        if fd in self._readers and fd not in self._waiting:
            self._loop.remove_reader(fd)
            self._wait(fd)

    def is_turn_over(self) -> bool:
        """Whether the reader that runs now should return."""
        return time.monotonic() >= self._turn_ends

    def take_turn(self) -> None:
        """Runs one of the waiting readers; called by the queue."""
        self._is_queued = False

        if not self._waiting:
            return

        fd = self._waiting.popleft()
        has_more = False
        try:
            has_more = self._run(fd, _QUEUED_TURN_SECONDS)
        finally:
            if has_more and fd not in self._waiting:
                self._waiting.append(fd)
            elif fd in self._readers and fd not in self._waiting:
                self._loop.add_reader(fd, self._ready, fd)

            if self._waiting:
                self._enter_queue()

    def _ready(self, fd: int) -> None:
        if self._is_out_of_credit():
            self.call_again(fd)
            return

        if len(self._queue) > self._is_queued:
            self._queue.note_other()

        handles = self._ready_handles
        is_alone = not handles

        if self._run(fd, TURN_SECONDS):
            self.call_again(fd)
            return

        if handles is not None and is_alone and len(handles) == 1:
            # The only task that waited for this runs at once: the loop would poll for other events first.
            handle = handles.popleft()

            if not handle.cancelled():
                handle._run()

    def _run(self, fd: int, seconds: float) -> bool:
        """Runs a reader and charges its CPU time to the sandbox; returns whether it has more to do."""
        self._turn_ends = time.monotonic() + seconds
        # CPU time and not wall time: the reader is not charged for other work of the machine.
        began = time.thread_time()
        try:
            has_more = self._readers[fd]()
        finally:
            self._charge(time.thread_time() - began)

        return has_more and fd in self._readers

    def _wait(self, fd: int) -> None:
        self._waiting.append(fd)
        self._enter_queue()

    def _enter_queue(self) -> None:
        if not self._is_queued:
            self._is_queued = True
            self._queue.add(self)

    def _charge(self, seconds: float) -> None:
        self._credit_seconds = max(self._credit_seconds - seconds, -_MAX_DEBT_SECONDS)

        if seconds > _LONG_TURN_SECONDS:
            self.pauses_until = time.monotonic() + _LONG_TURN_PAUSE * seconds

    def _is_out_of_credit(self) -> bool:
        now = time.monotonic()
        rate = _REFILL_RATE / max(1, len(self._queue))
        refilled = self._credit_seconds + (now - self._credited_at) * rate
        self._credit_seconds = min(refilled, _CREDIT_SECONDS)
        self._credited_at = now
        return self._credit_seconds <= 0.0
