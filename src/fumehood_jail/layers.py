"""Layers: several folders of the host, seen as one tree, by overlayfs in a user namespace.

Runs in the clone that becomes the jail init of an image's template, and in jails of builds, before any program of
the image. Layers are read-only, whatever a process in the tree may do. Their whiteouts have the form that a mount
with `userxattr` understands, which needs no right on the host (Linux 5.11).
"""

from __future__ import annotations

import os
from typing import Sequence

from fumehood_jail import syscalls
from fumehood_jail.errors import JailError


def mount_layers(lower: Sequence[int], target: str, upper: Sequence[int], written: str) -> None:
    """Mounts layers on a folder.

    Before: the descriptors were opened in this mount namespace; /proc is the one of this process.

    Args:
        lower: Descriptors of the layers, the lowest first.
        target: The folder.
        upper: Descriptors of the folders for what is written, and for overlayfs; empty to keep that in `written`.
        written: A path on a memory filesystem.
    """
    if not upper:
        for name in ("", "/upper", "/work"):
            os.mkdir(written + name)

    above, work = [f"/proc/self/fd/{fd}" for fd in upper] or [f"{written}/upper", f"{written}/work"]
    below = ":".join(f"/proc/self/fd/{fd}" for fd in reversed(lower))
    options = f"lowerdir={below},upperdir={above},workdir={work},userxattr"
    try:
        syscalls.mount("overlay", target, "overlay", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)
    except OSError as error:
        raise JailError(
            "stack the layers of the image",
            error.errno or 0,
            f"{len(lower)} layers: {error}",
            "it takes Linux 5.11 with overlayfs, and a folder for templates that does not lie on overlayfs itself: "
            "name one in FUMEHOOD_HOME",
        ) from None
