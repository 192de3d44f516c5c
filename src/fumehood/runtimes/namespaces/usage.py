"""Uncharged: ends a sandbox for which the kernel holds more memory than it may that no control group is charged for.

The kernel charges neither connections that wait to be accepted nor record locks to a control group, and has no bound
on them. So it looks at two figures of the whole machine, a few times a second; only when one of them has risen, at
each guest. What takes longer is read in a thread.

Figures of a guest by its control group: what both Linux runtimes report of CPU time and memory.
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
        """CPU time by the cgroup's count."""
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
        """Its processes as the host numbers them, by the cgroup's list; none where there is none, or it has gone."""
        try:
            return self._cgroup.processes() if self._cgroup is not None else ()
        except OSError:
            return ()

    def memory_bytes(self) -> int | None:
        """Memory by the cgroup's count."""
        return None if self._cgroup is None else self._cgroup.memory_bytes()

    def peak_memory_bytes(self, *, restart: bool = False) -> int | None:
        """Peak by the cgroup's count."""
        if self._cgroup is None:
            return None

        if restart:
            self._cgroup.reset_peak()
            return None

        return self._cgroup.peak_memory_bytes()

    def oom_kills(self) -> int:
        """Kills by the cgroup's count."""
        return self._last_oom_kills if self._cgroup is None else self._cgroup.oom_kills()


# What a sandbox may have. A connection holds up to 50 KiB, a lock about 200 bytes.
MOST_WAITING_CONNECTIONS = 512
MOST_RECORD_LOCKS = 8192

_PAUSE_SECONDS = 0.25
# How often a guest is looked at that has much but not too much.
_SUSPECT_SECONDS = 1.0
# What must have come to the machine's count before guests are looked at.
_NEWS_SOCKETS = 256
_NEWS_BYTES = 4 << 20
# A guest that has fewer sockets of all kinds cannot have too many connections waiting.
_FEW_SOCKETS = MOST_WAITING_CONNECTIONS // 2
_FEW_LOCKS = MOST_RECORD_LOCKS // 4

_SOCKETS = "/proc/net/sockstat"
_MEMORY = "/proc/meminfo"
_LOCKS = "/proc/locks"
_LISTENING = b"0A"
_PART_BYTES = 1 << 16


class Holder(Protocol):
    """A guest for which the kernel holds something."""

    def on_excess(self) -> None:
        """Ends it, because the kernel holds too much for it."""

    def network_view(self) -> str | None:
        """The folder of /proc that tells of its own network namespace; None where it has none, and no sockets."""

    def process_ids(self) -> Iterable[int]:
        """Its processes as the host numbers them; none where nobody knows them."""


class Uncharged:
    """Looks after the guests of one template.

    Args:
        guests: Those that live, by their numbers.
    """

    def __init__(self, guests: Mapping[int, Holder]) -> None:
        self._guests = guests
        self._loop = asyncio.get_running_loop()
        self._socket_news = News(_NEWS_SOCKETS)
        self._memory_news = News(_NEWS_BYTES)
        # When those guests were looked at last that have much.
        self._many_sockets: dict[int, float] = {}
        self._many_locks: dict[int, float] = {}
        self._looking: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(_PAUSE_SECONDS, self._look)

    def close(self) -> None:
        """Looks no more."""
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
        """Chooses the guests whose waiting connections are to be counted, and says where."""
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
        """Chooses the guests whose locks are to be counted, and says which processes are theirs."""
        is_news = self._memory_news.note(machine_slab_bytes())
        self._many_locks = {n: then for n, then in self._many_locks.items() if n in self._guests}
        due = [n for n, then in self._many_locks.items() if now - then >= _SUSPECT_SECONDS]
        return {n: list(self._guests[n].process_ids()) for n in (list(self._guests) if is_news else due)}

    async def _compare(self, sockets: dict[int, str], locks: dict[int, list[int]]) -> None:
        most_rows = MOST_RECORD_LOCKS * (1 + len(self._guests))
        # The interpreter may be about to end, and start no thread any more.
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
    """Tells when a figure has risen by some amount above the lowest since it last did.

    Args:
        amount: That amount.
    """

    def __init__(self, amount: int) -> None:
        self._amount = amount
        self._lowest: int | None = None

    def note(self, figure: int | None) -> bool:
        """Takes note of the figure as it is now; where nobody counts, it may have risen."""
        if figure is None:
            return True

        if self._lowest is None or figure < self._lowest:
            self._lowest = figure

        if figure - self._lowest < self._amount:
            return False

        self._lowest = figure
        return True


def machine_sockets() -> int | None:
    """How many TCP sockets all processes of the machine have; None where nobody counts."""
    for line in _lines(_SOCKETS):
        words = line.split()

        if words[:1] == [b"TCP:"] and b"alloc" in words:
            return int(words[words.index(b"alloc") + 1])

    return None


def machine_slab_bytes() -> int | None:
    """How much memory the kernel holds for objects that it cannot give back; None where nobody counts."""
    for line in _lines(_MEMORY):
        if line.startswith(b"SUnreclaim:"):
            return int(line.split()[1]) * 1024

    return None


def sockets_of(folder: str) -> int:
    """How many sockets of all kinds a network namespace has, with those that nobody has accepted; 0 if it has gone."""
    for line in _lines(f"{folder}/sockstat"):
        if line.startswith(b"sockets: used "):
            return int(line.split()[2])

    return 0


def waiting_connections(folder: str) -> int:
    """How many connections of a network namespace wait to be accepted; counts no further than past the bound."""
    waiting = 0

    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(f"{folder}/{name}", "rb") as file:
            next(file, None)

            # Those that listen come first. Of them the kernel gives the number in place of the bytes to be read.
            for row in file:
                fields = row.split(maxsplit=5)

                if fields[3] != _LISTENING or waiting > MOST_WAITING_CONNECTIONS:
                    break

                waiting += int(fields[4].partition(b":")[2], 16)

    return waiting


def locks_of(holders: Mapping[int, Iterable[int]], most_rows: int) -> dict[int, int]:
    """How many record locks each holder has, by the first rows of the kernel's table; no further than past the bound.

    The kernel stops all locking of the machine for each page of rows that is read, so nothing is read in vain.

    Args:
        holders: The processes of each.
        most_rows: How much of the table is read at most.
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
    """Reads a small file of /proc; nothing if it cannot be read."""
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
