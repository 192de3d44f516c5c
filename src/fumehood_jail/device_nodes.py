"""Device nodes for one sandbox: a detached filesystem with nodes that no other sandbox shares.

Runs in the host process, and only as root: a filesystem mounted in a user namespace cannot hold device nodes. Separate
nodes keep a sandbox's locks and watches on `/dev/null` and the like from the host and from other sandboxes.
"""

from __future__ import annotations

import os
import stat

from fumehood_jail import syscalls

# Major and minor number of each device (Documentation/admin-guide/devices.txt).
NODES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
FOLDERS = ("shm", "pts")
_ANYBODY = 0o666


def make() -> int | None:
    """Makes a filesystem with the nodes, links and mount points of a sandbox's `/dev`.

    Returns:
        A descriptor of the mount, owned by the caller; closing it destroys the mount unless it has been attached. None
        where this process may not make device nodes or mount.
    """
    if os.geteuid() != 0:
        return None

    mount = -1
    try:
        mount = syscalls.mount_nowhere("tmpfs")
        _fill(mount)
        # Check that the nodes can be opened from this mount at all.
        os.close(os.open("null", os.O_RDONLY | os.O_CLOEXEC, dir_fd=mount))
    except OSError:
        if mount >= 0:
            os.close(mount)

        return None

    return mount


def _fill(mount: int) -> None:
    for name, (major, minor) in NODES.items():
        os.mknod(name, stat.S_IFCHR | _ANYBODY, os.makedev(major, minor), dir_fd=mount)
        # The process's umask has cleared bits of the mode.
        os.chmod(name, _ANYBODY, dir_fd=mount)

    for name, target in LINKS.items():
        os.symlink(target, name, dir_fd=mount)

    for name in FOLDERS:
        os.mkdir(name, dir_fd=mount)

    for name in (".", *FOLDERS):
        os.chmod(name, 0o755, dir_fd=mount)  # noqa: S103 - a mount point
