"""A bounded queue of events from the task of a turn to the reader of its stream.

Runs in the user's process, on one loop. The producer waits when the reader is slow; the end mark always finds room, so
a cancelled producer never waits for a reader that has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from fumehood.llm.events import AgentEvent

# How many events may wait to be read.
_AHEAD = 64


class EventLine:
    """The queue between the two."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(_AHEAD)
        self._queue: asyncio.Queue[AgentEvent | None] = asyncio.Queue()

    async def tell(self, event: AgentEvent) -> None:
        """Add an event, once there is room."""
        await self._room.acquire()
        self._queue.put_nowait(event)

    def end(self, _: object = None) -> None:
        """Add the end mark; usable as a done callback of a task, also of one that never began."""
        self._queue.put_nowait(None)

    async def events(self) -> AsyncGenerator[AgentEvent, None]:
        """Yield the events until the end mark."""
        while (event := await self._queue.get()) is not None:
            self._room.release()
            yield event
