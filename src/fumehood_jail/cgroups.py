"""Control groups: finds where those of sandboxes can be made, and removes those that dead hosts have left behind.

Runs in the host process, outside every jail. A sandbox gets one cgroup, a child of the host process's own cgroup or of
the nearest ancestor, so that limits which the system has put on the host still apply. Existing groups are neither moved
nor reconfigured. Both versions have the same interface (`cgroup_base`).

An out-of-memory kill ends one process and not the sandbox, in both versions: a context may die and be replaced.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress

from fumehood_jail import disks
from fumehood_jail.cgroup_base import Cgroup, CgroupDriver, kill_members
from fumehood_jail.cgroup_freezer import thaw_folder
from fumehood_jail.cgroup_v1 import CgroupDriverV1
from fumehood_jail.cgroup_v2 import CgroupDriverV2

__all__ = [
    "Cgroup",
    "CgroupDriver",
    "cgroup_family",
    "cgroup_name",
    "detect",
    "memory_folders",
    "owner_is_alive",
    "sweep",
]

_NEEDED = ("memory", "pids")
_NEEDED_V1 = ("memory", "pids", "cpuacct")
_WANTED = ("memory", "pids", "cpu", "cpuacct", "freezer", "io")
_WANTED_V1 = ("memory", "pids", "cpu", "cpuacct", "freezer", "blkio")
_SWEEP_SECONDS = 5.0
_SWEEP_PAUSE_SECONDS = 0.005
# The first process enters a group within half a minute after it was made.
_ENTERED_SECONDS = 600.0
# By pid: PID namespace, pid and start time, which together identify a process for good.
_own_marks: dict[int, str] = {}


class _Mount:
    """A mounted hierarchy: its controllers (none for version 2), its folder, and the cgroup shown there."""

    __slots__ = ("controllers", "folder", "root", "version")

    def __init__(self, version: int, folder: str, root: str, controllers: frozenset[str]) -> None:
        self.version = version
        self.folder = folder
        self.root = root
        self.controllers = controllers

    def folder_of(self, path: str) -> str:
        """Returns the folder of the cgroup called `path`, or that of the mount if the cgroup is not visible in it."""
        relative = os.path.relpath(path, self.root)
        inside = not relative.startswith("..") and "/.." not in path
        return os.path.normpath(os.path.join(self.folder, relative)) if inside else self.folder


def detect(proc: str = "/proc/self") -> tuple[CgroupDriver | None, list[str]]:
    """Finds where this process may make cgroups with limits of memory and processes.

    Args:
        proc: The folder with this process's `mountinfo` and `cgroup`.

    Returns:
        The driver, or None and the reasons, one for each place that was looked at.
    """
    mounts = _mounts(f"{proc}/mountinfo")
    paths = _own_paths(f"{proc}/cgroup")
    reasons: list[str] = []
    if not mounts:
        reasons.append("no cgroup file system is mounted")

    driver = _detect_v2(mounts, paths, reasons) or _detect_v1(mounts, paths, reasons)
    if driver is not None:
        driver.bound_disks(disks.below_the_system(), cgroup_name("fumehoodprobe", "disks"))

    return driver, reasons


def memory_folders() -> list[tuple[int, str]]:
    """Lists the cgroups that bound the memory of this process, its own first, each with its version."""
    paths = _own_paths("/proc/self/cgroup")
    found: list[tuple[int, str]] = []
    for mount in _mounts("/proc/self/mountinfo"):
        if mount.version == 2 and "" in paths and "memory" in _words(f"{mount.folder}/cgroup.controllers"):
            path = paths[""]
        elif "memory" in mount.controllers and "memory" in paths:
            path = paths["memory"]
        else:
            continue

        folder = mount.folder_of(path)
        found.append((mount.version, folder))
        while folder != mount.folder:
            folder = os.path.dirname(folder)
            found.append((mount.version, folder))

    return found


def cgroup_name(prefix: str, label: str) -> str:
    """Names a cgroup so that `sweep` can tell whether the host process that owns it still lives.

    Args:
        prefix: The same for all of a program's cgroups, without a hyphen.
        label: A name that is unique within this process.
    """
    return f"{cgroup_family(prefix)}{label}"


def cgroup_family(prefix: str) -> str:
    """Returns the prefix that the names of all cgroups of this process share."""
    pid = os.getpid()
    # A forked process has another pid, and so another entry.
    if pid not in _own_marks:
        _own_marks[pid] = f"{_pid_namespace()}-{pid}-{_start_time(pid)}"

    return f"{prefix}-{_own_marks[pid]}-"


def owner_is_alive(pid: int, start_time: int) -> bool:
    """Returns whether the process `pid` that started at `start_time` (clock ticks after boot) still lives."""
    return _start_time(pid) == start_time


def sweep(driver: CgroupDriver, prefix: str) -> tuple[list[str], list[str]]:
    """Kills and removes the cgroups that dead host processes have left behind.

    Searches where `driver` makes its own and in the sibling folders, where hosts of other sessions had theirs. Whether
    the owner of a group lives cannot be determined from another PID namespace: such a group, where `driver` makes its
    own, is removed only if it has no process, which the kernel checks, and is so old that none is on its way into it.

    Returns:
        The names that were removed, and those whose processes have not ended within five seconds.
    """
    orphans: dict[str, list[str]] = {}
    for folder in _places(driver):
        for name in _orphan_names(folder, prefix):
            orphans.setdefault(name, []).append(f"{folder}/{name}")

    removed = _remove_abandoned(driver, prefix)
    deadline = time.monotonic() + _SWEEP_SECONDS
    while orphans:
        removed += [name for name, folders in orphans.items() if _clear_away(folders)]
        orphans = {name: folders for name, folders in orphans.items() if name not in removed}
        if time.monotonic() > deadline:
            break

        if orphans:
            time.sleep(_SWEEP_PAUSE_SECONDS)

    return removed, list(orphans)


def _places(driver: CgroupDriver) -> list[str]:
    """Lists the folders in which hosts make cgroups: the driver's, and within the mount their siblings."""
    tops = {mount.folder for mount in _mounts("/proc/self/mountinfo")}
    places = set(driver.parents)
    for parent in driver.parents:
        if parent not in tops:
            above = os.path.dirname(parent)
            places.update(entry.path for entry in os.scandir(above) if entry.is_dir(follow_symlinks=False))

    return sorted(places)


