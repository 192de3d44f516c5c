"""Work that nobody waits for: it is begun, and goes on to its end.

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
