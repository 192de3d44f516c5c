"""The events of an execution on their way from the engine to a reader who may be slow.

Runs in the host process, on the engine's loop. Running code cannot be told to wait: what waits for its reader is merged
where that is the same to him, and bounded; a reader who falls further behind ends the execution.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from fumehood.events import Event, ExecutionFinished, StderrEvent, StdoutEvent, event_bytes
from fumehood.execution import Execution
from fumehood.limits import MIB, Limits
from fumehood.service_errors import SlowReaderError

_MAX_MERGED_CHARACTERS = 1 << 16
# Beside the output, which has limits of its own: more than an execution may keep, so only endless updates reach it.
_MAX_WAITING_BYTES = 80 * MIB


async def followed(
    limits: Limits, execute: Callable[[Callable[[Event], None]], Coroutine[Any, Any, Execution]]
) -> AsyncGenerator[Event, None]:
    """Gives the events of an execution; a reader who is too far behind endless updates ends it.

    Raises:
        SlowReaderError: So much waited; what was waiting has come first.
    """
    max_bytes = _MAX_WAITING_BYTES + limits.stdout_bytes + limits.stderr_bytes
    events = _EventQueue(max_bytes, lambda: task.cancel())
    task = asyncio.create_task(execute(events.put))
    task.add_done_callback(lambda _: events.close())
    try:
        while (event := await events.get()) is not None:
            yield event

            if isinstance(event, ExecutionFinished):
                break

        if events.is_too_full:
            raise SlowReaderError(maximum=max_bytes)

        # Raises what the execution raised: the sandbox has failed, or has ended.
        await task
    finally:
        await _settled(task)


async def _settled(task: asyncio.Task[Execution]) -> None:
    """Cancels what still runs, and returns when the context is idle again."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])

    # Read it once: a reader who left early must not make the loop report an error as never retrieved.
    if not task.cancelled():
        task.exception()


class _EventQueue:
    """Events on their way to a reader who may be slow: neighbouring pieces of one stream become one piece.

    Args:
        max_bytes: How much may wait; what comes when it is more is dropped.
        on_too_full: Called once, when it is.
    """

    def __init__(self, max_bytes: int, on_too_full: Callable[[], object]) -> None:
        self.is_too_full = False
        self._max_bytes = max_bytes
        self._on_too_full = on_too_full
        self._events: deque[Event] = deque()
        self._waiting_bytes = 0
        self._closed = False
        self._news = asyncio.Event()

    def put(self, event: Event) -> None:
        if self.is_too_full:
            return

        merged = _merged(self._events[-1], event) if self._events else None

        if merged is not None:
            self._waiting_bytes -= event_bytes(self._events.pop())
            event = merged

        self._events.append(event)
        self._waiting_bytes += event_bytes(event)
        self._news.set()

        if self._waiting_bytes > self._max_bytes and not isinstance(event, ExecutionFinished):
            self.is_too_full = True
            self._on_too_full()

    def close(self) -> None:
        self._closed = True
        self._news.set()

    async def get(self) -> Event | None:
        while not self._events:
            if self._closed:
                return None

            self._news.clear()
            await self._news.wait()

        event = self._events.popleft()
        self._waiting_bytes -= event_bytes(event)
        return event


def _merged(last: Event, event: Event) -> Event | None:
    """One piece of two, if they are of one stream and it is not too long."""
    if isinstance(event, StdoutEvent) and isinstance(last, StdoutEvent) and _fits(last.text, event.text):
        return StdoutEvent(text=last.text + event.text, at_seconds=last.at_seconds)

    if isinstance(event, StderrEvent) and isinstance(last, StderrEvent) and _fits(last.text, event.text):
        return StderrEvent(text=last.text + event.text, at_seconds=last.at_seconds)

    return None


def _fits(text: str, more: str) -> bool:
    return len(text) + len(more) <= _MAX_MERGED_CHARACTERS
