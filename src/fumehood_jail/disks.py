"""Disks: finds those below the system's files, whose reads control groups are to bound.

Runs in the host process, outside every jail. A sandbox reads the host's read-only files, and what is not in memory
comes from a disk that the whole machine shares. The kernel bounds reads for each whole disk, by its numbers.
"""

from __future__ import annotations

import os
import sys

# Below them lies all that sandboxes see of the host: the system, and the interpreters and packages of templates.
_FOLDERS = ("/usr", sys.prefix, sys.base_prefix)
_MOUNTS = "/proc/self/mountinfo"
# More take a while for each sandbox that is made.
_MOST = 4


def below_the_system(sys_folder: str = "/sys") -> tuple[str, ...]:
    """Returns the disks ("8:0") below the system's files; all of the machine where a file system does not tell its own.

    Args:
        sys_folder: Where sysfs is mounted.
    """
    found: dict[str, None] = {}

    for folder in _FOLDERS:
        try:
            number = _device_of(folder)
        except OSError:
            continue

        disk = _whole_disk(f"{os.major(number)}:{os.minor(number)}", sys_folder)
        disks = [disk] if disk is not None else _by_source(number) or _all_disks(sys_folder)
        found.update(dict.fromkeys(disks))

    return tuple(found)[:_MOST]


def _device_of(folder: str) -> int:
    return os.stat(folder).st_dev


def _whole_disk(device: str, sys_folder: str) -> str | None:
    """The disk that a device is, or is a part of; None if it is no block device."""
    folder = os.path.realpath(f"{sys_folder}/dev/block/{device}")
    if not os.path.isdir(folder):
        return None

    if os.path.exists(f"{folder}/partition"):
        folder = os.path.dirname(folder)

    return _number(f"{folder}/dev")


def _by_source(device: int) -> list[str]:
    """The disk that a file system without numbers of its own is mounted from, as btrfs is."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            source = right.split()[1]
            if left.split()[2] != wanted or not source.startswith("/dev/"):
                continue

            try:
                number = os.stat(source).st_rdev
            except OSError:
                continue

            disk = _whole_disk(f"{os.major(number)}:{os.minor(number)}", "/sys")
            return [] if disk is None else [disk]

    return []


def _all_disks(sys_folder: str) -> list[str]:
    """Every disk that is a device, and no layer over others."""
    numbers = (
        _number(f"{sys_folder}/block/{name}/dev")
        for name in _names(f"{sys_folder}/block")
        if os.path.exists(f"{sys_folder}/block/{name}/device")
    )
    return [number for number in numbers if number is not None]


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _number(path: str) -> str | None:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None
