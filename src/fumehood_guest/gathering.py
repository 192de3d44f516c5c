"""Gathering: lines that code prints in quick succession, sent to the host together.

Runs in a context. A line after a pause is sent at once, and so are the first lines of a burst; only those that go on
faster than that wait for one another, for a few milliseconds or until there is enough of them. While lines wait, a
thread sees to it that they leave when the code falls silent; it exists for that time only, since a context is forked
with one thread. What waits leaves before anything else is seen: the other stream, a display, a question, a call of
a tool, the end of the cell, a fork or the start of a program. A process that ends without warning takes along what
waits: at most 8 KiB.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import os
import sys
import time
from typing import TYPE_CHECKING, Any, List, Optional, Tuple

from fumehood_guest.signals import ALL_SIGNALS

if TYPE_CHECKING:
    from fumehood_guest.streams import Streams

# After a pause of this length a line is sent at once, and what waits has waited long enough.
_GATHER_SECONDS = 0.005
_GATHER_CHARACTERS = 8 * 1024
# So many lines of a burst are sent each by itself before any waits.
_MAX_SINGLE_LINES = 16
# How often the thread looks whether the code has fallen silent; the code itself looks at each line.
_LOOK_SECONDS = 0.02
# After so many looks that find nothing the thread ends.
_MAX_VAIN_LOOKS = 5
_MAX_WAITS_FOR_END = 200
# Other programs may write to the same place: what was printed before they start comes first.
_STARTS = frozenset(
    (
        "subprocess.Popen",
        "os.system",
        "os.posix_spawn",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.kill",
        "os.killpg",
    )
)


class _Watch:
    """One life of the thread."""

    def __init__(self) -> None:
        # Released: the thread is to end.
        self.end_wanted = _thread.allocate_lock()
        self.end_wanted.acquire()
        # Held while the thread runs.
        self.running = _thread.allocate_lock()
        self.running.acquire()
        self.thread_id: Optional[int] = None


class Gathering:
    """The lines that wait, all of the stream that was written last. Its caller holds the lock of the streams.

    Args:
        streams: The pair of streams.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._clock = time.monotonic
        self._sleep = time.sleep
        self._exists = os.path.exists
        self._set_mask = _signal.pthread_sigmask
        self._lines: List[str] = []
        self._characters = 0
        # How many were sent each by itself since the last pause.
        self._single_lines = 0
        self._sent_at = 0.0
        self._watch: Optional[_Watch] = None
        self._is_hooked = False

    def take(self, line: str) -> bool:
        """Takes a line; returns whether it is time to send all that is there."""
        is_late = self._clock() - self._sent_at >= _GATHER_SECONDS

        if is_late and not self._lines:
            self._single_lines = 0

        self._lines.append(line)
        self._characters += len(line)

        if is_late:
            return True

        if self._single_lines < _MAX_SINGLE_LINES:
            self._single_lines += 1
            return True

        if self._characters >= _GATHER_CHARACTERS:
            return True

        # Without the thread nothing may wait.
        return self._watch is None and not self._begin_watch()

    def hand_over(self) -> str:
        """Returns all that waits, and forgets it."""
        lines, self._lines = self._lines, []
        self._characters = 0
        return "".join(lines)

    def note_sent(self) -> None:
        """What was handed over has left."""
        self._sent_at = self._clock()

    def rest(self) -> None:
        """Ends the thread, and returns when the kernel has forgotten it. The caller does not hold the lock."""
        watch = self._watch

        if watch is None:
            return

        try:
            watch.end_wanted.release()
        except RuntimeError:
            pass  # somebody else ends it, too

        with watch.running:
            pass

        for _ in range(_MAX_WAITS_FOR_END):
            if not self._exists(f"/proc/self/task/{watch.thread_id}"):
                break

            self._sleep(0.0001)

    def _begin_watch(self) -> bool:
        """Starts the thread; false where there is no room for one, or where it may not be."""
        if self._streams.outlet.is_detached:
            return False

        if not self._is_hooked:
            self._is_hooked = True
            sys.addaudithook(self._hear)

        # The thread is born with all signals blocked: one that it took would run its handler between two cells.
        mask = self._set_mask(_signal.SIG_BLOCK, ())
        try:
            self._set_mask(_signal.SIG_BLOCK, ALL_SIGNALS)
            self._watch = watch = _Watch()
            _thread.start_new_thread(self._look, (watch,))
        except RuntimeError:
            self._watch = None
            return False
        finally:
            self._set_mask(_signal.SIG_SETMASK, mask)

        return True

    def _look(self, watch: _Watch) -> None:
        """Sends what has waited long enough, until there is nothing for a while."""
        try:
            watch.thread_id = _thread.get_native_id()
            vain_looks = 0
            lock = self._streams.lock

            while not watch.end_wanted.acquire(timeout=_LOOK_SECONDS):
                # Its holder writes, and sends when it is time; it may also be waiting in `rest` for this thread to end.
                if not lock.acquire(blocking=False):
                    continue

                try:
                    vain_looks = 0 if self._lines else vain_looks + 1

                    if self._lines and self._clock() - self._sent_at >= _GATHER_SECONDS:
                        self._streams.last_written.send_pending()

                    if vain_looks >= _MAX_VAIN_LOOKS:
                        # Still with the lock: a line that comes now starts another one.
                        self._forget(watch)
                        return
                finally:
                    lock.release()
        finally:
            self._forget(watch)
            watch.running.release()

    def _forget(self, watch: _Watch) -> None:
        if self._watch is watch:
            self._watch = None

    def _hear(self, event: str, _arguments: Tuple[Any, ...]) -> None:
        if event in _STARTS and self._lines and self._streams.gathering is self:
            self._streams.flush()
