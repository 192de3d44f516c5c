"""Waiting between cells: until the host sends something, or a watched descriptor becomes readable.

This is all that a context of another language needs; `event_loop` adds the loop of asyncio for contexts of Python. It
must not import asyncio, which is a third of a bare process.
"""

from __future__ import annotations

import select
from typing import Dict, List, Set


class IdleWait:
    """Waits for the host's channel, and for descriptors that were added by `heed`.

    Args:
        channel_fd: The channel of the context.
    """

    def __init__(self, channel_fd: int) -> None:
        self._channel_fd = channel_fd
        self._heeded: Set[int] = set()
        self._poller = self._new_poller()

    def install(self) -> None:
        """Called once, when the context begins."""

    def wait(self) -> None:
        """Blocks until the channel or an added descriptor is readable."""
        self._poll()

    def abandon(self) -> None:
        """Creates a new poller, after failures."""
        self._poller = self._new_poller()

    def heed(self, fd: int) -> None:
        """Makes `wait` return also when this descriptor is readable, at the latest when the user's loop is idle."""
        self._heeded.add(fd)
        self._poller.register(fd, select.POLLIN)

    def forget(self, fd: int) -> None:
        """Undoes `heed`; call it before the descriptor is closed."""
        if fd in self._heeded:
            self._heeded.remove(fd)
            self._poller.unregister(fd)

    def fds(self) -> List[int]:
        """The descriptors that waiting itself needs."""
        return []

    def renew(self) -> None:
        """Creates a new poller, in a process made from a checkpoint."""
        self.abandon()

    def _poll(self) -> Dict[int, int]:
        """Returns the ready descriptors; none of them when an added one became readable, which is then removed."""
        ready = dict(self._poller.poll())
        heeded = self._heeded.intersection(ready)

        # Only once: user code may have reused the descriptor's number.
        for fd in heeded:
            self.forget(fd)

        return {} if heeded else ready

    def _new_poller(self) -> select.poll:
        poller = select.poll()

        for fd in (self._channel_fd, *self._heeded):
            poller.register(fd, select.POLLIN)

        return poller
