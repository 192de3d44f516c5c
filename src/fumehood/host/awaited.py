"""Something that comes once, even if whoever waits for it gives up.

Runs in the host process, on the engine's loop. An awaited future is cancelled with the task that waits for it;
shielding it would cost every wait a turn of the loop.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

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
