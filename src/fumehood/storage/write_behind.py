"""Work that is collected for a while and then done at once: counters, times of last use.

Without a request nothing runs; when the work fails it is tried again after the same pause, and the failure is logged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fumehood.errors import FumehoodError
from fumehood.log import events
from fumehood.log.request_ids import apart


class Later:
    """Calls `act` once, `seconds` after the first request.

    Args:
        seconds: How long to collect.
        act: The work. When it fails with an error of ours, it must have kept what it could not do.
    """

    def __init__(self, seconds: float, act: Callable[[], Awaitable[None]]) -> None:
        self._seconds = seconds
        self._act = act
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Request the work; a further request meanwhile changes nothing."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._begin)

    async def close(self) -> None:
        """Do the outstanding work now."""
        if self._timer is not None:
            self._timer.cancel()

        if self._task is not None:
            await self._task

        # A failure has requested it again.
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

        await self._act()

    def _begin(self) -> None:
        self._timer = None
        self._task = apart(self._do())

    async def _do(self) -> None:
        try:
            await self._act()
        except FumehoodError as error:
            events.STORAGE_RETRIED.log(reason=error.log_reason, retry_after_seconds=self._seconds)
            self.ask()
