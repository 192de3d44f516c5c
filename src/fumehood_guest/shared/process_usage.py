"""Accounting: what the processes of a sandbox use, read from inside through its own /proc.

Runs in init. Where the host has cgroups these figures are only informative; elsewhere they are what it reports. It must
never follow anything but /proc entries of this PID namespace.
"""

from __future__ import annotations

import os
import signal
from typing import Any, Callable, Dict, FrozenSet, Iterable, Iterator, List, Optional, Sequence, Tuple

from fumehood_guest.shared import memory
from fumehood_guest.shared.proc_files import read_proc
from fumehood_jail.launch import FORK_OWNER_UID

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_INIT_PID = 1


class _Beneath:
    """Whether sandboxes have been forked from this one: their processes appear in its /proc, and are filtered out."""

    are_forks = False


def note_fork() -> None:
    """Filters out processes of forked sandboxes from now on, which requires reading each process's status."""
    _Beneath.are_forks = True


def has_forks() -> bool:
    """Whether sandboxes have been forked from this one."""
    return _Beneath.are_forks


class _Among:
    """The init whose descendants count, and the folder whose files count, where /proc also shows other processes."""

    root = 0
    place = "/tmp"  # noqa: S108 - the one writable filesystem


def live_among_others(place: str) -> None:
    """Makes this module count only descendants of the calling process, and only files below `place`."""
    _Among.root = os.getpid()
    _Among.place = place


def processes() -> Iterator[int]:
    """Yields the pids of this sandbox, without init."""
    if _Among.root:
        yield from descendants(_Among.root)
        return

    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != _INIT_PID and not (_Beneath.are_forks and _is_beneath(name)):
            yield int(name)


def descendants(root: int) -> Iterator[int]:
    """Yields the pids of all descendants of a process, zombies included, each after its parent."""
    children: Dict[int, List[int]] = {}

    for name in os.listdir("/proc"):
        fields = stat_fields(int(name)) if name.isdigit() else []

        if fields:
            children.setdefault(int(fields[1]), []).append(int(name))

    found = list(children.get(root, ()))

    for pid in found:
        yield pid
        found.extend(children.get(pid, ()))


def _is_beneath(name: str) -> bool:
    """Whether a process is in a nested namespace, or is one of fumehood's own on the way there."""
    try:
        lines = read_proc(f"/proc/{name}/status").split(b"\n")
    except OSError:
        return True  # it has ended

    names = (b"NSpid:", b"CapPrm:", b"Uid:")
    fields = {line.partition(b":")[0]: line.split()[1:] for line in lines if line.startswith(names)}
    # User code never has a capability, and never runs as the owner of forks; the process that makes forks does.
    is_own = int(fields[b"CapPrm"][0], 16) != 0 or int(fields[b"Uid"][0]) == FORK_OWNER_UID
    return is_own or len(fields[b"NSpid"]) > 1


def living() -> Iterator[int]:
    """Yields the pids of processes that have not ended."""
    for pid in processes():
        if stat_fields(pid)[:1] not in (["Z"], ["X"], []):
            yield pid


def kill_tree(leader: int, spare: Sequence[int] = ()) -> None:
    """Kills a process, all of its session and all their descendants.

    A process that has left both (by a double fork and a new session) is an orphan of init and ends with the sandbox.

    Args:
        leader: The process.
        spare: Processes that live on, with all their descendants.
    """
    for pid in [*_session_members(leader, frozenset(spare)), leader]:
        kill(pid)


def signal_all(number: int) -> None:
    """Signals all processes of this sandbox but init.

    A signal to all at once (`kill(-1)`) also reaches one that is just being forked: the kernel makes such a fork fail
    and restart when the signal arrives. It would reach forked sandboxes too, where there are any.
    """
    if has_forks():
        for pid in processes():
            signal_one(pid, number)

        return

    try:
        os.kill(-1, number)
    except ProcessLookupError:
        return  # there is no process but init


def signal_one(pid: int, number: int) -> None:
    """Signals a process, unless it has ended or is not the sandbox's own."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return  # it has ended, or belongs to the jail init, on its way to a forked sandbox, and exits soon


def kill(pid: int) -> None:
    """Kills a process, unless it has ended already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _session_members(leader: int, spare: FrozenSet[int]) -> List[int]:
    parents: Dict[int, Tuple[int, int]] = {}

    for pid in processes():
        fields = stat_fields(pid)

        if fields:
            parents[pid] = (int(fields[1]), int(fields[3]))

    return [pid for pid in parents if pid != leader and _leads_to(pid, leader, parents, spare)]


def _leads_to(pid: int, leader: int, parents: Dict[int, Tuple[int, int]], spare: FrozenSet[int]) -> bool:
    while pid in parents and pid not in spare:
        parent, session = parents[pid]

        if leader in (parent, session):
            return True

        pid = parent

    return False


def metrics(weigh: Optional[Callable[[Iterable[int]], Dict[int, int]]] = memory.weigh) -> Dict[str, Any]:
    """Returns memory, CPU time, processes and threads, and disk use of the whole sandbox.

    Args:
        weigh: Returns the memory of each process, for which the kernel walks over all of it. None: the host knows the
            memory from a cgroup, and it is 0 here.
    """
    pids = (os.getpid(), *processes())
    cpu_ticks = 0
    count = 0

    for pid in pids:
        fields = stat_fields(pid)

        if fields:
            count += int(fields[17])
            cpu_ticks += sum(int(part) for part in fields[11:15])

    disk = os.statvfs(_Among.place)
    return {
        "memory_bytes": 0 if weigh is None else sum(weigh(pids).values()),
        "cpu_seconds": cpu_ticks / _TICKS_PER_SECOND,
        "processes": count,
        "disk_used_bytes": (disk.f_blocks - disk.f_bfree) * disk.f_frsize,
        "disk_total_bytes": disk.f_blocks * disk.f_frsize,
        "inodes_used": disk.f_files - disk.f_ffree,
    }


def applied_restrictions() -> Dict[str, Any]:
    """Returns the restrictions of this process as the kernel reports them; the isolation level follows from them."""
    lines = read_proc("/proc/self/status").split(b"\n")
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


def stat_fields(pid: int) -> List[str]:
    """Returns the fields of /proc/PID/stat after the name: state, ppid, pgrp, session, ..."""
    try:
        return read_proc(f"/proc/{pid}/stat").rpartition(b")")[2].decode("ascii").split()
    except OSError:
        return []
