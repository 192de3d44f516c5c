"""What one sandbox uses at this moment: what the host counts, and what only its init can tell.

Init is inside, and only believed where nothing else counts; of a paused one, what it said last is told.
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
    """Reads what one sandbox uses.

    Args:
        guest: What the runtime made.
        ask: Asks init.
        security: Takes note of what init says.
        clock: The sandbox's.
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
        """It is its user's from now on."""
        self._started = time.monotonic()

    async def remember(self) -> None:
        """Takes note of what nobody can ask while it is paused."""
        self._last_figures = await self._figures()

    async def read(self) -> Metrics:
        """Tells what it uses now."""
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
