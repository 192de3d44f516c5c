"""Reduce to init: ends all processes of a sandbox except its init, which its forks or its kept files need.

The kernel ends everything nested in a PID namespace together with it. So the init of a sandbox with forks stays, alone
and without files, until the last fork has ended; for all callers the sandbox has ended. A pause that keeps files only
leaves init with the files.
"""

from __future__ import annotations

import asyncio

from fumehood.engine.init_client import InitClient, InitError, InitGoneError
from fumehood.errors import SandboxError
from fumehood.runtimes.base import Guest
from fumehood.text import visible_line


async def reduce_to_init(guest: Guest, init: InitClient, *, seconds: float = 5.0) -> None:
    """Ends all processes of a sandbox but its init, without which its forks could not live."""
    guest.thaw()
    try:
        async with asyncio.timeout(seconds):
            await _ask_twice("reduce_to_init", guest, init)
    except (InitError, InitGoneError, TimeoutError):
        guest.kill()
    else:
        guest.retire()
    finally:
        init.close()


async def end_processes(guest: Guest, init: InitClient) -> None:
    """Ends all processes of a running sandbox but its init, which keeps the files.

    Raises:
        SandboxError: A process does not end.
    """
    try:
        await _ask_twice("end_processes", guest, init)
    except InitError as error:
        raise SandboxError(
            f"not all processes of the sandbox could be ended: {visible_line(str(error))}",
            hint="it runs on, without those that have ended; try again, or kill it",
        ) from None


async def _ask_twice(verb: str, guest: Guest, init: InitClient) -> None:
    try:
        await init.ask(verb)
    except InitError:
        # Processes of forks that are being made are ended by the host only; their end here could end the forks.
        await guest.end_foreign_processes()
        await init.ask(verb)
