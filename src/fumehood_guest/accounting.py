"""Accounting: what the processes of a sandbox use, seen from inside through its own /proc.

Runs in init. Where the host has a memory cgroup these figures are for show; where it has none,
`MemoryWatcher` is what bounds memory. It must never follow anything but /proc entries of this PID namespace.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_INIT_PID = 1
_STATUS_BYTES = 1 << 14


def processes() -> Iterator[int]:
    """Yields the pids of this sandbox, without init."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != _INIT_PID:
            yield int(name)


def kill_tree(leader: int) -> None:
    """Kills a process, all of its session and all that descends from either.

    What has cut both ties (a double fork and a new session) is an orphan of init and ends with the sandbox.
    """
    for pid in [*_session_members(leader), leader]:
        kill(pid)


def kill(pid: int) -> None:
    """Kills a process, unless it has ended already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _session_members(leader: int) -> List[int]:
    parents: Dict[int, Tuple[int, int]] = {}

    for pid in processes():
        fields = _stat_fields(pid)

        if fields:
            parents[pid] = (int(fields[1]), int(fields[3]))

    return [pid for pid in parents if pid != leader and _leads_to(pid, leader, parents)]


def _leads_to(pid: int, leader: int, parents: Dict[int, Tuple[int, int]]) -> bool:
    while pid in parents:
        parent, session = parents[pid]

        if leader in (parent, session):
            return True

        pid = parent

    return False


def metrics() -> Dict[str, Any]:
    """Returns memory, CPU time, processes and threads, and disk use of the whole sandbox."""
    memory_bytes = 0
    cpu_ticks = 0
    count = 0

    for pid in (_INIT_PID, *processes()):
        fields = _stat_fields(pid)

        if fields:
            count += int(fields[17])
            memory_bytes += _private_bytes(pid)
            cpu_ticks += sum(int(part) for part in fields[11:15])

    disk = os.statvfs("/tmp")  # noqa: S108 - the one writable filesystem
    return {
        "memory_bytes": memory_bytes,
        "cpu_seconds": cpu_ticks / _TICKS_PER_SECOND,
        "processes": count,
        "disk_used_bytes": (disk.f_blocks - disk.f_bfree) * disk.f_frsize,
        "disk_total_bytes": disk.f_blocks * disk.f_frsize,
        "inodes_used": disk.f_files - disk.f_ffree,
    }


def applied_restrictions() -> Dict[str, Any]:
    """Returns what the kernel says is in force on this very process; the isolation level is computed from it."""
    # Read as bytes and without a file object: this is on the way of every new context, and what it touches is
    # copied.
    fd = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
    lines = os.read(fd, _STATUS_BYTES).split(b"\n")
    os.close(fd)
    capabilities = 0
    found = {"no_new_privileges": False, "seccomp_mode": 0, "groups": 0, "pid": os.getpid()}

    for line in lines:
        if line.startswith(b"Cap"):
            capabilities |= int(line[8:], 16)
        elif line.startswith(b"NoNewPrivs:"):
            found["no_new_privileges"] = int(line[12:]) == 1
        elif line.startswith(b"Seccomp:"):
            found["seccomp_mode"] = int(line[9:])
        elif line.startswith(b"Groups:"):
            found["groups"] = len(line[7:].split())

    return {**found, "capabilities": capabilities}


class MemoryWatcher:
    """Bounds the memory of a sandbox where no cgroup does: looks now and then, and names who must go."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._last_bytes = 0
        self._growing = True
        self._next_look = 0.0

    def interval_ms(self) -> int:
        """How long init may sleep before it must look again."""
        return 50 if self._growing else 250

    def over_limit(self) -> Optional[int]:
        """Looks if it is time to; returns the pid of the largest process when the limit is exceeded."""
        now = time.monotonic()

        if now < self._next_look:
            return None

        sizes = {pid: _private_bytes(pid) for pid in processes()}
        total = sum(sizes.values())
        self._growing = total > self._last_bytes
        self._last_bytes = total
        self._next_look = now + self.interval_ms() / 1000

        return max(sizes, key=lambda pid: sizes[pid]) if total > self._limit_bytes else None


def _private_bytes(pid: int) -> int:
    """Memory that would be freed with this process: its share of anonymous and shared memory, not of files."""
    total_kib = 0
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            for line in file:
                if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                    total_kib += int(line.split()[1])
    except OSError:
        # A process may have made itself unreadable; then all that it has in memory counts.
        return _resident_bytes(pid)

    return total_kib * 1024


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


def _stat_fields(pid: int) -> List[str]:
    """Fields of /proc/PID/stat after the name, which may hold anything: state, ppid, pgrp, session, ..."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []
