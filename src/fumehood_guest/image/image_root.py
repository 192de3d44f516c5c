"""The root of a step of a build: the layers of an image, and on top the layer that the step writes.

Runs in an image jail before any program of the image. Afterwards only these parts of the host remain visible: the
layers, which are read-only, the new layer, and six devices.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List

from fumehood_jail import device_nodes, layers, syscalls
from fumehood_jail.errors import JailError

_STAGING = "/tmp"  # noqa: S108 - a mount point in a private mount namespace
_ROOT = f"{_STAGING}/root"
_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV
_FOLDERS = ("/dev", "/etc", "/proc", "/run", "/sys", "/tmp", "/var/tmp")  # noqa: S108 - in the image
# apt checks that it has really become another user, which it cannot where all users are one.
APT_SETTINGS = "/dev/.apt.conf"


def enter(plan: Dict[str, Any]) -> None:
    """Replaces the root of this mount namespace by that of an image.

    Args:
        plan: `layers` (folders, the lowest first), `upper` and `work` (folders, or None for a step whose writes are
            dropped), and `files` (texts by the paths that show them).
    """
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    lower = [_opened(path) for path in plan["layers"]]
    upper = [_opened(path) for path in (plan["upper"], plan["work"]) if path is not None]
    devices = [_opened(f"/dev/{name}") for name in device_nodes.NODES]
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    syscalls.mount("tmpfs", _STAGING, "tmpfs", _FLAGS, "mode=0755,size=256m")
    shown = {path: _written(number, text) for number, (path, text) in enumerate(plan["files"].items())}
    os.mkdir(_ROOT)
    layers.mount_layers(lower, _ROOT, upper, f"{_STAGING}/.written")
    os.chdir(_ROOT)
    # From here on links of the image lead to the image. The old root lies on top of the new one until it is unmounted.
    syscalls.pivot_root(".", ".")
    _check_no_links()
    _mount_system(devices)

    for path, fd in shown.items():
        _show_file(path, fd)

    syscalls.umount2(".", syscalls.MNT_DETACH)
    os.chdir("/")

    if not os.path.samestat(os.stat("/.."), os.stat("/")):
        raise JailError("leave the old root", 0, "a part of it is left")

    for fd in (*lower, *upper, *devices, *shown.values()):
        os.close(fd)


def _check_no_links() -> None:
    """Refuses links where something is mounted or made: `..` at the new root still leads to the host."""
    for path in ("/proc", "/sys", "/dev", "/etc", "/var"):
        if os.path.islink(path):
            raise JailError("prepare the root of the image", 0, f"{path!r} of the image is a link")


def _opened(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def _written(number: int, text: str) -> int:
    path = f"{_STAGING}/.file{number}"

    with open(path, "w", encoding="utf-8") as file:
        file.write(text)

    os.chmod(path, 0o644)
    return _opened(path)


def _mount_system(devices: List[int]) -> None:
    for name in _FOLDERS:
        if not os.path.lexists(name):
            os.makedirs(name, 0o755)
            os.chmod(name, 0o1777 if name.endswith("tmp") else 0o755)

    syscalls.mount("proc", "/proc", "proc", _FLAGS | syscalls.MS_NOEXEC)
    syscalls.mount("tmpfs", "/sys", "tmpfs", _FLAGS | syscalls.MS_RDONLY, "size=4k,mode=0755")
    syscalls.mount("tmpfs", "/dev", "tmpfs", syscalls.MS_NOSUID, "size=64m,mode=0755")

    for name, fd in zip(device_nodes.NODES, devices):  # noqa: B905 - guests run on Python 3.9 too
        target = f"/dev/{name}"
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
        syscalls.mount(f"/proc/self/fd/{fd}", target, None, syscalls.MS_BIND)

    for name, link in device_nodes.LINKS.items():
        os.symlink(link, f"/dev/{name}")

    os.mkdir("/dev/shm", 0o1777)  # noqa: S108 - in the image
    os.mkdir("/dev/pts")
    options = "newinstance,ptmxmode=0666,mode=0620,max=64"
    syscalls.mount("devpts", "/dev/pts", "devpts", syscalls.MS_NOSUID | syscalls.MS_NOEXEC, options)


def _show_file(path: str, fd: int) -> None:
    """Binds a file over the image's file, which is not changed; if a link is in its place, nothing is bound."""
    if os.path.islink(path):
        return

    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
    syscalls.mount(f"/proc/self/fd/{fd}", path, None, syscalls.MS_BIND)
