"""Courtesy: a sandbox that keeps the processors busy makes way for those that ask for little.

Runs in the host process, on the engine's loop. Where several want a processor, the kernel gives each a turn of some
milliseconds; one that needs a tenth of a turn may wait for the whole turn of one that takes all it can get. So a
sandbox that takes much while processors are short gets a smaller share of them, until it has been quiet for a while.
Nothing is taken away where nobody waits: the share counts only against others that want the same processor.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

# How often it looks: at one figure while nobody waits for a processor, else at each guest. The kernel tells of no
# such thing by itself but to a thread of its own for each that asks.
_CALM_SECONDS = 0.5
_PRESSED_SECONDS = 0.25
# Short of processors: somebody waited for one for such a part of the time.
_PRESSED_PART = 0.05
# Processors that a guest has kept busy since the last look: much, and little.
_BUSY_CORES = 0.25
_QUIET_CORES = 0.05
_REST_SECONDS = 2.0
_PRESSURE = "/proc/pressure/cpu"
_MAX_FILE_BYTES = 4096


class Neighbour(Protocol):
    """A guest whose share can be made smaller."""

    def used_seconds(self) -> float | None:
        """The CPU time that it has used so far; None where nobody counts."""

    def make_way(self, makes_way: bool) -> None:
        """Gives it a small share of the processors, or its whole one."""


class Courtesy:
    """Looks after the guests of one template.

    Args:
        guests: Those that live, by their numbers.
    """

    def __init__(self, guests: Mapping[int, Neighbour]) -> None:
        self._guests = guests
        self._loop = asyncio.get_running_loop()
        # When it looked last, and how long somebody had waited by then.
        self._waited = self._loop.time(), _waited_seconds()
        # When each was looked at, and what it had used by then.
        self._used: dict[int, tuple[float, float]] = {}
        # When those who make way were busy last.
        self._making_way: dict[int, float] = {}
        self._timer = self._loop.call_later(_CALM_SECONDS, self._look)

    def close(self) -> None:
        """Looks no more."""
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()

        if self._is_pressed(now) or self._making_way:
            self._compare(now)
            pause_seconds = _PRESSED_SECONDS
        else:
            self._used.clear()
            pause_seconds = _CALM_SECONDS

        self._timer = self._loop.call_later(pause_seconds, self._look)

    def _is_pressed(self, now: float) -> bool:
        (then, before), self._waited = self._waited, (now, _waited_seconds())
        waited = self._waited[1]
        # Where nobody counts it may be.
        return waited is None or before is None or waited - before >= _PRESSED_PART * (now - then)

    def _compare(self, now: float) -> None:
        before, self._used = self._used, {}

        for number, guest in list(self._guests.items()):
            # It may be about to end.
            with suppress(OSError):
                seconds = guest.used_seconds()

                if seconds is None:
                    continue

                self._used[number] = now, seconds

                if number in before and before[number][0] < now:
                    then, had = before[number]
                    self._judge(number, guest, (seconds - had) / (now - then), now)

        self._making_way = {number: when for number, when in self._making_way.items() if number in self._used}

    def _judge(self, number: int, guest: Neighbour, cores: float, now: float) -> None:
        if cores >= _BUSY_CORES:
            if number not in self._making_way:
                guest.make_way(True)

            self._making_way[number] = now
            return

        has_rested = now - self._making_way.get(number, now) >= _REST_SECONDS

        if has_rested and cores <= _QUIET_CORES:
            guest.make_way(False)
            del self._making_way[number]


def _waited_seconds() -> float | None:
    """How long somebody has waited for a processor since the machine started; None where nobody counts."""
    try:
        fd = os.open(_PRESSURE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None

    try:
        some = os.read(fd, _MAX_FILE_BYTES).partition(b"\n")[0]
        return int(some.partition(b"total=")[2]) / 1e6
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)
