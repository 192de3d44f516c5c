"""Removes the control groups of guests that have ended, and keeps the kernel from keeping too many of them.

Pages of files stay in memory for whoever reads them next, charged to the group that read them first, and a removed
group takes memory of the kernel (about 30 KiB) until its last page has gone. A few such groups are the price of warm
files; where there are many, a group gives its pages back before it goes.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from fumehood_jail import cgroups

# Removed groups that the kernel may keep.
MOST_KEPT = 256

_LONGEST_SECONDS = 10.0
_PAUSE_SECONDS = 0.01


def remove_now(driver: cgroups.CgroupDriver | None, cgroup: cgroups.Cgroup) -> bool:
    """Removes a group whose processes have ended, unless it has to wait for them or to give pages back first."""
    return not _must_give_back(driver, cgroup) and cgroup.remove()


async def remove_later(driver: cgroups.CgroupDriver | None, cgroup: cgroups.Cgroup) -> None:
    """Removes a group as soon as its last process has left it; what stays, the next start of an engine removes."""
    deadline = time.monotonic() + _LONGEST_SECONDS

    while time.monotonic() < deadline:
        if _must_give_back(driver, cgroup):
            # It takes the kernel a millisecond and more. At the end of the interpreter there is no thread for it.
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
