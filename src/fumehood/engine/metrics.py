"""The resource usage of one sandbox: from the host's counters, and from init where there are none.

Init is inside the sandbox, and used only where the host has no counter; of a paused sandbox, its last figures are
returned.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fumehood.engine.audit.security_events import SecurityMonitor
from fumehood.engine.clock import SandboxClock
from fumehood.runtimes.base import Guest
from fumehood.values.sandbox import Metrics


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
        ask: Callable[[str], Awaitable[tuple[Any, bytes]]],
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
        figures, _ = await self._ask("metrics")
        self._security.note_figures(figures)
        return dict(figures)
