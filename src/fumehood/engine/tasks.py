"""Work that goes on to its end, whether anybody waits for it or not.

The loop itself holds on to no task: one that nobody names could be collected in the middle. What a caller has given
up may still have to be undone; whoever comes next waits for that.

Something that comes once, even if whoever waits for it gives up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from fumehood.engine.clock import SandboxClock

_T = TypeVar("_T")


class Awaited(Generic[_T]):
    """One value, for any number of tasks that wait for it."""

    __slots__ = ("_values", "_waiting")

    def __init__(self) -> None:
        self._values: tuple[_T, ...] = ()
        self._waiting: list[asyncio.Future[_T]] = []

    def come(self, value: _T) -> None:
        """It is there; what comes a second time is dropped."""
        if self._values:
            return

        self._values = (value,)

        for future in self._waiting:
            if not future.done():
                future.set_result(value)

        self._waiting.clear()

    async def wait(self) -> _T:
        """Returns it, when it is there."""
        if self._values:
            return self._values[0]

        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return await future


_tasks: set[asyncio.Task[None]] = set()


def keep(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Runs work that nobody waits for, and holds on to its task until it is done."""
    task = asyncio.create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Waits for work that goes on when its caller gives up; what fails then, nobody hears."""
    task = keep(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.shield(task)


class PendingCleanups:
    """What goes on in one sandbox although its callers have gone, such as putting back files.

    Args:
        clock: The sandbox's.
    """

    def __init__(self, clock: SandboxClock) -> None:
        self._clock = clock
        self._tasks: set[asyncio.Future[Any]] = set()

    @property
    def are_over(self) -> bool:
        """True when there are none."""
        return not self._tasks

    def add(self, task: asyncio.Future[Any]) -> None:
        """Whoever comes from now on waits for this as well."""
        self._tasks.add(task)
        task.add_done_callback(self._over)

    async def wait(self) -> None:
        """Returns when those that there are now have come to their end, or when the sandbox is paused."""
        if self._tasks:
            over = asyncio.ensure_future(asyncio.wait(tuple(self._tasks)))
            try:
                await self._clock.while_going(over)
            finally:
                over.cancel()

    def _over(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)

        # Read once: what fails when nobody waits for it any more is nobody's fault.
        if not task.cancelled():
            task.exception()
