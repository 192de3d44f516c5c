"""Reducing to an init: how a sandbox ends when others were forked from it.

The kernel ends what lies beneath a PID namespace together with it. So the init of such a sandbox stays, alone and
without files, until the last fork has ended; for everybody else the sandbox has ended.
"""

from __future__ import annotations

import asyncio

from fumehood.engine.init_client import InitClient, InitError, InitGoneError
from fumehood.runtimes.base import Guest


async def reduce_to_init(guest: Guest, init: InitClient, *, seconds: float = 5.0) -> None:
    """Ends all of a sandbox but its init, without which those that were forked from it could not live."""
    guest.thaw()
    try:
        async with asyncio.timeout(seconds):
            try:
                await init.ask("reduce_to_init")
            except InitError:
                # Else one of its processes could take the forks along.
                await guest.end_foreign_processes()
                await init.ask("reduce_to_init")
    except (InitError, InitGoneError, TimeoutError):
        guest.kill()
    else:
        guest.retire()
    finally:
        init.close()
