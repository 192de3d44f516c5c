"""Removes the control groups of guests that have ended, and limits how many of them the kernel retains.

File pages stay in the page cache, charged to the group that read them first, and a removed group takes memory of the
kernel (about 30 KiB) until its last page has gone. A few such groups are the price of a warm cache; beyond a bound, a
group's pages are reclaimed before it is removed.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from fumehood_jail import cgroups

# Removed groups that the kernel may retain.
MOST_KEPT = 256

_LONGEST_SECONDS = 10.0
_PAUSE_SECONDS = 0.01


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
