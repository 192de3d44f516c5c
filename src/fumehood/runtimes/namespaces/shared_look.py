"""Shares an expensive inspection of a guest among concurrent callers: one runs at a time.

Runs in the host process, on the engine's loop. This module knows nothing of what is looked at, and must never start a
second look while one is under way.
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
    """An answer that concurrent callers share, and that is kept for a second from the end of its look.

    So the time that looks take is bounded for each guest, and not by how often callers ask.

    Args:
        look: Looks once.
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
        """Returns what a look has found, at most a second before this call; raises what it raised.

        A caller that is cancelled leaves the look to the others; a look that failed is not kept.
        """
        looking = self._looking

        if looking is None or (looking.done() and self._clock() >= self._kept_until):
            self._looking = looking = keep(self._look_once())

        return await wait_shared(looking)

    async def _look_once(self) -> _T:
        found = await self._look()
        self._kept_until = self._clock() + KEPT_SECONDS
        return found
