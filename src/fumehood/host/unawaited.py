"""Work that goes on to its end, whether anybody waits for it or not.

Runs in the host process, on the engine's loop. The loop itself holds on to no task: one that nobody names could be
collected in the middle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

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
