"""The pool: sandboxes of each template that are made before they are requested.

Refilling must not slow down running sandboxes: it starts only after the sandbox that was just taken has had time for a
short call, and makes one sandbox at a time. A sandbox leaves the pool once and never returns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from fumehood.engine.sandbox import LiveSandbox
from fumehood.errors import reason_of
from fumehood.log import events
from fumehood.log.request_ids import apart

# Longer than a stateless call takes, and shorter than the usual time between two calls.
_PAUSE_SECONDS = 0.02
_RETRY_SECONDS = 2.0


class Pool:
    """Ready sandboxes of one template.

    Args:
        template: Its name.
        size: How many to keep ready.
        make: Makes a sandbox with default limits.
    """

    def __init__(self, template: str, size: int, make: Callable[[], Awaitable[LiveSandbox]]) -> None:
        self._template = template
        self._size = size
        self._make = make
        self._ready: deque[LiveSandbox] = deque()
        self._filling: asyncio.Task[None] | None = None
        self._clock: asyncio.TimerHandle | None = None
        self._full = asyncio.Event()
        self._fault: Exception | None = None
        self._closed = False
        self.hits = 0
        self.misses = 0

    @property
    def ready(self) -> int:
        """The number of sandboxes that are ready."""
        return len(self._ready)

    def take(self) -> LiveSandbox | None:
        """Returns a ready sandbox, or None if there is none; either way the pool is refilled shortly after."""
        self._fill_later()

        while self._ready:
            sandbox = self._ready.popleft()

            if sandbox.alive:
                self.hits += 1
                return sandbox

        self.misses += 1
        return None

    def fill(self) -> None:
        """Starts the task that makes sandboxes until the pool has as many as it should."""
        if self._closed or (self._filling is not None and not self._filling.done()):
            return

        self._full.clear()
        self._fault = None
        self._filling = apart(self._fill())

    def _fill_later(self) -> None:
        if self._clock is not None:
            self._clock.cancel()

        self._clock = asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self.fill)

    async def wait_full(self) -> None:
        """Returns when the pool is full or closed; raises the error that prevents its filling."""
        self.fill()
        await self._full.wait()

        if self._fault is not None:
            raise self._fault

    def close(self) -> None:
        """Ends the ready sandboxes and stops making new ones."""
        self._closed = True
        self._full.set()

        if self._clock is not None:
            self._clock.cancel()

        if self._filling is not None:
            self._filling.cancel()

        for sandbox in self._ready:
            sandbox.end("host_closed")

        self._ready.clear()

    async def _fill(self) -> None:
        try:
            while len(self._ready) < self._size and not self._closed:
                sandbox = await self._make()

                if self._closed:
                    # It was made in the moment of the cancellation.
                    sandbox.end("host_closed")
                    return

                self._ready.append(sandbox)
        except Exception as error:  # noqa: BLE001 - the next caller makes its own, and gets the error of that
            self._fault = error
            events.POOL_NOT_FILLED.log(
                template=self._template, ready=len(self._ready), size=self._size, reason=reason_of(error)
            )
        finally:
            self._full.set()


class Warmth:
    """Whether the pool of the default template has been full.

    Args:
        wait_full: Returns when the pool of a template is full, or raises the error that prevents its filling.

    Attributes:
        is_reached: Whether it has been full.
        reason: Why it could not be filled at the last attempt.
    """

    def __init__(self, wait_full: Callable[[str], Awaitable[None]]) -> None:
        self._wait_full = wait_full
        self.is_reached = False
        self.reason = ""

    async def reach(self) -> None:
        """Fills the pool; tries again until the pool has been full once."""
        while True:
            try:
                await self._wait_full("default")
                self.is_reached, self.reason = True, ""
                return
            except Exception as error:  # noqa: BLE001 - the reason is shown, and it is tried again
                self.reason = reason_of(error)

            await asyncio.sleep(_RETRY_SECONDS)
