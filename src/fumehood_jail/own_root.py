"""The root of one sandbox: the files of its template, seen through inodes that belong to this sandbox alone.

File locks, leases and watches (inotify, dnotify) belong to an inode, not to the mount through which it is reached. If
all sandboxes saw the host's inodes, two of them could exchange data through locks, each could observe which files the
others and the host open, and each could hold a lock that a program of the host waits for. So each sandbox gets overlay
filesystems over what its template shows: the inodes are new, and the pages of the files stay shared.

`prepare` runs in the clone that becomes the jail init, when the template's root is complete. `find` runs in the jail
init. `enter` runs in each sandbox's init, before guest code exists. `go_to_parent` runs in the process that makes the
init of a fork, which gets the inodes of its parent: Landlock's rules belong to inodes as well. Device nodes come from
the host process if that is root (`device_nodes`); otherwise they are those of the host.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import Dict, Iterable, List, Optional

from fumehood_jail import syscalls

# On the scratch filesystem of the base jail, which sandboxes do not see.
_FOLDER = "/var/tmp/.layers"  # noqa: S108
_EMPTY = "/var/tmp/.empty"  # noqa: S108
_STAGE = "/var/tmp/.root"  # noqa: S108
_READ_ONLY = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV
_ROOT = "/"
_PROC = "/proc"
_DEV = "/dev"
_READ_ONLY_DEVICES = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID

# Found by the jail init, inherited by its clones: the layer of each overlaid place, and the places that can only be
# bound, with the errno.
_OVERLAID: Dict[str, str] = {}
_BOUND: Dict[str, int] = {}
_DEVICES: List[str] = []


def prepare(places: Iterable[str]) -> None:
    """Binds the root and each place without the mounts beneath them: only such a view can be an overlay's layer.

    Before: the root is complete, and nothing in it may be unmounted by a sandbox (the kernel refuses a layer that would
    show what a mount hides from it).

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
            # The place contains mounts of the host, which must keep hiding what is beneath them: `find` binds it whole.
            os.rmdir(layer)
            os.symlink(place, layer)


def find(devices: Iterable[str]) -> None:
    """Tries once, in the jail init, which places this kernel can overlay; the others are bound as they are.

    Args:
        devices: The device nodes of the template's root.
    """
    _DEVICES.extend(devices)
    places = {_place_of(name): f"{_FOLDER}/{name}" for name in os.listdir(_FOLDER)}

    # An outer place comes before one that lies in it.
    for place in sorted(places, key=lambda path: (path.count("/"), path)):
        failure = errno.EBUSY if os.path.islink(places[place]) else _try_overlay(places[place])

        if failure:
            _BOUND[place] = failure
        else:
            _OVERLAID[place] = places[place]


def shared_places() -> str:
    """Returns the places that share the host's inodes, each with the reason; empty if there are none."""
    bound = {**dict.fromkeys(_OVERLAID, _BOUND[_ROOT]), **_BOUND} if _ROOT in _BOUND else _BOUND
    return ", ".join(f"{place}: {errno.errorcode.get(number, number)}" for place, number in bound.items())


def enter(devices: Optional[int]) -> None:
    """Replaces the root of this mount namespace by one with inodes of its own.

    Before: a clone of the jail init in namespaces of its own, with every capability in them. After: `/` has the same
    files, except for the scratch space of the base jail, and no other sandbox reaches its inodes.

    Args:
        devices: The mount that `device_nodes.make` has made for this sandbox, or None.
    """
    if _ROOT not in _OVERLAID:
        return

    _overlay(_OVERLAID[_ROOT], _STAGE)

    for place in sorted({*_OVERLAID, *_BOUND} - {_ROOT}, key=lambda path: (path.count("/"), path)):
        if place in _OVERLAID:
            _overlay(_OVERLAID[place], _STAGE + place)
        else:
            syscalls.mount(place, _STAGE + place, None, syscalls.MS_BIND | syscalls.MS_REC)

    # The kernel allows a sandbox its own /proc only while an unmasked one is visible; the new one will cover it.
    for path in (_PROC, *(_DEVICES if devices is None else ())):
        syscalls.mount(path, _STAGE + path, None, syscalls.MS_BIND)

    if devices is not None:
        syscalls.move_mount(devices, _STAGE + _DEV)
        # The devices stay writable.
        syscalls.mount_setattr(_STAGE + _DEV, _READ_ONLY_DEVICES, 0, False)

    os.chdir(_STAGE)
    # The new root covers the old one. Unmounting the old one would wait for an RCU grace period, some milliseconds on a
    # busy machine.
    syscalls.mount(".", "/", None, syscalls.MS_MOVE)
    os.chroot(".")
    os.chdir("/")


def go_to_parent(mount_namespace: int) -> None:
    """Enters a private copy of a sandbox's mount namespace, in which this process may unmount that sandbox's mounts.

    Before: every capability over the sandbox's namespaces.
    """
    syscalls.setns(mount_namespace, syscalls.CLONE_NEWNS)
    syscalls.unshare(syscalls.CLONE_NEWNS)


def _overlay(layer: str, target: str) -> None:
    # A read-only overlay needs at least two layers.
    syscalls.mount("overlay", target, "overlay", _READ_ONLY, f"lowerdir={_escaped(layer)}:{_EMPTY}")


def _try_overlay(layer: str) -> int:
    """Mounts an overlay in a short-lived mount namespace; returns the errno of a failure, or 0."""
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
    """Escapes a path for mount options, in which commas and colons are separators."""
    return path.replace("\\", "\\\\").replace(",", "\\,").replace(":", "\\:")
