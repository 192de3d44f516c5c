"""Waits until a server inside a sandbox listens on a port."""

from __future__ import annotations

import asyncio

from fumehood.errors import PortClosedError
from fumehood.port.backend import Backend
from fumehood.values.limits import check_seconds

_FIRST_PAUSE_SECONDS = 0.01
_LONGEST_PAUSE_SECONDS = 0.25


async def wait_for_port(backend: Backend, sandbox_id: str, port: int, seconds: float) -> None:
    """Wait until a program listens on a port of a sandbox.

    The kernel has no event for that, so connections are tried, at growing intervals.

    Raises:
        PortClosedError: No program listens on the port after that many seconds.
    """
    check_seconds("wait", seconds, optional=False)
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    pause = _FIRST_PAUSE_SECONDS

    while True:
        try:
            stream = await backend.open_port(sandbox_id, port)
        except PortClosedError:
            if loop.time() + pause > end:
                raise
        else:
            await stream.close()
            return

        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
