"""Control groups of version 2: one folder of the unified hierarchy.

Runs in the host process, outside every jail. The parent folder must delegate its controllers already: enabling them
would mean moving processes that are not ours.
"""

from __future__ import annotations

import errno
import os

from fumehood_jail.cgroup_base import (
    CPU_PERIOD_MICROSECONDS,
    DISK_READ_BYTES,
    DISK_READS,
    Cgroup,
    CgroupDriver,
    cpu_quota_microseconds,
    read_field,
    read_file,
    write_file,
)

_RECLAIM_BYTES = 64 << 20
_MOST_RECLAIMS = 256
# The kernel's default.
_DEFAULT_CPU_WEIGHT = 100


class CgroupV2(Cgroup):
    """A cgroup of version 2: one folder of the unified hierarchy."""

    __slots__ = ("_folder", "_peak_open_flags")

    def __init__(self, name: str, folder: str) -> None:
        super().__init__(name)
        self._folder = folder
        self._peak_open_flags: int | None = None

    @property
    def folders(self) -> list[str]:
        """The one folder."""
        return [self._folder]

    def set_memory_bytes(self, memory_bytes: int) -> None:
        """Sets the limit of memory and forbids swap."""
        write_file(f"{self._folder}/memory.max", str(memory_bytes))
        if os.path.exists(f"{self._folder}/memory.swap.max"):
            write_file(f"{self._folder}/memory.swap.max", "0")

    def cpu_seconds(self) -> tuple[float, float]:
        """Returns the user and system CPU time used so far."""
        content = self._read(f"{self._folder}/cpu.stat")
        return read_field(content, b"user_usec") / 1e6, read_field(content, b"system_usec") / 1e6

    def used_seconds(self) -> float:
        """Returns the CPU time used so far, and keeps no file open for that."""
        return read_field(read_file(f"{self._folder}/cpu.stat"), b"usage_usec") / 1e6

    def halve_cpu_weight(self, halved: bool) -> None:
        """Sets half of the default CPU weight, or the default; has no effect without the controller `cpu`."""
        path = f"{self._folder}/cpu.weight"
        if os.path.exists(path):
            write_file(path, str(_DEFAULT_CPU_WEIGHT // 2 if halved else _DEFAULT_CPU_WEIGHT))

    def memory_bytes(self) -> int:
        """Returns the memory in use now."""
        return int(self._read(f"{self._folder}/memory.current"))

    def peak_memory_bytes(self) -> int:
        """Returns the most memory in use since `reset_peak`; before Linux 5.19, the memory in use now."""
        path = f"{self._folder}/memory.peak"
        try:
            return int(self._read(path, self._peak_flags(path)))
        except FileNotFoundError:
            return self.memory_bytes()

    def reset_peak(self) -> bool:
        """Starts a new peak, which the kernel keeps for the open file (Linux 6.12)."""
        path = f"{self._folder}/memory.peak"
        flags = self._peak_flags(path)
        if flags == os.O_RDONLY:
            return False

        os.pwrite(self._fd(path, flags), b"reset", 0)
        return True

    def oom_kills(self) -> int:
        """Returns how many processes were killed for exceeding the memory limit."""
        return read_field(self._read(f"{self._folder}/memory.events"), b"oom_kill")

    def give_memory_back(self) -> str:
        """Asks the kernel to reclaim memory in steps of 64 MiB (Linux 5.19); returns the control file's name."""
        for _ in range(_MOST_RECLAIMS):
            before = self.memory_bytes()
            try:
                write_file(f"{self._folder}/memory.reclaim", str(_RECLAIM_BYTES))
            except OSError as error:
                # EAGAIN: less was reclaimed than requested, so there is no more.
                if error.errno != errno.EAGAIN:
                    raise

            if self.memory_bytes() > before - _RECLAIM_BYTES // 2:
                break

        return "memory.reclaim"

    @property
    def can_freeze(self) -> bool:
        """Always true: every cgroup of version 2 can be frozen since Linux 5.2."""
        return True

    def freeze(self) -> bool:
        """Stops all processes; returns False while some of them have not stopped yet."""
        if not self.is_frozen:
            self.is_frozen = True
            write_file(f"{self._folder}/cgroup.freeze", "1")

        return read_field(self._read(f"{self._folder}/cgroup.events"), b"frozen") == 1

    def thaw(self) -> None:
        """Lets all processes run again."""
        write_file(f"{self._folder}/cgroup.freeze", "0")
        self.is_frozen = False

    def _peak_flags(self, path: str) -> int:
        """Returns the flags to open memory.peak with: it is writable on kernels that can reset it."""
        if self._peak_open_flags is None:
            resettable = os.path.exists(path) and os.stat(path).st_mode & 0o200
            self._peak_open_flags = os.O_RDWR if resettable else os.O_RDONLY

        return self._peak_open_flags


class CgroupDriverV2(CgroupDriver):
    """Makes cgroups of version 2 in a folder that delegates its controllers."""

    __slots__ = ("_parent",)
    version = 2

    def __init__(self, parent: str, controllers: frozenset[str]) -> None:
        super().__init__(controllers | {"cpuacct", "freezer"})
        self._parent = parent

    @property
    def parent(self) -> str:
        """The delegated folder."""
        return self._parent

    @property
    def parents(self) -> list[str]:
        """The delegated folder alone."""
        return [self._parent]

    def open(self, name: str) -> CgroupV2:
        """Returns the cgroup called `name`, whether it exists or not."""
        return CgroupV2(name, f"{self._parent}/{name}")

    def file_bytes(self, name: str) -> int:
        """Returns how many bytes of files in memory are charged to the cgroup called `name`."""
        return read_field(read_file(f"{self._parent}/{name}/memory.stat"), b"file")

    def kept_groups(self) -> int:
        """Returns how many removed groups below this place the kernel keeps (Linux 4.14)."""
        return read_field(read_file(f"{self._parent}/cgroup.stat"), b"nr_dying_descendants")

    @property
    def _io_parent(self) -> str:
        return self._parent

    def _bound_reads(self, folder: str, disk: str) -> None:
        write_file(f"{folder}/io.max", f"{disk} rbps={DISK_READ_BYTES} riops={DISK_READS}")

    def _limit(self, cgroup: Cgroup, processes: int, cpu_cores: float) -> None:
        folder = f"{self._parent}/{cgroup.name}"
        write_file(f"{folder}/pids.max", str(processes))
        if "cpu" in self.controllers:
            write_file(f"{folder}/cpu.max", f"{cpu_quota_microseconds(cpu_cores)} {CPU_PERIOD_MICROSECONDS}")
