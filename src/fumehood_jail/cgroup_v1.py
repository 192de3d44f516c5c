"""Control groups of version 1: every controller has a hierarchy of its own, so a cgroup is several folders.

Runs in the host process, outside every jail. This version has no kill: forks are forbidden first, then the members are
killed one by one, which terminates because no process can be added.
"""

from __future__ import annotations

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

# Share of the memory limit that socket buffers may take; beyond it the sender blocks.
_SHARE_OF_SOCKETS = 8
_DEFAULT_CPU_SHARES = 1024


class CgroupV1(Cgroup):
    """A cgroup of version 1: a folder of the same name in each controller's hierarchy."""

    __slots__ = ("_folders",)
    _cgroup_fd = "tasks"

    def __init__(self, name: str, folders: dict[str, str]) -> None:
        super().__init__(name)
        self._folders = folders

    @property
    def folders(self) -> list[str]:
        """The folder of each hierarchy, the one of `pids` first; controllers that are mounted together share one."""
        return list(dict.fromkeys([self._folders["pids"], *self._folders.values()]))

    def set_memory_bytes(self, memory_bytes: int) -> None:
        """Sets the limit of memory, and of memory and swap together, in the order that the kernel accepts."""
        self._set_socket_bytes(memory_bytes // _SHARE_OF_SOCKETS)
        plain = self._path("memory", "memory.limit_in_bytes")
        with_swap = self._path("memory", "memory.memsw.limit_in_bytes")
        if not os.path.exists(with_swap):
            write_file(plain, str(memory_bytes))
            return

        # The limit of memory and swap may never be below the limit of memory.
        raised = memory_bytes > int(read_file(with_swap))
        for path in (with_swap, plain) if raised else (plain, with_swap):
            write_file(path, str(memory_bytes))

    def _set_socket_bytes(self, socket_bytes: int) -> None:
        """Bounds socket buffers, which this version accounts separately and only once they have a limit."""
        path = self._path("memory", "memory.kmem.tcp.limit_in_bytes")
        if os.path.exists(path):
            write_file(path, str(socket_bytes))

    def cpu_seconds(self) -> tuple[float, float]:
        """Returns the user and system CPU time used so far."""
        user = self._read(self._path("cpuacct", "cpuacct.usage_user"))
        system = self._read(self._path("cpuacct", "cpuacct.usage_sys"))
        return int(user) / 1e9, int(system) / 1e9

    def used_seconds(self) -> float:
        """Returns the CPU time used so far, and keeps no file open for that."""
        return int(read_file(self._path("cpuacct", "cpuacct.usage"))) / 1e9

    def halve_cpu_weight(self, halved: bool) -> None:
        """Sets half of the default CPU weight, or the default; has no effect without the controller `cpu`."""
        if "cpu" in self._folders:
            shares = _DEFAULT_CPU_SHARES // 2 if halved else _DEFAULT_CPU_SHARES
            write_file(self._path("cpu", "cpu.shares"), str(shares))

    def memory_bytes(self) -> int:
        """Returns the memory in use now."""
        return int(self._read(self._path("memory", "memory.usage_in_bytes")))

    def peak_memory_bytes(self) -> int:
        """Returns the most memory in use since `reset_peak`."""
        return int(self._read(self._path("memory", "memory.max_usage_in_bytes"), os.O_RDWR))

    def reset_peak(self) -> bool:
        """Starts a new peak."""
        os.pwrite(self._fd(self._path("memory", "memory.max_usage_in_bytes"), os.O_RDWR), b"0", 0)
        return True

    def oom_kills(self) -> int:
        """Returns how many processes were killed for exceeding the memory limit (Linux 4.13)."""
        return read_field(self._read(self._path("memory", "memory.oom_control")), b"oom_kill")

    def give_memory_back(self) -> str:
        """Asks the kernel to reclaim memory that processes do not need; returns the name of the control file used."""
        write_file(self._path("memory", "memory.force_empty"), "0")
        return "memory.force_empty"

    @property
    def can_freeze(self) -> bool:
        """Whether the freezer's hierarchy is mounted."""
        return "freezer" in self._folders

    def freeze(self) -> bool:
        """Stops all processes; returns False while some of them have not stopped yet."""
        self.is_frozen = True
        state = self._path("freezer", "freezer.state")
        # Writing again makes the kernel try again to stop a process that could not be stopped the first time.
        write_file(state, "FROZEN")
        return read_file(state).strip() == b"FROZEN"

    def thaw(self) -> None:
        """Lets all processes run again."""
        write_file(self._path("freezer", "freezer.state"), "THAWED")
        self.is_frozen = False

    def _path(self, controller: str, file: str) -> str:
        return f"{self._folders[controller]}/{file}"


class CgroupDriverV1(CgroupDriver):
    """Makes cgroups of version 1: one folder in each controller's own hierarchy."""

    __slots__ = ("_others", "_parents")
    version = 1

    def __init__(self, parents: dict[str, str]) -> None:
        # Version 2 calls this controller io.
        super().__init__(frozenset("io" if name == "blkio" else name for name in parents))
        self._parents = parents
        # The number of groups outside this hierarchy at the start.
        self._others = self._groups_elsewhere()

    @property
    def parent(self) -> str:
        """The place in the hierarchy of `pids`."""
        return self._parents["pids"]

    @property
    def parents(self) -> list[str]:
        """The places in all hierarchies; controllers that are mounted together share one."""
        return list(dict.fromkeys(self._parents.values()))

    @property
    def freezer_parent(self) -> str | None:
        """The place in the hierarchy of the freezer."""
        return self._parents.get("freezer")

    def open(self, name: str) -> CgroupV1:
        """Returns the cgroup called `name`, whether it exists or not."""
        return CgroupV1(
            name, {controller: f"{parent}/{name}" for controller, parent in self._parents.items()}
        )

    def file_bytes(self, name: str) -> int:
        """Returns how many bytes of files in memory are charged to the cgroup called `name`."""
        return read_field(read_file(f"{self._parents['memory']}/{name}/memory.stat"), b"cache")

    def kept_groups(self) -> int:
        """Returns how many groups the kernel has beyond those visible here, less the number at the start."""
        return self._groups_elsewhere() - self._others

    def _groups_elsewhere(self) -> int:
        # A folder has one link for each subfolder, and two of its own.
        seen = os.stat(self._parents["memory"]).st_nlink - 2
        return _groups_of_memory() - seen

    @property
    def _io_parent(self) -> str:
        return self._parents["blkio"]

    def _bound_reads(self, folder: str, disk: str) -> None:
        write_file(f"{folder}/blkio.throttle.read_bps_device", f"{disk} {DISK_READ_BYTES}")
        write_file(f"{folder}/blkio.throttle.read_iops_device", f"{disk} {DISK_READS}")

    def _limit(self, cgroup: Cgroup, processes: int, cpu_cores: float) -> None:
        name = cgroup.name
        write_file(f"{self._parents['pids']}/{name}/pids.max", str(processes))
        if "cpu" in self._parents:
            folder = f"{self._parents['cpu']}/{name}"
            write_file(f"{folder}/cpu.cfs_period_us", str(CPU_PERIOD_MICROSECONDS))
            write_file(f"{folder}/cpu.cfs_quota_us", str(cpu_quota_microseconds(cpu_cores)))


def _groups_of_memory() -> int:
    """Returns how many groups the memory hierarchy has, including removed ones that the kernel keeps."""
    with open("/proc/cgroups", "rb") as file:
        for line in file:
            fields = line.split()
            if fields[0] == b"memory":
                return int(fields[2])

    return 0
