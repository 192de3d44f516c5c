"""The control group of a step: bounds the memory and the processes of all its programs together.

Runs in the host process. Where no group can be made, `why_not` gives the reason, and the build reports it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

from fumehood_jail import cgroups
from fumehood_jail.errors import JailError

# Not the prefix of sandboxes, whose groups an engine removes when the engine that made them is dead.
_PREFIX = "fumehoodbuild"
_END_SECONDS = 10.0
_PAUSE_SECONDS = 0.01


def default_memory_bytes() -> int:
    """Returns the default memory limit of a step: three quarters of the machine's memory, and at most 8 GiB."""
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(8 << 30, machine_bytes * 3 // 4)


def why_not() -> str:
    """Returns the reason why this machine gives steps no control group; empty if it does."""
    driver, reasons = _place()
    return "" if driver is not None else "; ".join(reasons)


class StepGroup:
    """The group of one step.

    Attributes:
        fds: Descriptors by which a process moves itself in, by writing "0" to each.
    """

    def __init__(self, cgroup: cgroups.Cgroup | None) -> None:
        self._cgroup = cgroup
        self.fds = [] if cgroup is None else cgroup.open_cgroup_fds()

    def has_killed(self) -> bool:
        """Whether a process was killed because the memory of the group was used up."""
        return self._cgroup is not None and self._cgroup.oom_kills() > 0

    def close(self) -> None:
        """Kills the remaining processes of the group, and removes it."""
        for fd in self.fds:
            os.close(fd)

        if self._cgroup is None:
            return

        deadline = time.monotonic() + _END_SECONDS
        # A group that cannot be removed now is removed by the next build.
        with suppress(JailError, OSError):
            while not self._cgroup.remove() and time.monotonic() < deadline:
                self._cgroup.kill()
                time.sleep(_PAUSE_SECONDS)


@contextmanager
def step_group(label: str, memory_bytes: int, processes: int) -> Iterator[StepGroup]:
    """Makes the control group of a step for the block; where none can be made, yields one without effect.

    Args:
        label: A name that no other step of this process has.
        memory_bytes: Its limit of memory.
        processes: Its limit of processes.
    """
    driver, _ = _place()
    made = None

    if driver is not None:
        made = driver.create(
            cgroups.cgroup_name(_PREFIX, label),
            memory_bytes=memory_bytes,
            processes=processes,
            cpu_cores=float(os.cpu_count() or 1),
        )

    group = StepGroup(made)
    try:
        yield group
    finally:
        group.close()


@cache
def _place() -> tuple[cgroups.CgroupDriver | None, list[str]]:
    driver, reasons = cgroups.detect()

    if driver is not None:
        cgroups.sweep(driver, _PREFIX)

    return driver, reasons
