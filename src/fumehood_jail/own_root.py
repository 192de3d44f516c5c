"""The root of one sandbox: the files of its template, seen through inodes that belong to this sandbox alone.

File locks, leases and watches (inotify, dnotify) belong to an inode, and not to the mount through which it is reached.
If all sandboxes saw the host's inodes, then two of them could exchange data by locks, each could see what the others
and the host open, and each could hold a lock that a program of the host waits for. So each sandbox gets overlay
filesystems of its own over what its template shows: the inodes are new, and the pages of the files stay shared.

`prepare` runs in the clone that becomes the jail init, when the template's root is complete. `find` runs in the jail
init. `enter` runs in each sandbox's init, before guest code exists. `go_to_parent` runs in the process that makes the
init of a fork, which gets the inodes of the sandbox that it is forked from: Landlock's rules belong to inodes as
well.

Device nodes come from the host process, where that is root (`device_nodes`). Otherwise they are those of the host.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import Dict, Iterable, List, Optional

from fumehood_jail import syscalls

# On the scratch filesystem of the base jail, of which a sandbox sees nothing.
_FOLDER = "/var/tmp/.layers"  # noqa: S108
_EMPTY = "/var/tmp/.empty"  # noqa: S108
_STAGE = "/var/tmp/.root"  # noqa: S108
_READ_ONLY = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV
_ROOT = "/"
_PROC = "/proc"
_DEV = "/dev"
_READ_ONLY_DEVICES = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID

# What the jail init has found, and its clones inherit: where each layer is shown; what can only be bound, and why.
_OVERLAID: Dict[str, str] = {}
_BOUND: Dict[str, int] = {}
_DEVICES: List[str] = []


def prepare(places: Iterable[str]) -> None:
    """Keeps a view of the root and of each place without what is mounted in them: only such can be a layer.

    Before: the root is complete, and nothing in it may be unmounted by a sandbox (the kernel refuses a layer that
    would show what a mount hides from it).

    Args:
        places: The directories on which parts of the host are mounted.
    """
    for folder in (_FOLDER, _EMPTY, _STAGE):
        os.mkdir(folder)

    for place in (_ROOT, *places):
        layer = f"{_FOLDER}/{_name_of(place)}"
        os.mkdir(layer)
        try:
            syscalls.mount(place, layer, None, syscalls.MS_BIND)
        except OSError:
            # Mounts of the host lie in it, which must go on to hide what is beneath them: `find` binds it whole.
            os.rmdir(layer)
            os.symlink(place, layer)


def find(devices: Iterable[str]) -> None:
    """Tries once, in the jail init, of which places this kernel makes an overlay; the others are bound as they are.

    Args:
        devices: The device nodes of the template's root.
    """
    _DEVICES.extend(devices)
    places = {_place_of(name): f"{_FOLDER}/{name}" for name in os.listdir(_FOLDER)}

    # A place may lie in another one, which comes first.
    for place in sorted(places, key=lambda path: (path.count("/"), path)):
        failure = errno.EBUSY if os.path.islink(places[place]) else _try_overlay(places[place])

        if failure:
            _BOUND[place] = failure
        else:
            _OVERLAID[place] = places[place]


def shared_places() -> str:
    """Names the places whose inodes are those of the host, each with the reason; empty where there are none."""
    bound = {**dict.fromkeys(_OVERLAID, _BOUND[_ROOT]), **_BOUND} if _ROOT in _BOUND else _BOUND
    return ", ".join(f"{place}: {errno.errorcode.get(number, number)}" for place, number in bound.items())


def enter(devices: Optional[int]) -> None:
    """Replaces the root of this mount namespace by one with inodes of its own.

    Before: a clone of the jail init in namespaces of its own, with every capability in them. After: `/` is as it was,
    but for the scratch space of the base jail, and nobody else reaches its inodes.

    Args:
        devices: What `device_nodes.make` has made for this sandbox, if anything.
    """
    if _ROOT not in _OVERLAID:
        return

    _overlay(_OVERLAID[_ROOT], _STAGE)

    for place in sorted({*_OVERLAID, *_BOUND} - {_ROOT}, key=lambda path: (path.count("/"), path)):
        if place in _OVERLAID:
            _overlay(_OVERLAID[place], _STAGE + place)
        else:
            syscalls.mount(place, _STAGE + place, None, syscalls.MS_BIND | syscalls.MS_REC)

    # An unmasked /proc must be in sight for the sandbox to be allowed its own, which will cover it.
    for path in (_PROC, *(_DEVICES if devices is None else ())):
        syscalls.mount(path, _STAGE + path, None, syscalls.MS_BIND)

    if devices is not None:
        syscalls.move_mount(devices, _STAGE + _DEV)
        # They stay devices that can be written to.
        syscalls.mount_setattr(_STAGE + _DEV, _READ_ONLY_DEVICES, 0, False)

    os.chdir(_STAGE)
    # It covers the old root, which shows nothing else. To unmount that one would wait for a grace period of the kernel,
    # some milliseconds on a busy machine.
    syscalls.mount(".", "/", None, syscalls.MS_MOVE)
    os.chroot(".")
    os.chdir("/")


def go_to_parent(mount_namespace: int) -> None:
    """Enters a copy of a sandbox's mount namespace, in which this process may unmount what that sandbox has mounted.

    Before: every capability over the sandbox's namespaces.
    """
    syscalls.setns(mount_namespace, syscalls.CLONE_NEWNS)
    syscalls.unshare(syscalls.CLONE_NEWNS)


def _overlay(layer: str, target: str) -> None:
    # Two layers at least, where nothing is to be written.
    syscalls.mount("overlay", target, "overlay", _READ_ONLY, f"lowerdir={_escaped(layer)}:{_EMPTY}")


def _try_overlay(layer: str) -> int:
    """Mounts it in a mount namespace that ends at once; returns the errno of what failed, or 0."""
    pid = os.fork()

    if pid == 0:
        failure = errno.EIO
        try:
            signal.alarm(10)
            syscalls.unshare(syscalls.CLONE_NEWNS)
            _overlay(layer, _STAGE)
            os.listdir(_STAGE)
            failure = 0
        except OSError as error:
            failure = error.errno or errno.EIO
        finally:
            os._exit(failure)

    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _name_of(place: str) -> str:
    return place.replace("%", "%25").replace("/", "%2F")


def _place_of(name: str) -> str:
    return name.replace("%2F", "/").replace("%25", "%")


def _escaped(path: str) -> str:
    """Returns a path as the options of a mount have it, where commas and colons part one from the next."""
    return path.replace("\\", "\\\\").replace(",", "\\,").replace(":", "\\:")
