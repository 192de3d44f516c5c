"""Figures of a guest by its control group: what both Linux runtimes report of CPU time and memory.

Runs in the host process, on the engine's loop. Where there is no control group nobody counts from outside, and it says
so. It changes nothing but the beginning of the count of the peak, and the weight of a guest on contended
processors.
"""

from __future__ import annotations

from collections.abc import Iterable

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

    def used_cpu_seconds(self) -> float | None:
        """Return the CPU time that the cgroup counts; None without a cgroup."""
        return None if self._cgroup is None else self._cgroup.used_seconds()

    def halve_cpu_weight(self, halved: bool) -> None:
        """Halve the CPU weight of the cgroup, or restore it; without a cgroup there is none."""
        if self._cgroup is not None:
            self._cgroup.halve_cpu_weight(halved)

    def process_ids(self) -> Iterable[int]:
        """Its processes as the host numbers them, by the cgroup's list; none where there is none, or it has gone."""
        try:
            return self._cgroup.processes() if self._cgroup is not None else ()
        except OSError:
            return ()

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
