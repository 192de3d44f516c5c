"""Waiting until a descriptor can be read or written, on the running asyncio loop.

Runs in the host process. One wait for one descriptor at a time; nobody else may watch the same descriptor
meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until_readable(fd: int) -> None:
    """Returns when `fd` can be read, or has ended."""
    loop = asyncio.get_running_loop()
    await _until(loop, fd, loop.add_reader, loop.remove_reader)


async def until_writable(fd: int) -> None:
    """Returns when `fd` can be written, or has ended."""
    loop = asyncio.get_running_loop()
    await _until(loop, fd, loop.add_writer, loop.remove_writer)


async def _until(
    loop: asyncio.AbstractEventLoop,
    fd: int,
    add: Callable[[int, Callable[[], None]], None],
    remove: Callable[[int], bool],
) -> None:
    ready: asyncio.Future[None] = loop.create_future()

    def note() -> None:
        if not ready.done():
            ready.set_result(None)

    add(fd, note)
    try:
        await ready
    finally:
        remove(fd)
