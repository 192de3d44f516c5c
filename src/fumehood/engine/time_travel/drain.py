"""Hollowing out: how a sandbox ends when others were forked from it.

Runs in the host process, on the engine's loop. The kernel ends what lies beneath a PID namespace together with it. So
the init of such a sandbox stays, alone and without files, until the last fork has ended; for everybody else the
sandbox has ended.
"""

from __future__ import annotations

import asyncio

from fumehood.engine.init_client import InitClient, InitError, InitGoneError
from fumehood.runtimes.base import Guest


async def hollow_out(guest: Guest, init: InitClient, *, seconds: float = 5.0) -> None:
    """Ends all of a sandbox but its init, without which those that were forked from it could not live."""
    guest.thaw()
    try:
        async with asyncio.timeout(seconds):
            try:
                await init.ask("hollow_out")
            except InitError:
                # Else one of its processes could take the forks along.
                await guest.end_foreign_processes()
                await init.ask("hollow_out")
    except (InitError, InitGoneError, TimeoutError):
        guest.kill()
    else:
        guest.retire()
    finally:
        init.close()
