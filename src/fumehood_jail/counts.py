"""Counts: bounds on kernel objects that are accounted per user of the host, and so shared by all sandboxes.

Runs in the clone that becomes the jail init and in the clone that becomes a sandbox's init, while they hold every
capability of their namespace. What is used inside a user namespace is charged to the user that created it: without
bounds of its own, a sandbox could use up the inotify instances of the user that runs the host process (`/proc/sys/user`
in namespaces(7)). It must never raise what the host allows: the kernel applies the lowest bound on the way up.
"""

from __future__ import annotations

import os

_FOLDER = "/proc/sys/user"
# No user namespace below a sandbox's own: a third barrier behind seccomp and the missing capability.
_OF_A_SANDBOX = {"max_user_namespaces": 0, "max_inotify_instances": 16, "max_inotify_watches": 16_384}
# All sandboxes of a template together may use half of what the host allows its user.
_SHARED = {
    "max_inotify_instances": "/proc/sys/fs/inotify/max_user_instances",
    "max_inotify_watches": "/proc/sys/fs/inotify/max_user_watches",
}


def leave_half_to_the_host() -> None:
    """Bounds what all sandboxes of a template use together, so that the host's user keeps the other half.

    Before: CAP_SYS_RESOURCE over the base namespace, with /proc mounted. After: the bounds hold for every namespace
    below.
    """
    for name, source in _SHARED.items():
        allowed = _read(source)
        if allowed is not None:
            _write(name, max(1, allowed // 2))


def bound_a_sandbox() -> None:
    """Bounds what one sandbox uses, and forbids it to create user namespaces.

    Before: CAP_SYS_RESOURCE over the sandbox's namespace, with /proc mounted.
    """
    for name, most in _OF_A_SANDBOX.items():
        _write(name, most)


def allow_another() -> None:
    """Adds the share of one more sandbox to the bounds of the user namespace that this process has entered.

    Before: CAP_SYS_RESOURCE over that namespace. Use in a namespace is also counted in all of its ancestors.
    """
    for name, most in {**_OF_A_SANDBOX, "max_user_namespaces": 1}.items():
        allowed = _read(f"{_FOLDER}/{name}")
        if allowed is not None:
            _write(name, allowed + most)


def _read(path: str) -> int | None:
    try:
        # Read as bytes: the root of the jail is in place, so no codec can be imported from here on.
        with open(path, "rb") as file:
            return int(file.read())
    except FileNotFoundError:
        return None


def _write(name: str, most: int) -> None:
    try:
        fd = os.open(f"{_FOLDER}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        # This kernel does not count these objects.
        return

    try:
        os.write(fd, str(most).encode("ascii"))
    finally:
        os.close(fd)
