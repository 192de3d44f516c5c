"""Calls a callback of the user with the security events of a sandbox until it ends.

Security events can come at any time, even between calls: an async callback is awaited on the loop that the sandbox was
made on, a plain one of a `Sandbox` is called in a thread of its own. An exception of a callback is logged.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from fumehood.api.callbacks import AsyncSecurityCallback, SecurityCallback
from fumehood.errors import FumehoodError
from fumehood.log import events
from fumehood.portal import awaited_apart, check_callbacks, notify
from fumehood.values.security import SecurityEvent

if TYPE_CHECKING:
    from fumehood.port.backend import Backend


_following: set[asyncio.Task[None]] = set()


def follow_security_events(backend: Backend, sandbox_id: str, callback: AsyncSecurityCallback) -> None:
    """Call `callback` with each event of a sandbox until it ends, from a task of the running loop."""
    task = asyncio.create_task(_follow(backend, sandbox_id, callback))
    _following.add(task)
    task.add_done_callback(_following.discard)


def called_apart(callback: SecurityCallback | None) -> AsyncSecurityCallback | None:
    """Return an async version of a callback that runs it in the thread of callbacks without a caller."""
    check_callbacks(on_security_event=callback)

    if callback is None:
        return None

    async def run(event: SecurityEvent) -> None:
        async def there() -> None:
            await notify(callback, event)

        await awaited_apart(there)

    return run


async def _follow(backend: Backend, sandbox_id: str, callback: AsyncSecurityCallback) -> None:
    try:
        async with aclosing(backend.security_events(sandbox_id)) as coming:
            async for event in coming:
                await _tell(callback, event)
    except FumehoodError as error:
        # The sandbox has ended, or its server is gone: no more events come.
        events.SECURITY_EVENTS_OVER.log(sandbox_id=sandbox_id, reason=error.log_reason)


async def _tell(callback: AsyncSecurityCallback, event: SecurityEvent) -> None:
    try:
        await notify(callback, event)
    except Exception as error:  # noqa: BLE001 - no caller waits for it, and the next event must still be delivered
        events.CALLBACK_FAILED.log(exc_info=error, callback="on_security_event")
