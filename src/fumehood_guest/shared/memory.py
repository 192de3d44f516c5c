"""Memory: how much the processes of a sandbox hold, and the watcher that bounds it where no cgroup does.

Runs in init. A fork shares nearly all pages with its parent, and each page must count once: the kernel divides them
among their sharers, but only reports this to processes that may trace. Contexts are in Landlock domains that are not
nested in init's, so the watcher reads through a thread that was started before init entered its own domain. That thread
is confined in every other way, and does nothing but read these files: all of init's work for the host is done under
Landlock. It must never follow anything but /proc entries of this PID namespace.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from queue import SimpleQueue
from typing import Callable, Dict, Iterable, List, Optional

from fumehood_guest.shared.proc_files import read_proc

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# The lines of smaps_rollup about memory that the end of a process would free.
_HELD = (b"Pss_Anon:", b"Pss_Shmem:")
_GROWING_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 0.25
# The watcher pauses this many times as long as a check took, up to the longest pause.
_REST_FACTOR = 8
# The cheap count lags behind on machines with many processors: trusted for this long, and up to half of the limit.
_TRUSTED_SECONDS = 1.0


class MemoryWatcher:
    """Bounds the memory of a sandbox: checks at intervals, and names the process to kill.

    Args:
        limit_bytes: The most that all processes may hold together.
        processes: Returns their pids.
    """

    def __init__(self, limit_bytes: int, processes: Callable[[], Iterable[int]]) -> None:
        self._limit_bytes = limit_bytes
        self._processes = processes
        self._questions: SimpleQueue[List[int]] = SimpleQueue()
        self._answers: SimpleQueue[Dict[int, int]] = SimpleQueue()
        self._last_resident_bytes = 0
        self._last_bytes = 0
        self._next_look = 0.0
        self._next_exact_look = 0.0

    def start(self) -> None:
        """Starts the thread, which keeps the rights that the caller has now, and gets no signals.

        A signal that init has blocked for itself, to read it from a descriptor, would be delivered to this thread.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            threading.Thread(target=self._serve, daemon=True).start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def weigh(self, pids: Iterable[int]) -> Dict[int, int]:
        """Returns the memory of each process as read by the thread; waits for it, so that the two never run at once."""
        self._questions.put(list(pids))
        return self._answers.get()

    def pause_ms(self) -> int:
        """Returns how long init may sleep before the next check."""
        return max(1, round((self._next_look - time.monotonic()) * 1000))

    def over_limit(self) -> Optional[int]:
        """Checks if it is due; returns the pid of the largest process when the limit is exceeded."""
        started = time.monotonic()

        if started < self._next_look:
            return None

        pids = list(self._processes())
        resident_bytes = sum(map(_resident_bytes, pids))
        is_growing = resident_bytes > self._last_resident_bytes
        self._last_resident_bytes = resident_bytes
        largest = None

        # This sum counts shared pages more than once, so it is never too low. The exact count takes a hundred times as
        # long.
        if 2 * resident_bytes > self._limit_bytes or started >= self._next_exact_look:
            sizes = self.weigh(pids)
            total_bytes = sum(sizes.values())
            is_growing = is_growing or total_bytes > self._last_bytes
            self._last_bytes = total_bytes
            self._next_exact_look = started + _TRUSTED_SECONDS

            if total_bytes > self._limit_bytes:
                largest = max(sizes, key=lambda pid: sizes[pid])

        now = time.monotonic()
        rest_seconds = _REST_FACTOR * (now - started)
        shortest_seconds = _GROWING_SECONDS if is_growing else _LONGEST_PAUSE_SECONDS
        self._next_look = now + min(max(shortest_seconds, rest_seconds), _LONGEST_PAUSE_SECONDS)
        return largest

    def _serve(self) -> None:
        try:
            while True:
                self._answers.put(weigh(self._questions.get()))
        finally:
            # The memory would no longer be bounded.
            os._exit(1)


def weigh(pids: Iterable[int]) -> Dict[int, int]:
    """Returns the memory of each process, as far as the calling thread may read it."""
    return {pid: _held_bytes(pid) for pid in pids}


def _held_bytes(pid: int) -> int:
    """Returns the memory that the end of this process would free: its share of anonymous and shared memory."""
    try:
        lines = read_proc(f"/proc/{pid}/smaps_rollup").split(b"\n")
    except OSError:
        # The process may have made itself unreadable; then its whole resident memory counts.
        return _resident_bytes(pid)

    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(_HELD))


def _resident_bytes(pid: int) -> int:
    try:
        return int(read_proc(f"/proc/{pid}/statm").split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0
