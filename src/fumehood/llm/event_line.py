"""From the task that works to the one that listens: events in order, and the end.

Runs in the host process, on one loop. The worker waits when the listener is slow, so nothing piles up; the mark of
the end always finds room, so a worker that was cancelled never waits for a listener that has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from fumehood.llm.events import AgentEvent

# How many events may wait to be read.
_AHEAD = 64


class EventLine:
    """The line between the two."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(_AHEAD)
        self._queue: asyncio.Queue[AgentEvent | None] = asyncio.Queue()

    async def tell(self, event: AgentEvent) -> None:
        """Pass an event on, once there is room."""
        await self._room.acquire()
        self._queue.put_nowait(event)

    def end(self, _: object = None) -> None:
        """Mark the end of the line; fit to be called when a task is done, also one that never began."""
        self._queue.put_nowait(None)

    async def events(self) -> AsyncGenerator[AgentEvent, None]:
        """Give the events until the mark."""
        while (event := await self._queue.get()) is not None:
            self._room.release()
            yield event