def _orphan_names(parent: str, prefix: str) -> list[str]:
    return [
        name
        for name, (namespace, pid, start_time) in _owned(parent, prefix)
        if namespace == _pid_namespace() and not owner_is_alive(pid, start_time)
    ]


def _owned(parent: str, prefix: str) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Yields the names that `cgroup_name` has made, each with PID namespace, pid and start time of the owner."""
    for name in _names(parent):
        fields = name.split("-", 4)
        if len(fields) == 5 and fields[0] == prefix and all(field.isdigit() for field in fields[1:4]):
            namespace, pid, start_time = map(int, fields[1:4])
            yield name, (namespace, pid, start_time)


def _remove_abandoned(driver: CgroupDriver, prefix: str) -> list[str]:
    """Removes the old and empty groups of other PID namespaces; returns their names."""
    removed = []
    for name, (namespace, _, _) in _owned(driver.parent, prefix):
        is_foreign = namespace != _pid_namespace()
        if is_foreign and _is_old(f"{driver.parent}/{name}") and _remove_empty(driver, name):
            removed.append(name)

    return removed


def _is_old(folder: str) -> bool:
    """Returns whether a group is older than any start of a sandbox takes.

    A clock that is set forward by minutes while another host starts a sandbox makes its group look old; if the group is
    removed, that one start fails with an error.
    """
    try:
        return time.time() - os.stat(folder).st_mtime > _ENTERED_SECONDS
    except OSError:
        return False


def _remove_empty(driver: CgroupDriver, name: str) -> bool:
    """Removes a group from all hierarchies; returns False if it has a process, or is gone already."""
    try:
        # Every process of a sandbox is in this hierarchy, so the others are empty if this one is.
        os.rmdir(f"{driver.parent}/{name}")
        for parent in driver.parents:
            with suppress(FileNotFoundError):
                os.rmdir(f"{parent}/{name}")
    except OSError:
        return False

    return True


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:  # a sibling may have been removed, or may be unreadable
        return []


def _clear_away(folders: list[str]) -> bool:
    """Kills the processes of one cgroup and removes its folders; returns False while a process is still ending."""
    for folder in folders:
        kill_members(folder)

    for folder in folders:
        thaw_folder(folder)

    for folder in folders:
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            continue
        except OSError:
            return False

    return True


def _detect_v2(mounts: list[_Mount], paths: dict[str, str], reasons: list[str]) -> CgroupDriver | None:
    unified = [mount for mount in mounts if mount.version == 2]
    if not unified or "" not in paths:
        reasons.append("cgroup v2 is not mounted")
        return None

    mount = unified[0]
    available = _words(f"{mount.folder}/cgroup.controllers")
    missing = [controller for controller in _NEEDED if controller not in available]
    if missing:
        reasons.append(f"cgroup v2 at {mount.folder!r} does not offer {' and '.join(missing)}")
        return None

    folder = mount.folder_of(paths[""])
    while True:
        refusal = _why_not_delegated(folder)
        if not refusal:
            return CgroupDriverV2(
                folder, frozenset(_words(f"{folder}/cgroup.subtree_control")) & set(_WANTED)
            )

        reasons.append(f"cgroup v2: {refusal}")
        if folder == mount.folder:
            return None

        folder = os.path.dirname(folder)


def _why_not_delegated(folder: str) -> str:
    if not os.access(folder, os.W_OK | os.X_OK) or not os.access(f"{folder}/cgroup.procs", os.W_OK):
        return f"{folder!r} is not writable"

    handed_down = _words(f"{folder}/cgroup.subtree_control")
    missing = [controller for controller in _NEEDED if controller not in handed_down]
    return f"{folder!r} does not hand down {' and '.join(missing)}" if missing else ""


def _detect_v1(mounts: list[_Mount], paths: dict[str, str], reasons: list[str]) -> CgroupDriver | None:
    parents: dict[str, str] = {}
    for controller in _WANTED_V1:
        mount = next((mount for mount in mounts if controller in mount.controllers), None)
        if mount is None or controller not in paths:
            reasons.append(f"cgroup v1: the controller {controller!r} is not mounted")
            continue

        folder = mount.folder_of(paths[controller])
        if not os.access(folder, os.W_OK | os.X_OK):
            reasons.append(f"cgroup v1: {folder!r} is not writable")
            continue

        parents[controller] = folder

    if not all(controller in parents for controller in _NEEDED_V1):
        return None

    return CgroupDriverV1(parents)


def _mounts(path: str) -> list[_Mount]:
    """Reads the mounted hierarchies from a mountinfo file (man 5 proc_pid_mountinfo)."""
    found = []
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            fields, (fstype, _, options) = left.split(), right.split()[:3]
            root, folder = _unescape(fields[3]), _unescape(fields[4])
            if fstype == "cgroup2":
                found.append(_Mount(2, folder, root, frozenset()))
            elif fstype == "cgroup":
                found.append(_Mount(1, folder, root, frozenset(options.split(","))))

    return found


def _own_paths(path: str) -> dict[str, str]:
    """Reads the own cgroup in each hierarchy, by controller; version 2 under the empty name."""
    found = {}
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            _, controllers, own = line.rstrip("\n").split(":", 2)
            for controller in controllers.split(","):
                found[controller] = own

    return found


def _unescape(field: str) -> str:
    for escaped, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(escaped, character)

    return field


def _words(path: str) -> set[str]:
    try:
        with open(path, encoding="ascii") as file:
            return set(file.read().split())
    except OSError:
        return set()


def _start_time(pid: int) -> int | None:
    """Returns the start time of a process, which with its pid identifies it for good; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may hold anything: split behind the last one. A zombie does not count as alive.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None

    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino
