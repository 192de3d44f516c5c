"""Shares an expensive inspection of a guest among concurrent callers: one runs at a time.

This module does not know what is inspected, and must never start a second inspection while one is under way.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from fumehood.cancellation import keep, wait_shared

_T = TypeVar("_T")

KEPT_SECONDS = 1.0


class SharedLook(Generic[_T]):
    """One inspection whose result concurrent callers share, cached for one second after the inspection has ended.

    So the time spent on inspections is bounded for each guest, however often callers ask.

    Args:
        look: Carries out one inspection.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self, look: Callable[[], Coroutine[Any, Any, _T]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look = look
        self._clock = clock
        self._looking: asyncio.Task[_T] | None = None
        self._kept_until = -math.inf

    async def answer(self) -> _T:
        """Returns the result of an inspection that ended at most a second ago, or raises its exception.

        A cancelled caller does not cancel the inspection for the others; a failure is not cached.
        """
        looking = self._looking

        if looking is None or (looking.done() and self._clock() >= self._kept_until):
            self._looking = looking = keep(self._look_once())

        return await wait_shared(looking)

    async def _look_once(self) -> _T:
        found = await self._look()
        self._kept_until = self._clock() + KEPT_SECONDS
        return found
