"""Memory that no control group is charged for: ends a sandbox for which the kernel holds too much of it.

The kernel charges neither connections that wait to be accepted nor record locks to a control group, and has no bound on
them. So this module reads two figures of the whole machine, a few times a second; only when one of them has risen, it
looks at each guest. Slow reads run in a thread. `CountedGuest` reads CPU time and memory from a guest's control group.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Protocol

from fumehood.runtimes.base import CpuTime, Guest
from fumehood_jail import cgroups


class CountedGuest(Guest):
    """A guest that may have a control group."""

    _cgroup: cgroups.Cgroup | None
    _last_oom_kills: int

    def cpu_time(self) -> CpuTime | None:
        """CPU time as counted by the cgroup."""
        if self._cgroup is None:
            return None

        user_seconds, system_seconds = self._cgroup.cpu_seconds()
        return CpuTime(user_seconds=user_seconds, system_seconds=system_seconds)

    def used_cpu_seconds(self) -> float | None:
        """Return the CPU time that the cgroup counts; None without a cgroup."""
        return None if self._cgroup is None else self._cgroup.used_seconds()

    def halve_cpu_weight(self, halved: bool) -> None:
        """Halve the CPU weight of the cgroup, or restore it; without a cgroup there is none."""
        if self._cgroup is not None:
            self._cgroup.halve_cpu_weight(halved)

    def process_ids(self) -> Iterable[int]:
        """Its pids on the host, from the cgroup; empty without a cgroup, or when it is gone."""
        try:
            return self._cgroup.processes() if self._cgroup is not None else ()
        except OSError:
            return ()

    def process_count(self) -> int | None:
        """Processes as counted by the cgroup; None without one."""
        return None if self._cgroup is None else len(list(self.process_ids()))

    def memory_bytes(self) -> int | None:
        """Memory in use as counted by the cgroup."""
        return None if self._cgroup is None else self._cgroup.memory_bytes()

    def peak_memory_bytes(self, *, restart: bool = False) -> int | None:
        """Peak memory as counted by the cgroup."""
        if self._cgroup is None:
            return None

        if restart:
            self._cgroup.reset_peak()
            return None

        return self._cgroup.peak_memory_bytes()

    def oom_kills(self) -> int:
        """Out-of-memory kills as counted by the cgroup."""
        return self._last_oom_kills if self._cgroup is None else self._cgroup.oom_kills()


# Bounds of one sandbox. A connection takes up to 50 KiB, a lock about 200 bytes.
MOST_WAITING_CONNECTIONS = 512
MOST_RECORD_LOCKS = 8192

_PAUSE_SECONDS = 0.25
# How often a guest is checked that is near a bound.
_SUSPECT_SECONDS = 1.0
# How far the machine's figure must rise before guests are checked.
_NEWS_SOCKETS = 256
_NEWS_BYTES = 4 << 20
# A guest with fewer sockets of all kinds cannot have too many waiting connections.
_FEW_SOCKETS = MOST_WAITING_CONNECTIONS // 2
_FEW_LOCKS = MOST_RECORD_LOCKS // 4

_SOCKETS = "/proc/net/sockstat"
_MEMORY = "/proc/meminfo"
_LOCKS = "/proc/locks"
_LISTENING = b"0A"
_PART_BYTES = 1 << 16


class Holder(Protocol):
    """A guest for which the kernel holds uncharged memory."""

    def on_excess(self) -> None:
        """Ends the guest, because the kernel holds too much memory for it."""

    def network_view(self) -> str | None:
        """The folder of /proc with the statistics of its network namespace.

        None if it has no network namespace, and so no sockets.
        """

    def process_ids(self) -> Iterable[int]:
        """Its pids on the host; empty where they are not known."""


class Uncharged:
    """Watches the guests of one template.

    Args:
        guests: The living guests, by their numbers.
    """

    def __init__(self, guests: Mapping[int, Holder]) -> None:
        self._guests = guests
        self._loop = asyncio.get_running_loop()
        self._socket_news = News(_NEWS_SOCKETS)
        self._memory_news = News(_NEWS_BYTES)
        # When the guests near a bound were last checked.
        self._many_sockets: dict[int, float] = {}
        self._many_locks: dict[int, float] = {}
        self._looking: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(_PAUSE_SECONDS, self._look)

    def close(self) -> None:
        """Stops the checks."""
        self._timer.cancel()

        if self._looking is not None:
            self._looking.cancel()

    def _look(self) -> None:
        self._timer = self._loop.call_later(_PAUSE_SECONDS, self._look)

        if self._looking is not None and not self._looking.done():
            return

        now = self._loop.time()
        sockets = self._holders_of_sockets(now)
        locks = self._holders_of_locks(now)

        if sockets or locks:
            self._looking = self._loop.create_task(self._compare(sockets, locks))

    def _holders_of_sockets(self, now: float) -> dict[int, str]:
        """Chooses the guests whose waiting connections must be counted; returns their folders in /proc."""
        is_news = self._socket_news.note(machine_sockets())
        self._many_sockets = {n: then for n, then in self._many_sockets.items() if n in self._guests}
        due = [n for n, then in self._many_sockets.items() if now - then >= _SUSPECT_SECONDS]
        chosen = {}

        for number in list(self._guests) if is_news else due:
            folder = self._guests[number].network_view()

            if folder is not None and sockets_of(folder) >= _FEW_SOCKETS:
                chosen[number] = folder
                self._many_sockets[number] = now
            else:
                self._many_sockets.pop(number, None)

        return chosen

    def _holders_of_locks(self, now: float) -> dict[int, list[int]]:
        """Chooses the guests whose locks are to be counted; returns their processes."""
        is_news = self._memory_news.note(machine_slab_bytes())
        self._many_locks = {n: then for n, then in self._many_locks.items() if n in self._guests}
        due = [n for n, then in self._many_locks.items() if now - then >= _SUSPECT_SECONDS]
        return {n: list(self._guests[n].process_ids()) for n in (list(self._guests) if is_news else due)}

    async def _compare(self, sockets: dict[int, str], locks: dict[int, list[int]]) -> None:
        most_rows = MOST_RECORD_LOCKS * (1 + len(self._guests))
        # At interpreter shutdown no thread can be started.
        with suppress(RuntimeError):
            waiting = {n: await asyncio.to_thread(waiting_connections, path) for n, path in sockets.items()}
            held = await asyncio.to_thread(locks_of, locks, most_rows) if locks else {}
            self._judge(waiting, held)

    def _judge(self, waiting: dict[int, int], held: dict[int, int]) -> None:
        for number, count in held.items():
            if count > _FEW_LOCKS:
                self._many_locks[number] = self._loop.time()
            else:
                self._many_locks.pop(number, None)

        too_many = {n for n, count in waiting.items() if count > MOST_WAITING_CONNECTIONS}
        too_many |= {n for n, count in held.items() if count > MOST_RECORD_LOCKS}

        for number in too_many:
            guest = self._guests.get(number)

            if guest is not None:
                guest.on_excess()


class News:
    """Detects when a figure has risen by some amount above its lowest value since the last detection.

    Args:
        amount: That amount.
    """

    def __init__(self, amount: int) -> None:
        self._amount = amount
        self._lowest: int | None = None

    def note(self, figure: int | None) -> bool:
        """Updates the figure; returns whether it has risen.

        Returns True for a figure that the kernel does not count.
        """
        if figure is None:
            return True

        if self._lowest is None or figure < self._lowest:
            self._lowest = figure

        if figure - self._lowest < self._amount:
            return False

        self._lowest = figure
        return True


def machine_sockets() -> int | None:
    """Returns the number of TCP sockets of the machine; None where they are not counted."""
    for line in _lines(_SOCKETS):
        words = line.split()

        if words[:1] == [b"TCP:"] and b"alloc" in words:
            return int(words[words.index(b"alloc") + 1])

    return None


def machine_slab_bytes() -> int | None:
    """Returns the bytes of unreclaimable kernel objects; None where they are not counted."""
    for line in _lines(_MEMORY):
        if line.startswith(b"SUnreclaim:"):
            return int(line.split()[1]) * 1024

    return None


def sockets_of(folder: str) -> int:
    """Returns the number of sockets of a network namespace, unaccepted ones included; 0 if it is gone."""
    for line in _lines(f"{folder}/sockstat"):
        if line.startswith(b"sockets: used "):
            return int(line.split()[2])

    return 0


def waiting_connections(folder: str) -> int:
    """Counts connections of a network namespace that wait to be accepted; stops once past the bound."""
    waiting = 0

    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(f"{folder}/{name}", "rb") as file:
            next(file, None)

            # Listening sockets come first. For them the kernel shows the backlog in place of the bytes to be read.
            for row in file:
                fields = row.split(maxsplit=5)

                if fields[3] != _LISTENING or waiting > MOST_WAITING_CONNECTIONS:
                    break

                waiting += int(fields[4].partition(b":")[2], 16)

    return waiting


def locks_of(holders: Mapping[int, Iterable[int]], most_rows: int) -> dict[int, int]:
    """Counts the record locks of each holder in the first rows of the kernel's table; stops once past the bound.

    The kernel blocks all locking of the machine for each page of rows that is read, so no more is read than needed.

    Args:
        holders: The processes of each holder.
        most_rows: The most rows of the table to read.
    """
    owners = {pid: holder for holder, pids in holders.items() for pid in pids}
    held = dict.fromkeys(holders, 0)

    with suppress(OSError), open(_LOCKS, "rb") as file:
        for index, row in enumerate(file):
            fields = row.split(maxsplit=5)

            if index >= most_rows:
                break

            holder = owners.get(int(fields[4])) if fields[1] == b"POSIX" else None

            if holder is not None:
                held[holder] += 1

                if held[holder] > MOST_RECORD_LOCKS:
                    break

    return held


def _lines(path: str) -> list[bytes]:
    """Reads a small file of /proc; returns an empty list if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []

    try:
        return os.read(fd, _PART_BYTES).splitlines()
    except OSError:
        return []
    finally:
        os.close(fd)
