"""Waiting until a descriptor can be read, on the running asyncio loop.

Runs in the host process. One wait for one descriptor at a time; nobody else may watch the same descriptor
meanwhile.
"""

from __future__ import annotations

import asyncio


async def until_readable(fd: int) -> None:
    """Returns when `fd` can be read, or has ended."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def note() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(fd, note)
    try:
        await ready
    finally:
        loop.remove_reader(fd)
