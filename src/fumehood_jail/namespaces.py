"""Namespaces: which ones a jail gets, and the gate between a parent and its cloned child.

Runs in the launcher (for the base jail) and in the jail init (for each sandbox), on both sides of one raw clone. The
child must do nothing until its parent has written its id maps: the gate is the pipe that signals this. Must never be
called in a process that has more than one thread: a raw clone copies only the calling one.
"""

from __future__ import annotations

import os
from typing import Sequence

from fumehood_jail import counts, syscalls

# Every namespace that one clone can separate (man 7 namespaces). The time namespace is left out: monotonic clocks are
# compared between host and guest to order their output.
ALL_NAMESPACES = {
    "user": syscalls.CLONE_NEWUSER,
    "pid": syscalls.CLONE_NEWPID,
    "mnt": syscalls.CLONE_NEWNS,
    "net": syscalls.CLONE_NEWNET,
    "ipc": syscalls.CLONE_NEWIPC,
    "uts": syscalls.CLONE_NEWUTS,
    "cgroup": syscalls.CLONE_NEWCGROUP,
}


def clone_flags() -> int:
    """Returns the flags of the one clone that makes a jail."""
    flags = syscalls.SIGCHLD

    for flag in ALL_NAMESPACES.values():
        flags |= flag

    return flags


JAIL_FLAGS = clone_flags()
# A mount namespace whose owner cannot change the copied mounts, and a PID namespace, which the owner can enter again.
INNER_FLAGS = syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID


def own_numbers() -> dict[str, int]:
    """Returns the inode numbers of this process's namespaces by kind; kinds that the kernel lacks are left out."""
    found = {}

    for name in ALL_NAMESPACES:
        try:
            found[name] = os.stat(f"/proc/self/ns/{name}").st_ino
        except FileNotFoundError:
            continue

    return found


class Gate:
    """Holds a cloned child back until its parent has written the child's id maps.

    Before: made by the parent, then inherited by the clone. After: `open` in the parent lets the child's
    `wait` return; if the parent dies first, `wait` raises.
    """

    __slots__ = ("_read_fd", "_write_fd")

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe2(os.O_CLOEXEC)

    def open(self) -> None:
        """Lets the child through, and closes the parent's ends."""
        os.write(self._write_fd, b"!")
        self.close()

    def close(self) -> None:
        """Closes both ends; the `wait` of a child then raises."""
        os.close(self._read_fd)
        os.close(self._write_fd)

    def wait(self) -> None:
        """Blocks the child until the parent opens; raises `EOFError` if the parent closed the gate or died."""
        os.close(self._write_fd)
        passed = os.read(self._read_fd, 1)
        os.close(self._read_fd)

        if not passed:
            raise EOFError("the parent has failed before it wrote the id maps")


def write_map(pid: int, inside: int, outside: int, spare: Sequence[tuple[int, int, int]] = ()) -> None:
    """Maps one user and one group id into the user namespace of a freshly cloned child.

    Before: the caller is the parent, with CAP_SETUID and CAP_SETGID in its own user namespace unless `outside` is its
    own id and nothing is spare. After: without capabilities the child cannot change its ids, and it can never change
    its supplementary groups.

    Args:
        pid: The child, as /proc knows it.
        inside: Its id inside the namespace.
        outside: The same id in the caller's namespace.
        spare: Ids for sandboxes that are forked from it: first inside, first outside, how many.
    """
    lines = ((inside, outside, 1), *spare)
    text = "".join(f"{first} {lower} {count}\n" for first, lower, count in lines).encode("ascii")

    for name, content in (("setgroups", b"deny"), ("uid_map", text), ("gid_map", text)):
        fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, content)
        finally:
            os.close(fd)


def write_same_map(pid: int) -> None:
    """Maps every id of this user namespace to itself in that of a freshly cloned child.

    Before: the caller is the parent, with CAP_SETUID, CAP_SETGID and CAP_SETFCAP in its own user namespace.
    """
    for name in ("uid_map", "gid_map"):
        # Read as bytes: the root of the jail is in place, so no codec can be imported any more.
        with open(f"/proc/self/{name}", "rb") as file:
            lines = [line.split() for line in file]

        text = b"".join(b"%b %b %b\n" % (first, first, count) for first, _, count in lines)
        fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text)
        finally:
            os.close(fd)


def enter_ancestors(users: Sequence[int], pids: int) -> None:
    """Enters the user namespace of a sandbox through those of its ancestors; raises the bounds of each by one sandbox.

    Before: CAP_SYS_ADMIN over the oldest. After: every capability in the youngest, and the next child is started in its
    PID namespace.

    Args:
        users: Their user namespaces, the oldest first. A pidfd would open only the first: a process that has left the
            base jail may not trace the others.
        pids: The PID namespace of the youngest.
    """
    for fd in users:
        syscalls.setns(fd, syscalls.CLONE_NEWUSER)
        counts.allow_another()

    syscalls.setns(pids, syscalls.CLONE_NEWPID)


def number_outside(pid: int) -> int:
    """Returns the pid that /proc shows for a child started in another PID namespace than that of /proc."""
    pidfd = os.pidfd_open(pid)
    try:
        with open(f"/proc/self/fdinfo/{pidfd}", "rb") as file:
            return next(int(line[4:]) for line in file if line.startswith(b"Pid:"))
    finally:
        os.close(pidfd)
