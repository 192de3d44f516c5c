"""Gathers lines that follow one another within a few milliseconds, and sends them together.

A frame for each line would cost more than printing it. A line after a pause is sent at once; a thread sends the waiting
lines when the code stops printing. The thread exists only while lines come fast, and never beside a fork or at the end
of a cell.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import os
import sys
import threading
import time
from typing import Any, List, Optional, Protocol, Tuple

from fumehood_guest.context.bursts import Burst
from fumehood_guest.context.channel import Receipt
from fumehood_guest.context.outlet import CHUNK_CHARACTERS
from fumehood_guest.context.signals import ALL_SIGNALS

# After a pause of this length a line is sent at once, and waiting lines are due.
_GATHER_SECONDS = 0.005
_GATHER_CHARACTERS = 8 * 1024
# With more than this no burst begins, which takes 7 KiB itself.
_MOST_WAITING_CHARACTERS = 1024
# This many lines of a burst are sent one by one before any waits.
_MAX_SINGLE_LINES = 16
# How often the thread checks whether the code has stopped printing; the code itself checks at each line.
_LOOK_SECONDS = 0.02
# The thread ends after so many checks without a waiting line.
_MAX_VAIN_LOOKS = 5
_MAX_WAITS_FOR_END = 200
# These start or signal other programs, which may write to the same place: earlier output must be sent first.
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
    """One run of the thread."""

    def __init__(self) -> None:
        # Released to make the thread end.
        self.end_wanted = _thread.allocate_lock()
        self.end_wanted.acquire()
        # Held while the thread runs.
        self.running = _thread.allocate_lock()
        self.running.acquire()
        self.thread_id: Optional[int] = None


class GatheredStreams(Protocol):
    """The part of the pair of streams that `Gathering` uses.

    Attributes:
        lock: Held while one of the streams is written to or sent.
        gathering: The waiting lines of both; a forked child gets a new object.
    """

    lock: threading.RLock
    gathering: Gathering

    @property
    def is_detached(self) -> bool:
        """Whether this process was forked by user code, and sends nothing itself."""

    def end_burst(self) -> None:
        """Gathers the lines in the burst of the stream that was written to last. The caller holds the lock."""

    def send_gathered(self) -> None:
        """Sends the waiting lines. The caller holds the lock."""

    def pull_bursts(self) -> bool:
        """Takes over what bursts buffer; returns whether there is any text."""

    def flush(self) -> None:
        """Sends pending text of both, in the order of writing."""


class Gathering:
    """The waiting lines, all from the stream that was written to last. The caller holds the lock of the streams.

    Args:
        streams: The pair of streams.
    """

    def __init__(self, streams: GatheredStreams) -> None:
        self._streams = streams
        self._clock = time.monotonic
        self._sleep = time.sleep
        self._exists = os.path.exists
        self._count_threads = _thread._count
        self._set_mask = _signal.pthread_sigmask
        self._lines: List[str] = []
        self._characters = 0
        # Lines that are being sent: from `_next` on they were not, unless the receipt says that this one has gone.
        self._chunks: List[str] = []
        self._next = 0
        self._receipt = Receipt()
        # How many lines were sent one by one since the last pause.
        self._single_lines = 0
        self._sent_at = 0.0
        self._watch: Optional[_Watch] = None
        self._is_hooked = False

    def take(self, line: str) -> bool:
        """Adds a line; returns whether all waiting lines are due."""
        is_late = self._clock() - self._sent_at >= _GATHER_SECONDS

        if is_late and not self._lines:
            self._single_lines = 0

        self._characters += len(line)
        self._lines.append(line)

        if is_late:
            return True

        if self._single_lines < _MAX_SINGLE_LINES:
            self._single_lines += 1
            return True

        if self._characters >= _GATHER_CHARACTERS:
            return True

        # Without the thread no line may wait.
        return self._watch is None and not self._begin_watch()

    def allows_burst(self) -> bool:
        """Whether the thread sends waiting lines, is the only thread besides the main one, and few lines wait yet."""
        # A thread counts once it runs, which the id of the watch shows: before that the one may be another that prints.
        is_alone = (
            self._watch is not None and self._watch.thread_id is not None and self._count_threads() == 1
        )
        return is_alone and self._characters <= _MOST_WAITING_CHARACTERS

    def add(self, burst: Burst) -> str:
        """Adds the lines that a burst has taken; returns what follows the last of them, an unfinished line."""
        lines = self._lines
        count = len(lines)
        burst.move_to(lines)
        text = "".join(lines[count:])
        end = text.rfind("\n") + 1
        whole = [text[:end]] if end else []
        rest = text[end:]
        lines[count:] = whole
        self._characters += end
        return rest

    def next_chunk(self) -> Tuple[str, Receipt]:
        """Returns the next text to be sent, at most `CHUNK_CHARACTERS` of it and empty if none waits, with its receipt.

        As long as the receipt does not say that it was sent, the same text is returned again.
        """
        fresh = Receipt()

        # Handlers run at the end of a call, and at the start of a function: none divides assignments in a row.
        if self._receipt.is_sent:
            self._next, self._receipt = self._next + 1, fresh

        if self._next >= len(self._chunks):
            text = "".join(self._lines)
            chunks = [text[at : at + CHUNK_CHARACTERS] for at in range(0, len(text), CHUNK_CHARACTERS)]
            self._chunks, self._next, self._lines, self._characters = chunks, 0, [], 0

        return (self._chunks[self._next] if self._chunks else "", self._receipt)

    def note_sent(self) -> None:
        """Records when the lines were sent."""
        self._sent_at = self._clock()

    def rest(self) -> None:
        """Ends the thread, and returns when the kernel has removed it. The caller does not hold the lock."""
        watch = self._watch

        if watch is None:
            return

        try:
            watch.end_wanted.release()
        except RuntimeError:
            pass  # another thread has requested it already

        with watch.running:
            pass

        for _ in range(_MAX_WAITS_FOR_END):
            if not self._exists(f"/proc/self/task/{watch.thread_id}"):
                break

            self._sleep(0.0001)

    def _begin_watch(self) -> bool:
        """Starts the thread; returns False if none can be started or this is a forked child."""
        if self._streams.is_detached:
            return False

        if not self._is_hooked:
            self._is_hooked = True
            sys.addaudithook(self._hear)

        # The thread starts with all signals blocked: a signal delivered to it would run its handler between two cells.
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
        """Sends lines that are due; ends after a while without any."""
        try:
            watch.thread_id = _thread.get_native_id()
            vain_looks = 0
            lock = self._streams.lock

            while not watch.end_wanted.acquire(timeout=_LOOK_SECONDS):
                # The lock's holder writes, and sends what is due; or it waits in `rest` for this thread to end.
                if not lock.acquire(blocking=False):
                    continue

                try:
                    self._streams.end_burst()
                    vain_looks = 0 if self._waits() else vain_looks + 1

                    if self._waits() and self._clock() - self._sent_at >= _GATHER_SECONDS:
                        self._streams.send_gathered()

                    if vain_looks >= _MAX_VAIN_LOOKS:
                        # With the lock held: a line that comes now starts another thread.
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
        if event not in _STARTS or self._streams.gathering is not self:
            return

        if self._waits() or self._streams.pull_bursts():
            self._streams.flush()

    def _waits(self) -> bool:
        return bool(self._lines) or self._next < len(self._chunks)
