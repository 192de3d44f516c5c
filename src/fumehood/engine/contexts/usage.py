"""Measures resource usage: of one execution, and of a whole sandbox at a moment.

The kernel's counters for the whole sandbox are used where they exist; otherwise the guest's report or init's. The
host's own clock measures the wall time. Figures that only the guest can give must not be trusted more than the code in
it. For a paused sandbox, its last figures are returned.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from fumehood.engine.clock import SandboxClock
from fumehood.engine.contexts.connection import RunningExecution
from fumehood.engine.security_events import SecurityMonitor
from fumehood.runtimes.base import CpuTime, Guest
from fumehood.values.limits import Usage
from fumehood.values.requests import ExecuteRequest
from fumehood.values.sandbox import Metrics


@dataclass(frozen=True, slots=True)
class Reading:
    """The counters at the start of an execution."""

    stood_still_seconds: float
    cpu: CpuTime | None


class Measure(Protocol):
    """Measures executions, one at a time."""

    def open(self) -> None:
        """Opens the counters, which may fail, before anything is sent."""

    def begin(self) -> Reading:
        """Reads the counters at the start."""

    async def cpu_seconds_since(self, reading: Reading) -> float:
        """Returns the CPU time since the reading, or an upper bound of it."""

    def end(
        self,
        reading: Reading,
        running: RunningExecution,
        request: ExecuteRequest,
        reply: dict[str, Any] | None,
    ) -> Usage:
        """Returns the usage since the reading."""


class Meter:
    """Reads the counters of one sandbox.

    Args:
        guest: The runtime's object.
        ask_cpu_seconds: Asks init for the CPU time so far, where the host has no counter of its own.
        clock: The sandbox's clock: a pause does not count as wall time.
    """

    def __init__(
        self, guest: Guest, ask_cpu_seconds: Callable[[], Awaitable[float]], clock: SandboxClock
    ) -> None:
        self._guest = guest
        self._clock = clock
        self._ask_cpu_seconds = ask_cpu_seconds
        self._asked_at_start: float | None = None
        self._is_open = False

    def open(self) -> None:
        """Opens the counters before anything is sent, since that can fail.

        Raises:
            OSError: The counters cannot be opened.
        """
        if not self._is_open:
            self._guest.peak_memory_bytes(restart=True)
            self._guest.cpu_time()
            self._is_open = True

    def begin(self) -> Reading:
        """Reads the counters, and restarts the count of peak memory."""
        self._guest.peak_memory_bytes(restart=True)
        self._asked_at_start = None
        return Reading(self._clock.stood_still_seconds, self._guest.cpu_time())

    def begin_alone(self) -> Reading:
        """Returns a reading without CPU counters: those are per sandbox, and several processes run at once."""
        return Reading(self._clock.stood_still_seconds, None)

    async def cpu_seconds_since(self, reading: Reading) -> float:
        """Returns the CPU time of the sandbox since the reading."""
        now = self._guest.cpu_time()

        if now is not None and reading.cpu is not None:
            spent = now.user_seconds - reading.cpu.user_seconds
            return spent + now.system_seconds - reading.cpu.system_seconds

        asked = await self._ask_cpu_seconds()

        if self._asked_at_start is None:
            self._asked_at_start = asked

        return asked - self._asked_at_start

    def end(
        self,
        reading: Reading,
        running: RunningExecution,
        request: ExecuteRequest,
        reply: dict[str, Any] | None,
    ) -> Usage:
        """Returns the usage since the reading."""
        cpu = self._guest.cpu_time()
        before = reading.cpu
        spent = None

        if cpu is not None and before is not None:
            spent = CpuTime(
                user_seconds=max(0.0, cpu.user_seconds - before.user_seconds),
                system_seconds=max(0.0, cpu.system_seconds - before.system_seconds),
            )

        return self._usage(reading, running, request, reply, spent, self._guest.peak_memory_bytes())

    def end_alone(
        self,
        reading: Reading,
        running: RunningExecution,
        request: ExecuteRequest,
        reply: dict[str, Any] | None,
    ) -> Usage:
        """Returns the usage that one process reports."""
        return self._usage(reading, running, request, reply, None, None)

    def _usage(
        self,
        reading: Reading,
        running: RunningExecution,
        request: ExecuteRequest,
        reply: dict[str, Any] | None,
        cpu: CpuTime | None,
        peak_memory_bytes: int | None,
    ) -> Usage:
        reported = reply or {"user_cpu_seconds": 0.0, "system_cpu_seconds": 0.0, "peak_memory_bytes": 0}
        paused_seconds = self._clock.stood_still_seconds - reading.stood_still_seconds
        return Usage(
            wall_seconds=max(0.0, time.monotonic() - running.started - paused_seconds),
            user_cpu_seconds=reported["user_cpu_seconds"] if cpu is None else cpu.user_seconds,
            system_cpu_seconds=reported["system_cpu_seconds"] if cpu is None else cpu.system_seconds,
            peak_memory_bytes=reported["peak_memory_bytes"]
            if peak_memory_bytes is None
            else peak_memory_bytes,
            bytes_in=len(request.code.encode("utf-8", "surrogatepass")),
            bytes_out=running.bytes_out,
        )


class ProcessMeter:
    """Measures one process among several that run at once by its own report.

    Args:
        meter: The sandbox's meter.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def open(self) -> None:
        """Does nothing."""

    def begin(self) -> Reading:
        """Reads only the clock."""
        return self._meter.begin_alone()

    async def cpu_seconds_since(self, reading: Reading) -> float:
        """Returns the CPU time of the whole sandbox: an upper bound."""
        return await self._meter.cpu_seconds_since(reading)

    def end(
        self,
        reading: Reading,
        running: RunningExecution,
        request: ExecuteRequest,
        reply: dict[str, Any] | None,
    ) -> Usage:
        """Returns the usage that the process reports."""
        return self._meter.end_alone(reading, running, request, reply)


