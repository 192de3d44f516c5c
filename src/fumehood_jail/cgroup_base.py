"""The part of control groups that both versions share: the interface, and killing all members one by one.

Runs in the host process, outside every jail. The descriptors of files that are read often are opened at first use and
kept, because usage is read around every execution.
"""

from __future__ import annotations

import errno
import os
import signal
from abc import ABC, abstractmethod
from typing import Iterable

from fumehood_jail.errors import JailError

CPU_PERIOD_MICROSECONDS = 100_000
# Bound per second on what one sandbox reads from a disk of the host; reads from the page cache do not count.
DISK_READ_BYTES = 200 << 20
DISK_READS = 4000
# The kernel refuses a quota below a millisecond.
_SHORTEST_QUOTA_MICROSECONDS = 1000


class Cgroup(ABC):
    """One sandbox's cgroup."""

    __slots__ = ("_fds", "is_frozen", "name")
    _cgroup_fd = "cgroup.procs"

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_frozen = False
        self._fds: dict[str, int] = {}

    @property
    @abstractmethod
    def folders(self) -> list[str]:
        """The folders that make up this cgroup: one, or one for each hierarchy of version 1."""

    @abstractmethod
    def set_memory_bytes(self, memory_bytes: int) -> None:
        """Sets the limit of memory; no memory may be swapped out."""

    @abstractmethod
    def cpu_seconds(self) -> tuple[float, float]:
        """Returns the user and system CPU time used so far, also by processes that have ended."""

    @abstractmethod
    def used_seconds(self) -> float:
        """Returns the CPU time used so far without keeping a file open: for infrequent polls of many groups."""

    @abstractmethod
    def halve_cpu_weight(self, halved: bool) -> None:
        """Sets half of the kernel's default CPU weight, or the default itself if `halved` is false."""

    @abstractmethod
    def memory_bytes(self) -> int:
        """Returns the memory in use now: processes, their share of the page cache, tmpfs, kernel objects."""

    @abstractmethod
    def peak_memory_bytes(self) -> int:
        """Returns the most memory in use since `reset_peak`; the memory in use now where the kernel keeps no peak."""

    @abstractmethod
    def reset_peak(self) -> bool:
        """Starts a new peak. False where the kernel cannot: the peak then covers the sandbox's whole life."""

    @abstractmethod
    def oom_kills(self) -> int:
        """Returns how many processes were killed for exceeding the memory limit."""

    @abstractmethod
    def give_memory_back(self) -> str:
        """Asks the kernel to reclaim memory that files can restore; returns the name of the control file used."""

    @property
    @abstractmethod
    def can_freeze(self) -> bool:
        """Whether `freeze` is supported."""

    @abstractmethod
    def freeze(self) -> bool:
        """Stops every process of the cgroup, and those that join it later.

        Returns:
            False while some of them have not stopped yet; then call it again.
        """

    @abstractmethod
    def thaw(self) -> None:
        """Lets the processes of the frozen control group run again."""

    def add(self, pid: int) -> None:
        """Moves a process into the cgroup; what it starts later is started there."""
        for folder in self.folders:
            write_file(os.path.join(folder, "cgroup.procs"), str(pid))

    def open_cgroup_fds(self) -> list[int]:
        """Opens, for each folder, the file to which a process writes "0" to move itself into the cgroup.

        The kernel checks the rights of the opener, so a process without rights can be handed the descriptors. In
        version 1 a single thread that moves itself avoids the lock that every other move takes, and with it a wait of
        about 10 ms.
        """
        cgroup_fds: list[int] = []
        try:
            for folder in self.folders:
                cgroup_fds.append(os.open(os.path.join(folder, self._cgroup_fd), os.O_WRONLY | os.O_CLOEXEC))
        except OSError:
            for cgroup_fd in cgroup_fds:
                os.close(cgroup_fd)

            raise

        return cgroup_fds

    def processes(self) -> list[int]:
        """Returns the ids of the processes in the cgroup, as the caller's PID namespace sees them."""
        return _members(self.folders[0])

    def kill(self) -> None:
        """Kills every process in the cgroup, however fast they fork. Does not wait for their end."""
        kill_members(self.folders[0])

    def kill_frozen(self) -> None:
        """Kills a frozen cgroup: every process is sent SIGKILL before any of them can run again."""
        if self.is_frozen:
            self.kill()
            self.thaw()

    def remove(self) -> bool:
        """Removes the cgroup and closes its files.

        Returns:
            False while some of its processes are still ending; then call it again.
        """
        self.close()
        for folder in reversed(self.folders):
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno == errno.EBUSY:
                    return False

                raise JailError("cgroup", error.errno or 0, f"cannot remove {folder!r}") from error

        return True

    def close(self) -> None:
        """Closes the files that were kept open."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def _read(self, path: str, flags: int = os.O_RDONLY) -> bytes:
        """Reads a small file from its start; the file is opened once and stays open."""
        return os.pread(self._fd(path, flags), 4096, 0)

    def _fd(self, path: str, flags: int) -> int:
        fd = self._fds.get(path)
        if fd is None:
            fd = self._fds[path] = os.open(path, flags | os.O_CLOEXEC)

        return fd


class CgroupDriver(ABC):
    """Makes cgroups in one place of the hierarchy.

    Attributes:
        version: 1 or 2.
        controllers: Which of memory, pids, cpu, cpuacct, freezer and io are there; the first two always are.
        disks: The device numbers ("8:0") of the disks whose reads are bounded.
    """

    __slots__ = ("controllers", "disks")
    version: int

    def __init__(self, controllers: frozenset[str]) -> None:
        self.controllers = controllers
        self.disks: tuple[str, ...] = ()

    @property
    @abstractmethod
    def parent(self) -> str:
        """The folder in which the names of all cgroups of this place are found."""

    @property
    @abstractmethod
    def parents(self) -> list[str]:
        """The folder in which cgroups are made, or one for each hierarchy of version 1."""

    @property
    def freezer_parent(self) -> str | None:
        """The folder of cgroups that must be thawed before their processes can die; None where none need it."""
        return None

    @abstractmethod
    def open(self, name: str) -> Cgroup:
        """Returns the cgroup called `name`, whether it exists or not."""

    @abstractmethod
    def file_bytes(self, name: str) -> int:
        """Returns how many bytes of files in memory are charged to the cgroup called `name`."""

    @abstractmethod
    def kept_groups(self) -> int:
        """Returns about how many removed groups the kernel keeps, because pages are charged to them."""

    @property
    @abstractmethod
    def _io_parent(self) -> str:
        """The folder that holds the groups with bounds on reads."""

    @abstractmethod
    def _limit(self, cgroup: Cgroup, processes: int, cpu_cores: float) -> None:
        """Writes the limits of processes and CPU."""

    @abstractmethod
    def _bound_reads(self, folder: str, disk: str) -> None:
        """Bounds what the group in `folder` reads from a disk."""

    def bound_disks(self, disks: Iterable[str], name: str) -> None:
        """Bounds the reads of every cgroup created from now on, for those disks that the kernel can bound.

        Args:
            disks: The device numbers of the disks ("8:0").
            name: The name of a temporary cgroup in which each bound is tried.
        """
        if "io" not in self.controllers:
            return

        folder = f"{self._io_parent}/{name}"
        bounded: list[str] = []
        try:
            os.mkdir(folder, 0o755)
        except OSError:
            return

        for disk in disks:
            try:
                self._bound_reads(folder, disk)
            except OSError:
                continue

            bounded.append(disk)

        os.rmdir(folder)
        self.disks = tuple(bounded)

    def create(self, name: str, *, memory_bytes: int, processes: int, cpu_cores: float) -> Cgroup:
        """Makes a cgroup with its limits; removes it again if a limit cannot be set.

        Args:
            name: One path component, as `cgroup_name` makes it.
            memory_bytes: Most memory, with nothing swapped out.
            processes: Most processes and threads at a time.
            cpu_cores: Most CPU time per wall time; it may be a fraction.
        """
        cgroup = self.open(name)
        try:
            for folder in cgroup.folders:
                os.mkdir(folder, 0o755)

            cgroup.set_memory_bytes(memory_bytes)
            self._limit(cgroup, processes, cpu_cores)
            for disk in self.disks:
                self._bound_reads(f"{self._io_parent}/{name}", disk)
        except OSError as error:
            cgroup.remove()
            raise JailError(
                "cgroup", error.errno or 0, f"cannot make {name!r} in {self.parent!r} ({error})"
            ) from error

        return cgroup


def kill_members(folder: str) -> None:
    """Kills every process in the cgroup at `folder`; does nothing if it is gone.

    Linux 5.14 kills them all at once, in version 2. Elsewhere forks are forbidden first, then the members are killed
    one by one; this terminates because no process can be added.
    """
    try:
        if os.path.exists(f"{folder}/cgroup.kill"):
            write_file(f"{folder}/cgroup.kill", "1")
            return

        if os.path.exists(f"{folder}/pids.max"):
            write_file(f"{folder}/pids.max", "0")

        signalled: set[int] = set()
        while fresh := [pid for pid in _members(folder) if pid not in signalled]:
            for pid in fresh:
                _kill_member(folder, pid)

            signalled.update(fresh)
    except FileNotFoundError:
        return


def _kill_member(folder: str, pid: int) -> None:
    """Kills through a pidfd opened before the membership check, since the kernel may have reused the pid."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return

    try:
        if pid in _members(folder):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        os.close(fd)


def _members(folder: str) -> list[int]:
    with open(f"{folder}/cgroup.procs", encoding="ascii") as file:
        return [int(line) for line in file]


def cpu_quota_microseconds(cpu_cores: float) -> int:
    """Returns the CPU time that `cpu_cores` allow in one period."""
    return max(int(cpu_cores * CPU_PERIOD_MICROSECONDS), _SHORTEST_QUOTA_MICROSECONDS)


def read_file(path: str) -> bytes:
    """Reads a small file of the cgroup file system."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def write_file(path: str, text: str) -> None:
    """Writes a value into a file of the cgroup file system; the error names the file."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode("ascii"))
        finally:
            os.close(fd)
    except OSError as error:
        raise OSError(error.errno, f"{os.strerror(error.errno or 0)}, writing {text!r}", path) from None


def read_field(content: bytes, key: bytes) -> int:
    """Finds the number behind `key` in a file of `key number` lines."""
    for line in content.splitlines():
        name, _, number = line.partition(b" ")
        if name == key:
            return int(number)

    raise ValueError(f"no {key.decode()!r} among {content.decode('ascii', 'replace')!r}")
