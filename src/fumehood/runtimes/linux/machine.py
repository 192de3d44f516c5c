"""The capacity of a Linux machine: memory, of the machine or of the host's own control group, and processors.

Runs in the host process and only reads. A control group that bounds the host bounds its sandboxes too, and so does each
ancestor group; page cache that can be dropped at once counts as free.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from fumehood.runtimes.base import Room
from fumehood_jail import cgroups

_MAX_FILE_BYTES = 1 << 16
# Version 1 expresses "no limit" as a number larger than any machine's memory.
_NO_LIMIT_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class _Bound:
    """The files of one control group with its memory limit, usage and statistics."""

    limit: str
    used: str
    statistics: str
    droppable: bytes


class LinuxRoom:
    """Reads the machine's capacity; the control groups that bound this process are looked up once."""

    def __init__(self) -> None:
        self._bounds = [_bound(folder, version) for version, folder in cgroups.memory_folders()]

    def read(self) -> Room:
        """Reads the values of the machine again."""
        machine = _fields(_read("/proc/meminfo"))
        total = machine.get(b"MemTotal", 0) * 1024
        available = machine.get(b"MemAvailable", 0) * 1024

        for bound in self._bounds:
            limit, left = _left(bound)
            total, available = min(total, limit), min(available, left)

        load, _, _, tasks, _ = _read("/proc/loadavg").split()
        return Room(
            memory_available_bytes=available,
            memory_total_bytes=total,
            cpu_cores=len(os.sched_getaffinity(0)),
            load=float(load),
            runnable=int(tasks.partition(b"/")[0]),
            cpu_pressure=_cpu_pressure(),
        )


def _bound(folder: str, version: int) -> _Bound:
    if version == 1:
        return _Bound(
            limit=f"{folder}/memory.limit_in_bytes",
            used=f"{folder}/memory.usage_in_bytes",
            statistics=f"{folder}/memory.stat",
            droppable=b"total_inactive_file",
        )

    return _Bound(
        limit=f"{folder}/memory.max",
        used=f"{folder}/memory.current",
        statistics=f"{folder}/memory.stat",
        droppable=b"inactive_file",
    )


def _left(bound: _Bound) -> tuple[int, int]:
    """Returns the memory limit of a control group and the unused part of it, in bytes."""
    try:
        limit = _read(bound.limit).strip()

        if not limit.isdigit() or int(limit) >= _NO_LIMIT_BYTES:
            return _NO_LIMIT_BYTES, _NO_LIMIT_BYTES

        used = int(_read(bound.used)) - _fields(_read(bound.statistics)).get(bound.droppable, 0)
    except (OSError, ValueError):
        # The root of version 2 has no limit, nor has a removed group.
        return _NO_LIMIT_BYTES, _NO_LIMIT_BYTES

    return int(limit), max(0, int(limit) - used)


def _cpu_pressure() -> float | None:
    """The percentage of the last ten seconds in which a task waited for a processor; None where it is not counted."""
    try:
        some = _read("/proc/pressure/cpu").partition(b"\n")[0]
        return float(some.partition(b"avg10=")[2].partition(b" ")[0])
    except (OSError, ValueError):
        return None


def _fields(content: bytes) -> dict[bytes, int]:
    """Reads lines of a name and a number, with or without a colon and a unit."""
    fields = {}

    for line in content.splitlines():
        name, *values = line.split()

        if values and values[0].isdigit():
            fields[name.rstrip(b":")] = int(values[0])

    return fields


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _MAX_FILE_BYTES)
    finally:
        os.close(fd)
