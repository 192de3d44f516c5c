"""Control groups of guests: the beginning of their names, the layer of their disk reads, and their removal.

File pages stay in the page cache, charged to the group that read them first, and a removed group takes memory of the
kernel (about 30 KiB) until its last page has gone. A few such groups are the price of a warm cache; beyond a bound, a
group's pages are reclaimed before it is removed.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from fumehood.values.sandbox import Layer
from fumehood_jail import cgroups
from fumehood_jail.cgroup_base import DISK_READ_BYTES, DISK_READS

CGROUP_PREFIX = "fumehood"
NO_DISK_BOUND = "nothing bounds what it reads from the host's disks"
# Removed groups that the kernel may retain.
MOST_KEPT = 256

_LONGEST_SECONDS = 10.0
_PAUSE_SECONDS = 0.01


def disk_reads(driver: cgroups.CgroupDriver) -> Layer:
    """Returns the layer that bounds a sandbox's reads from the host's disks."""
    if "io" not in driver.controllers:
        return Layer(name="cgroup io", state="off", why=f"{NO_DISK_BOUND}: its controller cannot be written")

    if not driver.disks:
        why = f"{NO_DISK_BOUND}: the kernel bounds none of the disks below the system's files"
        return Layer(name="cgroup io", state="off", why=why)

    most = f"{DISK_READ_BYTES >> 20} MiB and {DISK_READS:,} reads a second"
    why = f"version {driver.version}; at most {most} of disk {', '.join(driver.disks)}"
    return Layer(name="cgroup io", state="on", why=why)


def remove_now(driver: cgroups.CgroupDriver | None, cgroup: cgroups.Cgroup) -> bool:
    """Removes a group whose processes have ended; returns False if it must wait for them or reclaim pages first."""
    return not _must_give_back(driver, cgroup) and cgroup.remove()


async def remove_later(driver: cgroups.CgroupDriver | None, cgroup: cgroups.Cgroup) -> None:
    """Removes a group as soon as its last process has left it; the next start of an engine removes what stays."""
    deadline = time.monotonic() + _LONGEST_SECONDS

    while time.monotonic() < deadline:
        if _must_give_back(driver, cgroup):
            # Reclaim takes the kernel a millisecond or more. At interpreter shutdown no thread can be started.
            with suppress(OSError, RuntimeError):
                await asyncio.to_thread(cgroup.give_memory_back)

        if cgroup.remove():
            return

        await asyncio.sleep(_PAUSE_SECONDS)


def _must_give_back(driver: cgroups.CgroupDriver | None, cgroup: cgroups.Cgroup) -> bool:
    try:
        return driver is not None and driver.kept_groups() > MOST_KEPT and driver.file_bytes(cgroup.name) > 0
    except OSError:
        return False
