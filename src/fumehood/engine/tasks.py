"""Work that outlives a cancelled caller: clean-up that later callers wait for, and values that are set once.

How a single task is kept, ended or undone is in `fumehood.cancellation`; what needs a sandbox's clock is here.
"""

from __future__ import annotations

import asyncio
from typing import Any, Generic, TypeVar

from fumehood.cancellation import consume_result, when_done
from fumehood.engine.clock import SandboxClock

_T = TypeVar("_T")


class Awaited(Generic[_T]):
    """A value that is set once, for any number of waiting tasks."""

    __slots__ = ("_values", "_waiting")

    def __init__(self) -> None:
        self._values: tuple[_T, ...] = ()
        self._waiting: list[asyncio.Future[_T]] = []

    def resolve(self, value: _T) -> None:
        """Sets the value; ignored if a value is set already."""
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
        """Whether no clean-up is pending."""
        return not self._tasks

    def add(self, task: asyncio.Future[Any]) -> None:
        """Makes later callers wait for this task as well."""
        self._tasks.add(task)
        when_done(task, self._tasks.discard, task)
        consume_result(task)

    async def wait(self) -> None:
        """Returns when the present tasks are done, or when the sandbox is paused."""
        if self._tasks:
            over = asyncio.ensure_future(asyncio.wait(tuple(self._tasks)))
            try:
                await self._clock.while_going(over)
            finally:
                over.cancel()
