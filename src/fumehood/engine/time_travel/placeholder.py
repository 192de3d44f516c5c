"""Reduce to init: the end of a sandbox that still has forks.

The kernel ends everything nested in a PID namespace together with it. So the init of such a sandbox stays, alone and
without files, until the last fork has ended; for all callers the sandbox has ended.
"""

from __future__ import annotations

import asyncio

from fumehood.engine.init_client import InitClient, InitError, InitGoneError
from fumehood.runtimes.base import Guest


async def reduce_to_init(guest: Guest, init: InitClient, *, seconds: float = 5.0) -> None:
    """Ends all processes of a sandbox but its init, without which its forks could not live."""
    guest.thaw()
    try:
        async with asyncio.timeout(seconds):
            try:
                await init.ask("reduce_to_init")
            except InitError:
                # Otherwise one of its processes could end the forks.
                await guest.end_foreign_processes()
                await init.ask("reduce_to_init")
    except (InitError, InitGoneError, TimeoutError):
        guest.kill()
    else:
        guest.retire()
    finally:
        init.close()
