"""Figures of a guest by its control group: what both Linux runtimes report of CPU time and memory.

Runs in the host process, on the engine's loop. Where there is no control group nobody counts from outside, and it says
so. It changes nothing but the beginning of the count of the peak, and whether a guest makes way for others.
"""

from __future__ import annotations

from fumehood.runtimes.base import CpuTime, Guest
from fumehood_jail import cgroups


class CountedGuest(Guest):
    """A guest that may have a control group."""

    _cgroup: cgroups.Cgroup | None
    _last_oom_kills: int

    def cpu_time(self) -> CpuTime | None:
        """CPU time by the cgroup's count; see the port."""
        if self._cgroup is None:
            return None

        user_seconds, system_seconds = self._cgroup.cpu_seconds()
        return CpuTime(user_seconds=user_seconds, system_seconds=system_seconds)

    def used_seconds(self) -> float | None:
        """CPU time by the cgroup's count; None where nobody counts."""
        return None if self._cgroup is None else self._cgroup.used_seconds()

    def make_way(self, makes_way: bool) -> None:
        """Gives it a small share of the processors where others want them too, or its whole one."""
        if self._cgroup is not None:
            self._cgroup.set_small_share(makes_way)

    def memory_bytes(self) -> int | None:
        """Memory by the cgroup's count; see the port."""
        return None if self._cgroup is None else self._cgroup.memory_bytes()

    def peak_memory_bytes(self, *, restart: bool = False) -> int | None:
        """Peak by the cgroup's count; see the port."""
        if self._cgroup is None:
            return None

        if restart:
            self._cgroup.reset_peak()
            return None

        return self._cgroup.peak_memory_bytes()

    def oom_kills(self) -> int:
        """Kills by the cgroup's count; see the port."""
        return self._last_oom_kills if self._cgroup is None else self._cgroup.oom_kills()