class LiveMetrics:
    """Reads the usage of one sandbox.

    Args:
        guest: The runtime's object.
        ask: Sends requests to init.
        security: Checks init's figures.
        clock: The sandbox's clock.
    """

    def __init__(
        self,
        guest: Guest,
        ask: Callable[..., Awaitable[tuple[Any, bytes]]],
        security: SecurityMonitor,
        clock: SandboxClock,
    ) -> None:
        self._guest = guest
        self._ask = ask
        self._security = security
        self._clock = clock
        self._started = time.monotonic()
        self._last_figures: dict[str, Any] = {}

    def begin(self) -> None:
        """Starts the uptime, when the sandbox is handed out."""
        self._started = time.monotonic()

    async def remember(self) -> None:
        """Saves init's figures, which cannot be requested while the sandbox is paused."""
        self._last_figures = await self._figures()

    async def read(self) -> Metrics:
        """Returns the present usage."""
        value = self._last_figures if self._clock.is_stopped else await self._figures_until_paused()
        cpu = self._guest.cpu_time()
        memory = self._guest.memory_bytes()
        peak = self._guest.peak_memory_bytes()
        return Metrics(
            cpu_seconds=value["cpu_seconds"] if cpu is None else cpu.user_seconds + cpu.system_seconds,
            memory_bytes=value["memory_bytes"] if memory is None else memory,
            peak_memory_bytes=value["memory_bytes"] if peak is None else peak,
            disk_used_bytes=value["disk_used_bytes"],
            disk_total_bytes=value["disk_total_bytes"],
            inodes_used=value["inodes_used"],
            processes=value["processes"],
            uptime_seconds=time.monotonic() - self._started,
            security_events=self._security.counts,
        )

    async def _figures_until_paused(self) -> dict[str, Any]:
        asking = asyncio.ensure_future(self._figures())
        try:
            await self._clock.while_going(asking)
            return asking.result() if asking.done() else self._last_figures
        finally:
            asking.cancel()

    async def _figures(self) -> dict[str, Any]:
        # A cgroup counts the memory already, and without looking at every page.
        figures, _ = await self._ask("metrics", with_memory=self._guest.memory_bytes() is None)
        self._security.note_figures(figures)
        return dict(figures)
