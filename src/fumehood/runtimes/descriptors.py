"""Several descriptors at once: copied, or closed.

A descriptor is a plain number that no garbage collector closes: a failure in the middle must not leak those already
made. Also waits on the running asyncio loop until a descriptor is readable.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable


def copies(fds: Iterable[int]) -> tuple[int, ...]:
    """Duplicates all of them, or none."""
    made: list[int] = []
    try:
        for fd in fds:
            made.append(os.dup(fd))
    except OSError:
        close_all(made)
        raise

    return tuple(made)


def close_all(fds: Iterable[int]) -> None:
    """Closes all of them."""
    for fd in fds:
        os.close(fd)


async def until_readable(fd: int) -> None:
    """Returns when `fd` is readable or at its end."""
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
