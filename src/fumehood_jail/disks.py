"""Disks: finds the disks below the system's files, whose reads control groups are to bound.

Runs in the host process, outside every jail. Sandboxes read the host's read-only files; reads that miss the page cache
go to a disk that the whole machine shares. The kernel bounds reads per whole disk, by its device number.
"""

from __future__ import annotations

import os
import sys

# All files of the host that sandboxes see lie in these folders: the system, interpreters and packages of templates.
_FOLDERS = ("/usr", sys.prefix, sys.base_prefix)
_MOUNTS = "/proc/self/mountinfo"
# Each disk adds to the time that creating a sandbox takes.
_MOST = 4


def below_the_system(sys_folder: str = "/sys") -> tuple[str, ...]:
    """Returns the disks ("8:0") below the system's files; all disks where a file system does not name its own.

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
    """Returns the whole disk of a device or partition; None if it is no block device."""
    folder = os.path.realpath(f"{sys_folder}/dev/block/{device}")
    if not os.path.isdir(folder):
        return None

    if os.path.exists(f"{folder}/partition"):
        folder = os.path.dirname(folder)

    return _number(f"{folder}/dev")


def _by_source(device: int) -> list[str]:
    """Returns the disk that a file system without a device number of its own (btrfs) is mounted from."""
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
    """Returns every disk backed by a device, without layers such as device mapper."""
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
