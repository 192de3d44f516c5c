"""Work that runs to its end, whether or not its caller waits for it.

The loop itself holds only weak references to tasks: a task without another reference could be collected. Work of a
cancelled caller may still have to be undone; later callers wait for that. `Awaited` holds a value that is set once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from fumehood.engine.clock import SandboxClock

_T = TypeVar("_T")


class Awaited(Generic[_T]):
    """A value that is set once, for any number of waiting tasks."""

    __slots__ = ("_values", "_waiting")

    def __init__(self) -> None:
        self._values: tuple[_T, ...] = ()
        self._waiting: list[asyncio.Future[_T]] = []

    def come(self, value: _T) -> None:
        """Sets the value; a second one is ignored."""
        if self._values:
            return

        self._values = (value,)

        for future in self._waiting:
            if not future.done():
                future.set_result(value)

        self._waiting.clear()

    async def wait(self) -> _T:
        """Returns the value once it is set."""
        if self._values:
            return self._values[0]

        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return await future


_tasks: set[asyncio.Task[None]] = set()


def keep(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Runs work in the background, and keeps a reference to its task until it is done."""
    task = asyncio.create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Waits for work that continues after a cancellation; its exceptions are discarded then."""
    task = keep(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.shield(task)


class PendingCleanups:
    """Background work of cancelled callers in one sandbox, such as restoring files.

    Args:
        clock: The sandbox's clock.
    """

    def __init__(self, clock: SandboxClock) -> None:
        self._clock = clock
        self._tasks: set[asyncio.Future[Any]] = set()

    @property
    def are_over(self) -> bool:
        """Whether there is none."""
        return not self._tasks

    def add(self, task: asyncio.Future[Any]) -> None:
        """Makes later callers wait for this task as well."""
        self._tasks.add(task)
        task.add_done_callback(self._over)

    async def wait(self) -> None:
        """Returns when the present tasks are done, or when the sandbox is paused."""
        if self._tasks:
            over = asyncio.ensure_future(asyncio.wait(tuple(self._tasks)))
            try:
                await self._clock.while_going(over)
            finally:
                over.cancel()

    def _over(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)

        # Retrieved, because the caller may have been cancelled.
        if not task.cancelled():
            task.exception()
