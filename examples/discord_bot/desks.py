"""A desk for each channel or thread: its sandbox, and the conversation about it. Desks that nobody uses are cleared."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fumehood import Limits
from fumehood.llm import AsyncAgent, AsyncCodeInterpreter, Provider

MEMORY_BYTES = 512 * 1024 * 1024


class Desk:
    """One channel's sandbox.

    Attributes:
        interpreter: Where its code runs.
        agent: The model that answers there, when one is configured.
    """

    def __init__(self, model: str | Provider | None, wall_seconds: float) -> None:
        self.interpreter = AsyncCodeInterpreter(
            limits=Limits(wall_seconds=wall_seconds, memory_bytes=MEMORY_BYTES, processes=64)
        )
        self.agent = AsyncAgent(model, interpreter=self.interpreter) if model else None
        self.users = 0
        self.used_at = time.monotonic()

    async def close(self) -> None:
        """End what runs there, and the sandbox."""
        if self.agent is not None:
            await self.agent.close()

        await self.interpreter.close()


class Desks:
    """All desks of a bot.

    Args:
        model: Which model answers questions, or None.
        wall_seconds: Time of one piece of code.
        idle_seconds: A desk that was not used for so long is cleared, with its sandbox.
        max_desks: One more clears the one that was not used for longest.
    """

    def __init__(
        self,
        model: str | Provider | None = None,
        *,
        wall_seconds: float = 30,
        idle_seconds: float = 900,
        max_desks: int = 50,
    ) -> None:
        self._model = model
        self._wall_seconds = wall_seconds
        self._idle_seconds = idle_seconds
        self._max_desks = max_desks
        self._desks: dict[int, Desk] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._desks)

    @asynccontextmanager
    async def at(self, channel_id: int) -> AsyncIterator[Desk]:
        """Use the desk of a channel, made now if it has none."""
        if timer := self._timers.pop(channel_id, None):
            timer.cancel()

        desk = self._desks.get(channel_id)

        if desk is None:
            await self._make_room()
            desk = self._desks[channel_id] = Desk(self._model, self._wall_seconds)

        desk.users += 1

        try:
            yield desk
        finally:
            desk.users -= 1
            desk.used_at = time.monotonic()

            if desk.users == 0 and self._desks.get(channel_id) is desk:
                later = asyncio.get_running_loop().call_later
                self._timers[channel_id] = later(self._idle_seconds, self._clear_later, channel_id)

    async def clear(self, channel_id: int) -> bool:
        """End the sandbox of a channel; False when it has none."""
        if timer := self._timers.pop(channel_id, None):
            timer.cancel()

        desk = self._desks.pop(channel_id, None)

        if desk is None:
            return False

        await desk.close()
        return True

    async def close(self) -> None:
        """Clear all desks."""
        await asyncio.gather(*map(self.clear, [*self._desks]), *self._closing)

    async def _make_room(self) -> None:
        while len(self._desks) >= self._max_desks:
            free = [name for name, desk in self._desks.items() if desk.users == 0] or [*self._desks]
            await self.clear(min(free, key=lambda name: self._desks[name].used_at))

    def _clear_later(self, channel_id: int) -> None:
        task = asyncio.ensure_future(self._clear_idle(channel_id))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _clear_idle(self, channel_id: int) -> None:
        await self.clear(channel_id)
